// Prefix keys: laws over streams of tokens; and what layouts can use of a cached prefix, counted block by block.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/prefix.hpp>

#include "refusal.hpp"

namespace {

using ctxpar::block_range;
using ctxpar::ownership;
using ctxpar::prefix_chain;
using ctxpar::prefix_key;
using ctxpar_test::refusal_of;
using ctxpar_test::says;
using numbers = std::vector<std::int64_t>;
using key_list = std::vector<prefix_key>;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

numbers random_tokens(std::size_t count, std::uint32_t seed) {
    std::mt19937 random(seed);
    numbers tokens(count);
    for (std::int64_t& token : tokens) token = static_cast<std::int64_t>(random() % 150000);
    return tokens;
}

key_list keys_of(const numbers& tokens, std::int64_t unit, ctxpar::prefix_salt salt = {}) {
    key_list keys;
    prefix_chain chain(unit, salt);
    chain.append(std::span<const std::int64_t>(tokens), [&](std::int64_t index, const prefix_key& key) {
        REQUIRE(index == static_cast<std::int64_t>(keys.size()));
        keys.push_back(key);
    });
    CHECK(chain.keys() == static_cast<std::int64_t>(keys.size()));
    CHECK(chain.tokens() == static_cast<std::int64_t>(tokens.size()));
    if (!keys.empty()) CHECK(chain.last() == keys.back());
    return keys;
}

} // namespace

TEST_CASE("a key is the digest of the key before it and its tokens") {
    // sha256(len("ctxpar prefix"), "ctxpar prefix", unit 2, len("m"), "m"), and so on, all numbers as 8 little-endian
    // bytes; computed apart from the library.
    const key_list keys = keys_of({7, -1, 9, 300}, 2, {"m"});
    REQUIRE(keys.size() == 2);
    CHECK(keys[0] == prefix_key{0x81fb6b69dc0ab1c7, 0xc9482442cab4210a});
    CHECK(keys[1] == prefix_key{0x7f49c7e4c56b9980, 0xcd68b885bf57ad63});
}

TEST_CASE("tokens in any portions and of any type give the same keys, and only whole units have one") {
    const numbers tokens = random_tokens(331, 1);
    for (const std::int64_t unit : {1, 2, 16, 64, 331, 332}) {
        const key_list due = keys_of(tokens, unit);
        CHECK(due.size() == 331 / static_cast<std::size_t>(unit));
        std::mt19937 random(2);
        for (int repeat = 0; repeat < 10; ++repeat) {
            prefix_chain chain(unit);
            key_list keys;
            const auto keep = [&](std::int64_t, const prefix_key& key) { keys.push_back(key); };
            for (std::size_t done = 0; done < tokens.size();) {
                const std::size_t count = std::min<std::size_t>(random() % 70, tokens.size() - done);
                const auto part = std::span<const std::int64_t>(tokens).subspan(done, count);
                if (random() % 2 == 0) {
                    chain.append(part, keep);
                } else {
                    const std::vector<std::int32_t> narrow(part.begin(), part.end());
                    chain.append(std::span<const std::int32_t>(narrow), keep);
                }
                done += count;
            }
            REQUIRE(keys == due);
        }
    }
}

TEST_CASE("one changed token changes every later key and none before") {
    const numbers tokens = random_tokens(200, 3);
    const key_list due = keys_of(tokens, 8);
    for (std::size_t changed = 0; changed < tokens.size(); ++changed) {
        numbers other = tokens;
        other[changed] ^= 1;
        const key_list keys = keys_of(other, 8);
        REQUIRE(keys.size() == due.size());
        for (std::size_t i = 0; i < keys.size(); ++i) REQUIRE((keys[i] == due[i]) == ((i + 1) * 8 <= changed));
    }
    numbers swapped = tokens;
    std::swap(swapped[0], swapped[9]);
    CHECK(keys_of(swapped, 8)[1] != due[1]);
}

TEST_CASE("a fork goes on from the tokens that it shares") {
    const numbers tokens = random_tokens(100, 4), more = random_tokens(50, 5);
    prefix_chain trunk(16);
    trunk.append(std::span<const std::int64_t>(tokens));
    prefix_chain fork = trunk;
    trunk.append(std::span<const std::int64_t>(tokens));
    fork.append(std::span<const std::int64_t>(more));
    numbers all = tokens;
    all.insert(all.end(), more.begin(), more.end());
    CHECK(fork.last() == keys_of(all, 16).back());
    CHECK(fork.last() != trunk.last());
}

