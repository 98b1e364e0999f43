// The threads of one rank's CPU backend: its own, or the engine's. Its own are made with the backend and none are made
// in a step. Where each has a core they poll for a moment before they sleep, as calls of a step follow one another; to
// be woken takes longer than many calls. With one thread everything runs on the caller and nothing is synchronised.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include <ctxpar/core/error.hpp>

namespace ctxpar::inline v0_1::cpu {

// An engine's threads, lent to a backend. `run` calls work(data, item, thread) for every item in [0, items), each once,
// and returns when all are done; `thread` is in [0, threads) and no two calls at the same time have the same. `work`
// does not throw.
struct executor {
    using work_function = void (*)(const void* data, std::int64_t item, std::int64_t thread);

    void (*run)(void* context, std::int64_t items, work_function work, const void* data) = nullptr;
    void* context = nullptr;
    std::int64_t threads = 1;
};

class thread_pool {
public:
    // Work is done by the executor's threads. config_error "threads", "null" where it can not run anything.
    explicit thread_pool(const executor& lent) : lent_(lent) {
        require(lent.run != nullptr, "null", "the executor of a CPU backend has no function `run`");
        require_threads(lent.threads);
    }
    // `threads` >= 1 work on every call, the caller's own among them. config_error "threads" otherwise.
    explicit thread_pool(std::int64_t threads) : has_cores_(threads <= std::thread::hardware_concurrency()) {
        require_threads(threads);
        for (std::int64_t index = 1; index < threads; ++index) workers_.emplace_back([this, index] { serve(index); });
    }
    thread_pool(const thread_pool&) = delete;
    thread_pool& operator=(const thread_pool&) = delete;

    ~thread_pool() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        start_.notify_all();
        for (std::thread& worker : workers_) worker.join();
    }

    std::int64_t threads() const {
        return lent_.run != nullptr ? lent_.threads : static_cast<std::int64_t>(workers_.size()) + 1;
    }

    // Calls work(item, thread) for every item in [0, items), each once, on any thread; returns when all are done.
    // `work` must not throw. One call at a time.
    template <class Work>
    void run(std::int64_t items, const Work& work) {
        const auto call = [](const void* data, std::int64_t item, std::int64_t thread) {
            (*static_cast<const Work*>(data))(item, thread);
        };
        if (lent_.run != nullptr) return lent_.run(lent_.context, items, call, &work);
        if (workers_.empty() || items <= 1) {
            for (std::int64_t item = 0; item < items; ++item) work(item, std::int64_t{0});
            return;
        }
        {
            const std::lock_guard lock(mutex_);
            call_ = call;
            context_ = &work;
            items_ = items;
            next_.store(0, std::memory_order_relaxed);
            busy_ = static_cast<std::int64_t>(workers_.size());
            ++round_;
        }
        start_.notify_all();
        take_items(0);
        if (polled([this] { return busy_ == 0; })) return;
        std::unique_lock lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
    }

private:
    static constexpr std::chrono::microseconds longest_poll{100};

    static void require_threads(std::int64_t threads) {
        require(threads >= 1 && threads <= 4096, "threads", "a CPU backend was asked for ", threads,
                " threads; it takes 1 to 4096");
    }

    // Whether something becomes true soon. Not where it is not worth the waiting.
    template <class Predicate>
    bool polled(const Predicate& done) const {
        if (!has_cores_) return false;
        const auto end = std::chrono::steady_clock::now() + longest_poll;
        do {
            for (int turn = 0; turn < 16; ++turn) {
                if (done()) return true;
                std::this_thread::yield();
            }
        } while (std::chrono::steady_clock::now() < end);
        return false;
    }

    void take_items(std::int64_t thread) {
        for (;;) {
            const std::int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
            if (item >= items_) return;
            call_(context_, item, thread);
        }
    }

    void serve(std::int64_t thread) {
        std::uint64_t seen = 0;
        for (;;) {
            polled([&] { return round_ != seen; });
            std::unique_lock lock(mutex_);
            start_.wait(lock, [&] { return stopping_ || round_ != seen; });
            if (stopping_) return;
            seen = round_;
            lock.unlock();
            take_items(thread);
            lock.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    bool has_cores_ = false;
    executor lent_; // without a function: none
    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable start_;
    std::condition_variable done_;
    executor::work_function call_ = nullptr;
    const void* context_ = nullptr;
    std::int64_t items_ = 0;
    std::atomic<std::int64_t> next_{0};
    std::atomic<std::int64_t> busy_{0};
    std::atomic<std::uint64_t> round_{0};
    bool stopping_ = false;
};

} // namespace ctxpar::inline v0_1::cpu
