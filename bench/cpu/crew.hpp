// Ranks as threads that stay: a benchmark times what all of them do together, not how threads are made.
#pragma once

#include <barrier>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <ctxpar/comm/local.hpp>

namespace bench {

// Rank 0 is the thread that makes the crew and calls run().
class crew {
public:
    explicit crew(int ranks)
        : world_(ranks, {.checks = ctxpar::check_level::basic}), gate_(ranks),
          thrown_(static_cast<std::size_t>(ranks)) {
        for (int rank = 0; rank < ranks; ++rank)
            comms_.push_back(std::make_unique<ctxpar::local_communicator>(world_.rank(rank)));
        for (int rank = 1; rank < ranks; ++rank) others_.emplace_back([this, rank] { serve(rank); });
    }
    crew(const crew&) = delete;
    crew& operator=(const crew&) = delete;
    ~crew() {
        work_ = nullptr;
        gate_.arrive_and_wait();
        for (std::thread& other : others_) other.join();
    }

    int size() const { return static_cast<int>(comms_.size()); }
    ctxpar::local_communicator& comm(int rank) { return *comms_[static_cast<std::size_t>(rank)]; }

    // Calls work(rank) on every rank and returns when all are done; throws what one of them threw.
    void run(const std::function<void(int)>& work) {
        if (size() == 1) return work(0);
        work_ = &work;
        gate_.arrive_and_wait();
        do_work(0);
        gate_.arrive_and_wait();
        for (std::exception_ptr& each : thrown_)
            if (each != nullptr) std::rethrow_exception(each);
    }

private:
    void do_work(int rank) {
        try {
            (*work_)(rank);
        } catch (const std::exception& thrown) {
            thrown_[static_cast<std::size_t>(rank)] = std::current_exception();
            comm(rank).fail(thrown.what());
        }
    }
    void serve(int rank) {
        for (;;) {
            gate_.arrive_and_wait();
            if (work_ == nullptr) return;
            do_work(rank);
            gate_.arrive_and_wait();
        }
    }

    ctxpar::local_world world_;
    std::vector<std::unique_ptr<ctxpar::local_communicator>> comms_;
    std::barrier<> gate_;
    std::vector<std::exception_ptr> thrown_;
    const std::function<void(int)>* work_ = nullptr;
    std::vector<std::thread> others_;
};

} // namespace bench
