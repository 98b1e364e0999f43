// Threads that are ready: each is taken once, in the order that was asked for, and whichever that is, it comes again.
#include "ready_threads.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

using namespace simt;

namespace {

std::vector<unsigned> taken_of(ready_threads& ready, unsigned count) {
    std::vector<unsigned> taken;
    for (unsigned i = 0; i < count; ++i) taken.push_back(ready.take());
    return taken;
}

std::vector<unsigned> order_of(thread_order order, unsigned threads, std::uint64_t seed) {
    ready_threads ready(order);
    ready.start(seed);
    for (unsigned rank = 0; rank < threads; ++rank) ready.add(rank);
    return taken_of(ready, threads);
}

} // namespace

TEST_CASE("every thread that is ready is taken once, and a seed repeats the order") {
    for (const thread_order order : {thread_order::first_in, thread_order::any, thread_order::one_warp})
        for (const unsigned threads : {1U, 31U, 96U, 1024U}) {
            const std::vector<unsigned> taken = order_of(order, threads, 3);
            CHECK(taken == order_of(order, threads, 3));
            CHECK(std::set<unsigned>(taken.begin(), taken.end()).size() == threads);
            CHECK(*std::max_element(taken.begin(), taken.end()) == threads - 1);
            if (threads > 1) CHECK((taken != order_of(order, threads, 4)) == (order != thread_order::first_in));
        }
}

TEST_CASE("first in is first out, around the end of the ring too") {
    ready_threads ready(thread_order::first_in);
    ready.start(1);
    for (unsigned rank = 0; rank < 1024; ++rank) ready.add(rank);
    for (unsigned i = 0; i < 3000; ++i) {
        const unsigned rank = ready.take();
        CHECK(rank == i % 1024);
        ready.add(rank);
    }
}

TEST_CASE("any thread may be next, and about as often as any other") {
    std::vector<int> times(8, 0);
    ready_threads ready(thread_order::any);
    ready.start(5);
    for (unsigned rank = 0; rank < 8; ++rank) ready.add(rank);
    for (int i = 0; i < 8000; ++i) {
        const unsigned rank = ready.take();
        ++times[rank];
        ready.add(rank);
    }
    for (const int count : times) {
        CHECK(count > 850);
        CHECK(count < 1150);
    }
}

TEST_CASE("threads of one warp are taken until none is ready, in any order, then another warp's") {
    std::set<unsigned> first_lanes;
    std::set<unsigned> first_warps;
    for (std::uint64_t seed = 0; seed < 64; ++seed) {
        const std::vector<unsigned> taken = order_of(thread_order::one_warp, 96, seed);
        for (unsigned i = 0; i < 96; ++i) CHECK(taken[i] / warp_size == taken[i / warp_size * warp_size] / warp_size);
        first_lanes.insert(taken[0] % warp_size);
        first_warps.insert(taken[0] / warp_size);
    }
    CHECK(first_lanes.size() > 16);
    CHECK(first_warps.size() > 1);

    ready_threads ready(thread_order::one_warp);
    ready.start(1);
    ready.add_lanes(1, 0x80000001U);
    const unsigned one = ready.take();
    ready.add_lanes(2, 0xffU); // of another warp, which waits
    ready.add(40);
    const std::vector<unsigned> same = taken_of(ready, 2);
    CHECK(std::set<unsigned>{one, same[0], same[1]} == std::set<unsigned>{32, 40, 63});
    for (const unsigned rank : taken_of(ready, 8)) CHECK(rank / warp_size == 2);
    CHECK(ready.empty());
}

TEST_CASE("another block starts with no thread ready") {
    for (const thread_order order : {thread_order::first_in, thread_order::any, thread_order::one_warp}) {
        ready_threads ready(order);
        ready.start(1);
        ready.add(3);
        ready.add(70);
        ready.start(1);
        CHECK(ready.empty());
        ready.add(5);
        CHECK(ready.take() == 5);
    }
}
