// The threads of one rank's CPU backend. They are made with the backend and none are made in a step; between steps they
// sleep. With one thread everything runs on the caller and nothing is synchronised.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include <ctxpar/core/error.hpp>

namespace ctxpar::inline v0_1::cpu {

class thread_pool {
public:
    // `threads` >= 1 work on every call, the caller's own among them. config_error "threads" otherwise.
    explicit thread_pool(std::int64_t threads) {
        require(threads >= 1 && threads <= 4096, "threads", "a CPU backend was asked for ", threads,
                " threads; it takes 1 to 4096");
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

    std::int64_t threads() const { return static_cast<std::int64_t>(workers_.size()) + 1; }

    // Calls work(item, thread) for every item in [0, items), each once, on any thread; returns when all are done.
    // `work` must not throw. One call at a time.
    template <class Work>
    void run(std::int64_t items, const Work& work) {
        if (workers_.empty() || items <= 1) {
            for (std::int64_t item = 0; item < items; ++item) work(item, std::int64_t{0});
            return;
        }
        {
            const std::lock_guard lock(mutex_);
            call_ = [](const void* context, std::int64_t item, std::int64_t thread) {
                (*static_cast<const Work*>(context))(item, thread);
            };
            context_ = &work;
            items_ = items;
            next_.store(0, std::memory_order_relaxed);
            busy_ = static_cast<std::int64_t>(workers_.size());
            ++round_;
        }
        start_.notify_all();
        take_items(0);
        std::unique_lock lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
    }

private:
    using call_type = void (*)(const void*, std::int64_t, std::int64_t);

    void take_items(std::int64_t thread) {
        for (;;) {
            const std::int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
            if (item >= items_) return;
            call_(context_, item, thread);
        }
    }

    void serve(std::int64_t thread) {
        std::uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        for (;;) {
            start_.wait(lock, [&] { return stopping_ || round_ != seen; });
            if (stopping_) return;
            seen = round_;
            lock.unlock();
            take_items(thread);
            lock.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable start_;
    std::condition_variable done_;
    call_type call_ = nullptr;
    const void* context_ = nullptr;
    std::int64_t items_ = 0;
    std::atomic<std::int64_t> next_{0};
    std::int64_t busy_ = 0;
    std::uint64_t round_ = 0;
    bool stopping_ = false;
};

} // namespace ctxpar::inline v0_1::cpu
