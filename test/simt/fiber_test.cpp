// Fibers: control comes back to where it left, with everything it had.
#include "fiber.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <memory>
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
    stack_pool& pool = stack_pool::of_this_thread();
    ring all;
    std::vector<std::unique_ptr<fiber_stack>> stacks;
    for (int i = 0; i < num_fibers; ++i) {
        stacks.push_back(pool.take());
        all.starts[static_cast<std::size_t>(i)] = {&all, i};
        all.fibers[static_cast<std::size_t>(i)].start(
            *stacks.back(),
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
    for (auto& stack : stacks) pool.give(std::move(stack));
}

TEST_CASE("a stack is used again") {
    stack_pool& pool = stack_pool::of_this_thread();
    auto first = pool.take();
    const fiber_stack* const place = first.get();
    pool.give(std::move(first));
    auto second = pool.take();
    CHECK(second.get() == place);
    CHECK(second->top() - second->bottom() == static_cast<std::ptrdiff_t>(fiber_stack::usable_bytes));
    pool.give(std::move(second));
}
