// The emulated block: threads meet where they should, and what a kernel does wrong is said with threads and places.
#include "block.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

using namespace simt;

namespace {

constexpr thread_order orders[] = {thread_order::first_in, thread_order::any, thread_order::one_warp};

grid_options grid_of(unsigned blocks, unsigned threads, thread_order order = thread_order::any,
                     std::uint64_t seed = 1) {
    grid_options options;
    options.grid.x = blocks;
    options.block.x = threads;
    options.order = order;
    options.seed = seed;
    return options;
}

std::string fault_of(const grid_options& options, const std::function<void()>& kernel) {
    try {
        run_grid(options, kernel);
    } catch (const fault& problem) {
        return problem.what();
    }
    return "none";
}

bool has(const std::string& text, std::initializer_list<const char*> words) {
    bool all = true;
    for (const char* word : words) all = all && text.find(word) != std::string::npos;
    if (!all) MESSAGE("the fault: ", text);
    return all;
}

void sync() {
    barrier(0, 0, "__syncthreads");
}

// Adds up what all lanes give; every lane gets the sum.
int sum_of_lanes(std::uint32_t mask, int value) {
    meet_in_warp(mask, "sum", &value, [](void* const* data, std::uint32_t lanes) {
        int sum = 0;
        for (unsigned lane = 0; lane < warp_size; ++lane)
            if ((lanes >> lane & 1U) != 0) sum += *static_cast<int*>(data[lane]);
        for (unsigned lane = 0; lane < warp_size; ++lane)
            if ((lanes >> lane & 1U) != 0) *static_cast<int*>(data[lane]) = sum;
    });
    return value;
}

} // namespace

TEST_CASE("every thread of every block runs once, in any order") {
    for (const thread_order order : orders) {
        grid_options options = grid_of(3, 5, order);
        options.grid = {2, 3, 2};
        options.block = {3, 2, 4};
        std::multiset<std::vector<unsigned>> seen;
        run_grid(options, [&] {
            const thread_position& at = position();
            CHECK(at.rank == at.thread.x + 3 * (at.thread.y + 2 * at.thread.z));
            seen.insert({at.block.x, at.block.y, at.block.z, at.thread.x, at.thread.y, at.thread.z});
        });
        CHECK(seen.size() == 2 * 3 * 2 * 3 * 2 * 4);
        CHECK(std::set<std::vector<unsigned>>(seen.begin(), seen.end()).size() == seen.size());
    }
}

TEST_CASE("behind a barrier all threads see what all wrote before it") {
    for (const thread_order order : orders) {
        grid_options options = grid_of(4, 96, order);
        options.shared_bytes = 96 * sizeof(unsigned);
        bool right = true;
        run_grid(options, [&] {
            auto* const shared = reinterpret_cast<unsigned*>(shared_memory());
            const unsigned rank = position().rank;
            for (unsigned round = 0; round < 3; ++round) {
                shared[rank] = rank * 10 + round;
                sync();
                for (unsigned other = 0; other < 96; ++other) right = right && shared[other] == other * 10 + round;
                sync();
            }
        });
        CHECK(right);
    }
}

TEST_CASE("a barrier that is missing shows under some order") {
    int wrong = 0;
    for (const thread_order order : orders) {
        for (std::uint64_t seed = 0; seed < 4; ++seed) {
            grid_options options = grid_of(1, 64, order, seed);
            options.shared_bytes = 64;
            bool right = true;
            run_grid(options, [&] {
                const unsigned rank = position().rank;
                shared_memory()[rank] = static_cast<std::byte>(rank);
                // here one is missing
                right = right && shared_memory()[63 - rank] == static_cast<std::byte>(63 - rank);
            });
            wrong += right ? 0 : 1;
        }
    }
    CHECK(wrong > 0);
}

TEST_CASE("a seed repeats its order, another one has another") {
    const auto order_of = [](std::uint64_t seed) {
        std::vector<unsigned> order;
        run_grid(grid_of(3, 64, thread_order::any, seed), [&] {
            order.push_back(position().rank);
            sync();
            order.push_back(position().rank);
        });
        return order;
    };
    CHECK(order_of(7) == order_of(7));
    CHECK(order_of(7) != order_of(8));
}

