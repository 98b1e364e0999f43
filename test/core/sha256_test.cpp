// SHA-256 against the digests of FIPS 180-4's examples, and lengths around the end of a block.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include <ctxpar/core/sha256.hpp>

namespace {

constexpr std::array<std::uint32_t, 8> digest_of(std::string_view text) {
    ctxpar::sha256 hash;
    for (const char letter : text) hash.add_byte(static_cast<std::uint8_t>(letter));
    return hash.digest();
}

std::string hex(const std::array<std::uint32_t, 8>& words) {
    std::string text;
    for (const std::uint32_t word : words)
        for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[(word >> shift) & 15];
    return text;
}

} // namespace

static_assert(digest_of("abc")[0] == 0xba7816bf && digest_of("abc")[7] == 0xf20015ad);

TEST_CASE("digests of known texts") {
    CHECK(hex(digest_of("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hex(digest_of("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hex(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hex(digest_of(std::string(1000000, 'a'))) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("lengths around the end of a block") {
    CHECK(hex(digest_of(std::string(55, 'a'))) == "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
    CHECK(hex(digest_of(std::string(56, 'a'))) == "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
    CHECK(hex(digest_of(std::string(63, 'a'))) == "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
    CHECK(hex(digest_of(std::string(64, 'a'))) == "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
    CHECK(hex(digest_of(std::string(65, 'a'))) == "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0");
}

TEST_CASE("a digest leaves the bytes so far as they were, and a copy goes on from them") {
    ctxpar::sha256 hash;
    hash.add_byte('a');
    CHECK(hash.digest() == digest_of("a"));
    ctxpar::sha256 fork = hash;
    hash.add_byte('b');
    fork.add_byte('c');
    CHECK(hash.digest() == digest_of("ab"));
    CHECK(fork.digest() == digest_of("ac"));
}

TEST_CASE("a number is eight bytes, the lowest first") {
    for (const std::size_t before : {0, 3, 56, 60, 64, 121}) {
        ctxpar::sha256 hash;
        std::string text(before, 'x');
        for (const char letter : text) hash.add_byte(static_cast<std::uint8_t>(letter));
        hash.add(0x4142434445464748);
        CHECK(hash.digest() == digest_of(text + "HGFEDCBA"));
    }
}