TEST_CASE("salts and units keep keys apart, and all keys differ") {
    const numbers tokens(64, 17); // one token throughout: only the place in the chain tells units apart
    std::set<prefix_key> seen;
    std::size_t count = 0;
    const auto take = [&](const key_list& keys) {
        count += keys.size();
        seen.insert(keys.begin(), keys.end());
    };
    take(keys_of(tokens, 4));
    take(keys_of(tokens, 4, {""}));
    take(keys_of(tokens, 4, {"model"}));
    take(keys_of(tokens, 4, {"model", ""}));
    take(keys_of(tokens, 4, {"model", "adapter"}));
    take(keys_of(tokens, 4, {"modela", "dapter"}));
    take(keys_of(tokens, 4, {"adapter", "model"}));
    take(keys_of(tokens, 8));
    take(keys_of(tokens, 1));
    CHECK(seen.size() == count);
    CHECK(prefix_chain(4, {"a"}).last() != prefix_chain(4, {"b"}).last());
    CHECK(keys_of(tokens, 4, {"model", "adapter"}) == keys_of(tokens, 4, {"model", "adapter"}));
}

TEST_CASE("keys know no layout: a prefix of any layout is found with them as far as the other can use it") {
    const numbers tokens = random_tokens(700, 6);
    numbers other = tokens;
    other[613] += 1;
    const std::int64_t unit = 16;
    const key_list a = keys_of(tokens, unit), b = keys_of(other, unit);
    std::int64_t matched = 0;
    while (a[static_cast<std::size_t>(matched)] == b[static_cast<std::size_t>(matched)]) ++matched;
    CHECK(matched == 613 / 16);
    for (const std::int64_t ranks : {1, 2, 3, 4, 8})
        for (const std::int64_t interleave : {1, 2, 3, 5, 16, 32})
            for (const std::int64_t block_size : {1, 4, 16, 64}) {
                const ownership law{ranks, interleave};
                const std::int64_t hit = ctxpar::prefix_hit_of_keys(law, block_size, unit, matched);
                CHECK(hit == ctxpar::prefix_hit(law, block_size, matched * unit));
                CHECK(hit <= 613);
                CHECK(hit % ctxpar::prefix_unit(law, block_size) == 0);
                // With keys at the layout's own unit nothing is lost.
                const std::int64_t own = ctxpar::prefix_unit(law, block_size);
                const key_list x = keys_of(tokens, own), y = keys_of(other, own);
                std::int64_t same = 0;
                while (same < static_cast<std::int64_t>(x.size()) &&
                       x[static_cast<std::size_t>(same)] == y[static_cast<std::size_t>(same)])
                    ++same;
                CHECK(ctxpar::prefix_hit_of_keys(law, block_size, own, same) ==
                      ctxpar::prefix_hit(law, block_size, 613));
            }
}

TEST_CASE("the blocks of a key hold its tokens and no others, on every rank") {
    for (const std::int64_t ranks : {1, 2, 3, 4})
        for (const std::int64_t interleave : {1, 2, 3, 5, 8})
            for (const std::int64_t block_size : {1, 2, 4, 6})
                for (const std::int64_t times : {1, 3}) {
                    const ownership law{ranks, interleave};
                    const std::int64_t unit = times * ctxpar::prefix_unit(law, block_size);
                    for (std::int64_t index = 0; index < 3; ++index) {
                        const block_range blocks = ctxpar::key_blocks(law, block_size, unit, index);
                        std::vector<std::set<std::int64_t>> held(static_cast<std::size_t>(ranks));
                        std::vector<std::int64_t> tokens(static_cast<std::size_t>(ranks), 0);
                        for (std::int64_t token = index * unit; token < (index + 1) * unit; ++token) {
                            const auto owner = static_cast<std::size_t>(law.owner(token));
                            held[owner].insert(law.local(token) / block_size);
                            ++tokens[owner];
                        }
                        for (std::size_t rank = 0; rank < held.size(); ++rank) {
                            REQUIRE(static_cast<std::int64_t>(held[rank].size()) == blocks.last - blocks.first);
                            REQUIRE(*held[rank].begin() == blocks.first);
                            REQUIRE(*held[rank].rbegin() == blocks.last - 1);
                            REQUIRE(tokens[rank] == (blocks.last - blocks.first) * block_size);
                        }
                    }
                }
    CHECK(ctxpar::key_blocks({4, 1}, 16, 64, 2) == block_range{2, 3});
    CHECK(ctxpar::key_blocks({2, 5}, 16, 160, 1) == block_range{5, 10});
    CHECK(ctxpar::key_blocks({2, 32}, 16, 64, 0) == block_range{0, 2});
}

