// Shared memory of blocks: as large as was asked for, and of pages that serve again.
#include "arena.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

using namespace simt;

TEST_CASE("a size gets its own arena again, aligned, with no byte of the one before it") {
    arena_pool& pool = arena_pool::shared();
    for (const std::size_t bytes : {std::size_t{100'000}, std::size_t{4096}, std::size_t{1}, std::size_t{0}}) {
        auto first = pool.take(bytes);
        CHECK(first->bytes() == bytes);
        CHECK(reinterpret_cast<std::uintptr_t>(first->data()) % 1024 == 0);
        first->forget();
        for (std::size_t i = 0; i < bytes; ++i) CHECK(first->data()[i] == std::byte{0xff});
        const std::byte* const place = first->data();
        auto second = pool.take(bytes); // while the first is in use
        CHECK(second->bytes() == bytes);
        CHECK(second->data() != place);
        pool.give(std::move(first));
        auto again = pool.take(bytes);
        CHECK(again->data() == place);
        pool.give(std::move(again));
        pool.give(std::move(second));
    }
}

#if defined(__SANITIZE_ADDRESS__)
TEST_CASE("what lies behind the last byte is poisoned, also of an arena that serves again") {
    arena_pool& pool = arena_pool::shared();
    for (int i = 0; i < 3; ++i) {
        auto taken = pool.take(1000);
        CHECK(__asan_region_is_poisoned(taken->data(), 1000) == nullptr);
        for (const std::size_t behind : {std::size_t{1000}, std::size_t{1001}, std::size_t{5000}})
            CHECK(__asan_address_is_poisoned(taken->data() + behind) != 0);
        pool.give(std::move(taken));
    }
}
#endif
