// A pool of threads does every item once, and never hangs.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ctxpar/backend/cpu/pool.hpp>

using namespace ctxpar;
using cpu::thread_pool;

namespace {

// How often each item was done. Counters are plain memory: an item belongs to one thread, and its result must be there
// for the caller without further ado.
std::vector<int> counts(thread_pool& pool, std::int64_t items) {
    std::vector<int> done(static_cast<std::size_t>(items), 0);
    pool.run(items, [&](std::int64_t item, std::int64_t) { ++done[static_cast<std::size_t>(item)]; });
    return done;
}

std::string refusal(std::int64_t threads) {
    try {
        thread_pool pool(threads);
    } catch (const config_error& problem) {
        return problem.code();
    }
    return "";
}

} // namespace

TEST_CASE("Every item is done once, whatever the number of threads and items") {
    for (const std::int64_t threads : {1, 2, 3, 4}) {
        thread_pool pool(threads);
        CHECK(pool.threads() == threads);
        for (const std::int64_t items : {0, 1, 2, 3, 4, 5, 31, 1000})
            CHECK(counts(pool, items) == std::vector<int>(static_cast<std::size_t>(items), 1));
    }
}

TEST_CASE("A thread's number is its own: scratch memory of a number needs no lock") {
    for (const std::int64_t threads : {1, 2, 4}) {
        thread_pool pool(threads);
        std::vector<std::int64_t> sums(static_cast<std::size_t>(threads), 0); // plain memory, one a thread
        bool in_range = true;
        pool.run(500, [&](std::int64_t item, std::int64_t thread) {
            if (thread < 0 || thread >= threads) {
                in_range = false;
                return;
            }
            sums[static_cast<std::size_t>(thread)] += item;
        });
        CHECK(in_range);
        CHECK(std::accumulate(sums.begin(), sums.end(), std::int64_t{0}) == 499 * 500 / 2);
    }
}

TEST_CASE("Threads work at the same time, and a run ends when the last of them has") {
    for (const std::int64_t threads : {2, 3, 4}) {
        thread_pool pool(threads);
        std::atomic<std::int64_t> started = 0;
        std::vector<int> done(static_cast<std::size_t>(threads), 0);
        pool.run(threads, [&](std::int64_t item, std::int64_t thread) {
            ++started;
            while (started < threads) std::this_thread::yield(); // each thread has one item
            if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(10 * thread));
            done[static_cast<std::size_t>(item)] = 1;
        });
        CHECK(done == std::vector<int>(static_cast<std::size_t>(threads), 1));
    }
}

TEST_CASE("Ten thousand short runs end") {
    thread_pool pool(3);
    std::int64_t total = 0;
    std::vector<std::int64_t> done(4);
    for (std::int64_t round = 0; round < 10'000; ++round) {
        const std::int64_t items = round % 5;
        std::fill(done.begin(), done.end(), 0);
        pool.run(items, [&](std::int64_t item, std::int64_t) { done[static_cast<std::size_t>(item)] = round + item; });
        for (std::int64_t item = 0; item < items; ++item)
            total += done[static_cast<std::size_t>(item)] == round + item ? 1 : 0;
    }
    CHECK(total == 2000 * (0 + 1 + 2 + 3 + 4));
}

TEST_CASE("Pools that are idle, or have just worked, end at once") {
    for (int round = 0; round < 100; ++round) {
        const thread_pool idle(4);
        thread_pool worked(2);
        CHECK(counts(worked, 5) == std::vector<int>(5, 1));
    }
}

TEST_CASE("Several pools work side by side") {
    std::vector<std::thread> ranks;
    std::vector<int> right(3, 0);
    for (std::size_t r = 0; r < right.size(); ++r)
        ranks.emplace_back([&right, r] {
            thread_pool pool(2);
            for (int round = 0; round < 200; ++round) right[r] += counts(pool, 7) == std::vector<int>(7, 1) ? 1 : 0;
        });
    for (std::thread& rank : ranks) rank.join();
    CHECK(right == std::vector<int>(3, 200));
}

TEST_CASE("One thread does everything itself, in order") {
    thread_pool pool(1);
    std::vector<std::int64_t> order;
    const std::thread::id caller = std::this_thread::get_id();
    bool same_thread = true;
    pool.run(5, [&](std::int64_t item, std::int64_t thread) {
        order.push_back(item);
        same_thread = same_thread && thread == 0 && std::this_thread::get_id() == caller;
    });
    CHECK(order == std::vector<std::int64_t>{0, 1, 2, 3, 4});
    CHECK(same_thread);
}

TEST_CASE("A pool of no threads, or of thousands, is refused") {
    for (const std::int64_t threads : {0, -1, 4097}) CHECK(refusal(threads) == "threads");
}

namespace {

// An engine's threads, that count what they are given.
struct engine_threads {
    thread_pool pool{3};
    std::int64_t runs = 0;

    cpu::executor lend() {
        cpu::executor lent;
        lent.context = this;
        lent.threads = pool.threads();
        lent.run = [](void* context, std::int64_t items, cpu::executor::work_function work, const void* data) {
            auto& self = *static_cast<engine_threads*>(context);
            ++self.runs;
            self.pool.run(items, [&](std::int64_t item, std::int64_t thread) { work(data, item, thread); });
        };
        return lent;
    }
};

} // namespace

TEST_CASE("Work is given to the engine's threads where it lends them") {
    engine_threads engine;
    thread_pool pool(engine.lend());
    CHECK(pool.threads() == 3);
    for (const std::int64_t items : {0, 1, 5, 1000})
        CHECK(counts(pool, items) == std::vector<int>(static_cast<std::size_t>(items), 1));
    CHECK(engine.runs == 4);
    const auto refusal_of = [](const cpu::executor& lent) -> std::string {
        try {
            thread_pool refused(lent);
        } catch (const config_error& problem) {
            return problem.code();
        }
        return "";
    };
    CHECK(refusal_of({}) == "null");
    cpu::executor none = engine.lend();
    none.threads = 0;
    CHECK(refusal_of(none) == "threads");
}