TEST_CASE("a hit needs every shard") {
    // As far as every token before it lies in a block that is there, at the whole units.
    for (const ownership& law : {ownership{4, 1}, ownership{2, 5}, ownership{2, 32}, ownership{3, 4}, ownership{1, 7}})
        for (const std::int64_t block_size : {4, 16}) {
            std::mt19937 random(9);
            for (int repeat = 0; repeat < 200; ++repeat) {
                numbers present(static_cast<std::size_t>(law.ranks));
                for (std::int64_t& count : present) count = static_cast<std::int64_t>(random() % 30);
                std::int64_t reach = 0;
                while (law.local(reach) / block_size < present[static_cast<std::size_t>(law.owner(reach))]) ++reach;
                REQUIRE(ctxpar::hit_of(law, block_size, present) == ctxpar::prefix_hit(law, block_size, reach));
            }
        }
    CHECK(ctxpar::hit_of({4, 1}, 16, numbers{3, 3, 2, 3}) == 128);
    CHECK(ctxpar::hit_of({4, 1}, 16, numbers{3, 3, 0, 3}) == 0);
    CHECK(ctxpar::hit_of({2, 5}, 16, numbers{9, 10}) == 160);
    CHECK(ctxpar::hit_of({2, 1}, 4, numbers{largest, largest}) == largest / 8 * 8);
}

TEST_CASE("the unit that two layouts share") {
    CHECK(ctxpar::shared_prefix_unit({4, 1}, 16, {4, 16}, 16) == 64);
    CHECK(ctxpar::shared_prefix_unit({4, 1}, 16, {2, 5}, 16) == 320);
    CHECK(ctxpar::shared_prefix_unit({1, 1}, 16, {8, 16}, 16) == 128);
    CHECK(ctxpar::shared_prefix_unit({3, 1}, 16, {2, 1}, 128) == 768);
    const std::int64_t unit = ctxpar::shared_prefix_unit({4, 1}, 16, {2, 5}, 16);
    CHECK(ctxpar::key_blocks({4, 1}, 16, unit, 1) == block_range{5, 10});
    CHECK(ctxpar::key_blocks({2, 5}, 16, unit, 1) == block_range{10, 20});
    // 1000 tokens cached in one layout, used in another.
    CHECK(ctxpar::prefix_hit({2, 5}, 16, ctxpar::prefix_hit({4, 1}, 16, 1000)) == 960);
    CHECK(ctxpar::prefix_hit({4, 128}, 128, ctxpar::prefix_hit({4, 1}, 16, 1000)) == 512);
    static_assert(ctxpar::shared_prefix_unit({4, 1}, 16, {2, 5}, 16) == 320);
}

TEST_CASE("what can not be is refused with its numbers") {
    CHECK(says(refusal_of([] { prefix_chain(0); }), "unit", {"0 tokens", "at least 1"}));
    CHECK(says(refusal_of([] { ctxpar::prefix_hit_of_keys({2, 1}, 4, 0, 3); }), "unit", {"0 tokens"}));
    CHECK(says(refusal_of([] { ctxpar::prefix_hit_of_keys({2, 1}, 4, 8, -1); }), "length", {"-1 keys"}));
    CHECK(says(refusal_of([] { ctxpar::prefix_hit_of_keys({2, 1}, 4, 8, largest / 4); }), "length", {"at most"}));
    CHECK(says(refusal_of([] {
                   ctxpar::key_blocks({4, 1}, 16, 32, 0);
               }),
               "unit", {"32 tokens", "4 ranks", "multiple of 64"}));
    CHECK(says(refusal_of([] { ctxpar::key_blocks({4, 1}, 16, 0, 0); }), "unit", {"of 0 tokens"}));
    CHECK(says(refusal_of([] { ctxpar::key_blocks({4, 1}, 16, 64, -1); }), "length", {"key -1"}));
    CHECK(says(refusal_of([] { ctxpar::key_blocks({4, 1}, 16, 64, largest / 64); }), "length", {"at most"}));
    CHECK(ctxpar::key_blocks({4, 1}, 16, 64, largest / 64 - 1).last == largest / 64);
    CHECK(says(refusal_of([] { ctxpar::hit_of({4, 1}, 16, numbers{1, 2, 3}); }), "ranks", {"3 counts", "4 ranks"}));
    CHECK(says(refusal_of([] { ctxpar::hit_of({2, 1}, 16, numbers{1, -2}); }), "length", {"-2 blocks"}));
    CHECK(says(refusal_of([] { ctxpar::hit_of({2, 1}, 0, numbers{1, 2}); }), "block_size", {"0"}));
    CHECK(says(refusal_of([] {
                   ctxpar::shared_prefix_unit({1, 1}, largest / 2, {1, 1}, largest / 2 - 1);
               }),
               "block_size", {"63 bits"}));
}

TEST_CASE("a million tokens are hashed once, and soon") {
    const numbers tokens = random_tokens(1 << 20, 10);
    const auto start = std::chrono::steady_clock::now();
    prefix_chain chain(128);
    chain.append(std::span<const std::int64_t>(tokens));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    MESSAGE("keys of 1,048,576 tokens: ", took.count(), " ms");
    CHECK(chain.keys() == 8192);
}
