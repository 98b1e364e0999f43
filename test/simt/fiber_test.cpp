// Fibers: control comes back to where it left, with everything it had.
#include "fiber.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

using namespace simt;

namespace {

constexpr int num_fibers = 5;
constexpr int num_rounds = 100;

// Fibers in a ring, each of which adds to its own sum with numbers it keeps on its stack and in registers.
struct ring {
    context outside;
    std::array<context, num_fibers> fibers;
    std::array<std::uint64_t, num_fibers> sums{};
    std::vector<int> order;

    struct start {
        ring* all;
        int index;
    };
    std::array<start, num_fibers> starts{};

    void turn(int index) {
        std::array<std::uint64_t, 64> kept;
        for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = i * static_cast<std::size_t>(index + 1);
        double fraction = 0.5 * index;
        for (int round = 0; round < num_rounds; ++round) {
            order.push_back(index);
            fraction += 0.25;
            fibers[static_cast<std::size_t>(index)].leave_to(
                fibers[static_cast<std::size_t>((index + 1) % num_fibers)]);
            sums[static_cast<std::size_t>(index)] += kept[static_cast<std::size_t>(round) % kept.size()];
        }
        if (fraction != 0.5 * index + 0.25 * num_rounds) sums[static_cast<std::size_t>(index)] = 0;
        context& next = index + 1 < num_fibers ? fibers[static_cast<std::size_t>(index + 1)] : outside;
        fibers[static_cast<std::size_t>(index)].leave_for_good(next);
    }
};

} // namespace

TEST_CASE("fibers take turns, and keep what they have on their stacks") {
    stack_pool& pool = stack_pool::shared();
    ring all;
    stack_pool::stacks stacks = pool.take(num_fibers);
    for (int i = 0; i < num_fibers; ++i) {
        all.starts[static_cast<std::size_t>(i)] = {&all, i};
        all.fibers[static_cast<std::size_t>(i)].start(
            *stacks[static_cast<std::size_t>(i)],
            [](void* of) { static_cast<ring::start*>(of)->all->turn(static_cast<ring::start*>(of)->index); },
            &all.starts[static_cast<std::size_t>(i)]);
    }
    all.outside.leave_to(all.fibers[0]);
    for (int i = 0; i < num_fibers; ++i) {
        std::uint64_t due = 0;
        for (int round = 0; round < num_rounds; ++round)
            due += static_cast<std::uint64_t>(round % 64) * static_cast<std::uint64_t>(i + 1);
        CHECK(all.sums[static_cast<std::size_t>(i)] == due);
    }
    REQUIRE(all.order.size() == num_fibers * num_rounds);
    for (std::size_t i = 0; i < all.order.size(); ++i) CHECK(all.order[i] == static_cast<int>(i % num_fibers));
    pool.give(std::move(stacks));
}

TEST_CASE("stacks are used again, by other OS threads too") {
    stack_pool& pool = stack_pool::shared();
    stack_pool::stacks first = pool.take(2);
    const fiber_stack* const places[] = {first[0].get(), first[1].get()};
    CHECK(places[0] != places[1]);
    pool.give(std::move(first));
    std::thread other([&] {
        stack_pool::stacks second = pool.take(3);
        CHECK(second[0].get() == places[0]);
        CHECK(second[1].get() == places[1]);
        pool.give(std::move(second));
    });
    other.join();
}

TEST_CASE("a fiber begins below the top of its stack, which is all its own") {
    stack_pool::stacks stacks = stack_pool::shared().take(40);
    std::set<std::ptrdiff_t> distances;
    for (const auto& stack : stacks) {
        CHECK(stack->top() - stack->bottom() == static_cast<std::ptrdiff_t>(fiber_stack::usable_bytes));
        CHECK(stack->begin() <= stack->top());
        CHECK(stack->top() - stack->begin() < static_cast<std::ptrdiff_t>(fiber_stack::spread_bytes));
        CHECK(reinterpret_cast<std::uintptr_t>(stack->begin()) % 64 == 0);
        distances.insert(stack->top() - stack->begin());
    }
    CHECK(distances.size() > 1);
    stack_pool::shared().give(std::move(stacks));
}