TEST_CASE("lanes of a mask meet, and other masks do not wait for them") {
    for (const thread_order order : orders) {
        std::vector<int> sums(96, -1);
        run_grid(grid_of(1, 96, order), [&] {
            const unsigned rank = position().rank;
            const unsigned lane = rank % warp_size;
            const std::uint32_t mask = lane < 5 ? 0x1fU : ~0x1fU;
            for (int round = 0; round < 3; ++round) sums[rank] = sum_of_lanes(mask, static_cast<int>(rank));
        });
        for (unsigned rank = 0; rank < 96; ++rank) {
            int due = 0;
            const unsigned first = rank / warp_size * warp_size;
            for (unsigned lane = 0; lane < warp_size; ++lane)
                if ((lane < 5) == (rank % warp_size < 5)) due += static_cast<int>(first + lane);
            CHECK(sums[rank] == due);
        }
    }
}

TEST_CASE("named barriers count their threads") {
    std::vector<int> seen(64, 0);
    run_grid(grid_of(1, 64), [&] {
        const unsigned rank = position().rank;
        const unsigned id = rank < 32 ? 1 : 2;
        seen[rank] = 1;
        barrier(id, 32, "bar.sync");
        for (unsigned other = rank / 32 * 32; other < rank / 32 * 32 + 32; ++other)
            seen[rank] &= seen[other] > 0 ? 3 : 0;
    });
    CHECK(seen == std::vector<int>(64, 1));
}

TEST_CASE("threads that wait for others that never come are named, with where they wait") {
    CHECK(has(fault_of(grid_of(1, 64),
                       [] {
                           if (position().rank < 40) barrier(1, 64, "bar.sync");
                       }),
              {"deadlock in block (0,0,0)",
               "threads 0-39 wait in bar.sync at block_test.cpp:", "threads 40-63 have exited"}));
    CHECK(has(fault_of(grid_of(1, 32),
                       [] {
                           if (position().rank != 3) sum_of_lanes(~0U, 1);
                       }),
              {"threads 3 have exited", "threads 0-2, 4-31 wait in sum"}));
}

TEST_CASE("a barrier of all threads does not wait for those that have exited") {
    CHECK(fault_of(grid_of(1, 64), [] {
              if (position().rank < 40) sync();
          }) == "none");
}

TEST_CASE("what must not be asked is refused") {
    CHECK(has(fault_of(grid_of(1, 32),
                       [] {
                           if (position().rank == 4) {
                               meet_in_warp(~0U, "ballot", nullptr, [](void* const*, std::uint32_t) {});
                           } else {
                               sum_of_lanes(~0U, 1);
                           }
                       }),
              {"ballot", "sum", "block_test.cpp:"}));
    CHECK(has(fault_of(grid_of(1, 32),
                       [] {
                           if (position().rank == 4) sum_of_lanes(0xfU, 1);
                       }),
              {"thread 4 (warp 0, lane 4)", "does not name it"}));
    CHECK(has(fault_of(grid_of(1, 32), [] { barrier(16, 0, "bar.sync"); }), {"barrier 16 does not exist"}));
    CHECK(has(fault_of(grid_of(1, 32), [] { barrier(1, position().rank == 0 ? 16 : 32, "bar.sync"); }),
              {"comes to barrier 1", "16", "32"}));
    CHECK(has(fault_of(grid_of(1, 1025), [] {}), {"1025 threads", "1 to 1024"}));
    CHECK(has(fault_of(grid_of(0, 32), [] {}), {"no blocks"}));
    CHECK(has(fault_of(grid_of(2, 32), [] { raise_fault("this: " + describe_here(std::source_location::current())); }),
              {"this: thread ", "of block (", "block_test.cpp:"}));
}

TEST_CASE("shared memory is not a number until it is written, in every block anew") {
    grid_options options = grid_of(3, 32);
    options.shared_bytes = 128;
    bool right = true;
    run_grid(options, [&] {
        const unsigned rank = position().rank;
        for (unsigned i = 0; i < 4; ++i) right = right && shared_memory()[4 * rank + i] == std::byte{0xff};
        shared_memory()[4 * rank] = std::byte{1};
        right = right && is_shared(shared_memory() + 4 * rank, 4) && shared_bytes() == 128;
        right = right && !is_shared(shared_memory() + 125, 4) && !is_shared(&right, 1);
    });
    CHECK(right);
}

TEST_CASE("yield lets others go on") {
    int turn = 0;
    run_grid(grid_of(1, 2, thread_order::first_in), [&] {
        if (position().rank == 0) {
            while (turn == 0) yield();
        } else {
            turn = 1;
        }
    });
    CHECK(turn == 1);
}
