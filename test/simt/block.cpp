#include "block.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "fiber.hpp"
#include "late_copies.hpp"
#include "races.hpp"
#include "ready_threads.hpp"

namespace simt {
namespace {

std::string place_of(const std::source_location& where) {
    const std::string file = where.file_name();
    return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(where.line());
}

// "0-39, 44"
std::string ranges(const std::vector<unsigned>& sorted) {
    std::string text;
    for (std::size_t i = 0; i < sorted.size();) {
        std::size_t end = i + 1;
        while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
        text += (text.empty() ? "" : ", ") + std::to_string(sorted[i]);
        if (end - i > 1) text += "-" + std::to_string(sorted[end - 1]);
        i = end;
    }
    return text;
}

struct block_thread {
    context control;
    thread_position at;
    late_copies copies;
    bool exited = false;
    const char* waits_in = "";
    std::source_location waits_at;
};

struct barrier_state {
    std::vector<unsigned> arrived; // ranks
    unsigned expected = 0;         // 0: all that have not exited
    unsigned uses = 0;             // how often it has opened
};

// Lanes of one warp on their way into one operation.
struct warp_meeting {
    std::uint32_t mask = 0;
    std::uint32_t arrived = 0;
    const char* what = "";
    std::source_location where;
    std::array<void*, warp_size> data; // of those that have arrived
};

// The meetings of one warp that have begun; there is hardly ever more than one.
class warp_meetings {
public:
    warp_meeting& of(std::uint32_t mask) {
        for (std::size_t i = 0; i < num_begun_; ++i)
            if (all_[i].mask == mask) return all_[i];
        if (num_begun_ == all_.size()) all_.emplace_back();
        warp_meeting& begun = all_[num_begun_++];
        begun.mask = mask;
        begun.arrived = 0;
        return begun;
    }
    void end(warp_meeting& meeting) {
        --num_begun_;
        if (&meeting != &all_[num_begun_]) meeting = all_[num_begun_];
    }
    void clear() { num_begun_ = 0; }

private:
    std::vector<warp_meeting> all_;
    std::size_t num_begun_ = 0;
};

class block_run;
thread_local block_run* running = nullptr;

class block_run {
public:
    // `grid_end` stands for the end of all blocks.
    block_run(const grid_options& options, const std::function<void()>& kernel, char& grid_end)
        : options_(options), kernel_(kernel), grid_end_(grid_end),
          num_threads_(static_cast<unsigned>(options.block.count())), threads_(num_threads_),
          meetings_((num_threads_ + warp_size - 1) / warp_size), warp_orders_(meetings_.size()),
          warp_syncs_(num_threads_), ready_(options.order), stacks_(stack_pool::shared().take(num_threads_)),
          shared_(arena_pool::shared().take(options.shared_bytes)) {
        const extent& size = options.block;
        for (unsigned rank = 0; rank < num_threads_; ++rank) {
            threads_[rank].at = {
                {rank % size.x, rank / size.x % size.y, rank / size.x / size.y}, {}, size, options.grid, rank};
        }
    }
    block_run(const block_run&) = delete;
    block_run& operator=(const block_run&) = delete;
    ~block_run() {
        stack_pool::shared().give(std::move(stacks_), !problem_.empty());
        arena_pool::shared().give(std::move(shared_));
    }

    // Once for each block; not after one that threw.
    void run(const extent& block, std::uint64_t seed) {
        forget();
        ready_.start(seed);
        for (block_thread& thread : threads_) {
            thread.at.block = block;
            thread.control.start(
                *stacks_[thread.at.rank], [](void*) { running->thread_main(); }, nullptr);
            ready_.add(thread.at.rank);
        }
        running = this;
        detail::here.shared = shared_->data();
        detail::here.shared_bytes = shared_->bytes();
        dispatch(outside_, false);
        running = nullptr;
        detail::here = {};
        if (!problem_.empty()) throw fault(problem_);
    }

    void barrier(unsigned id, unsigned expected, const char* what, const std::source_location& where) {
        if (id >= barriers_.size())
            raise("barrier " + std::to_string(id) + " does not exist; there are 0 to 15: " + describe(where));
        barrier_state& here = barriers_[id];
        if (!here.arrived.empty() && here.expected != expected)
            raise(describe(where) + " comes to barrier " + std::to_string(id) + " with " + std::to_string(expected) +
                  " threads; others wait there for " + std::to_string(here.expected));
        here.expected = expected;
        here.arrived.push_back(at().rank);
        void* const order = &orders_[id][here.uses % 2];
        races::release(order);
        if (is_full(here)) {
            release(here, at().rank);
            pause();
        } else {
            wait(what, where);
        }
        races::acquire(order);
    }

    void meet(std::uint32_t mask, const char* what, void* data, warp_work work, const std::source_location& where) {
        const unsigned rank = at().rank, warp = rank / warp_size, lane = rank % warp_size;
        if ((mask >> lane & 1U) == 0) raise(describe(where) + " calls " + what + " with a mask that does not name it");
        warp_meeting& here = meetings_[warp].of(mask);
        if (here.arrived != 0 && here.what != what && std::strcmp(here.what, what) != 0)
            raise(describe(where) + " calls " + what + ", other lanes of its mask wait in " + here.what + " at " +
                  place_of(here.where));
        here.arrived |= 1U << lane;
        here.what = what;
        here.where = where;
        here.data[lane] = data;
        if (here.arrived != mask) {
            wait(what, where);
            return;
        }
        work(here.data.data(), mask);
        meetings_[warp].end(here);
        ready_.add_lanes(warp, mask);
        dispatch(threads_[rank].control, false);
    }

    late_copies& copies() { return threads_[at().rank].copies; }

    void sync_warp(const std::source_location& where) {
        const unsigned warp = at().rank / warp_size;
        void* const order = &warp_orders_[warp][warp_syncs_[at().rank]++ % 2];
        races::release(order);
        meet(
            0xffffffffU, "sync_warp", nullptr, [](void* const*, std::uint32_t) {}, where);
        races::acquire(order);
    }

    // Gives control away; the running thread stays ready.
    void pause() {
        ready_.add(at().rank);
        dispatch(threads_[at().rank].control, false);
    }

    // Unwinds the thread, so that what its kernel has is given back; see thread_main.
    [[noreturn]] void raise(const std::string& text) { throw fault(text); }

    std::string describe(const std::source_location& where) const {
        return "thread " + std::to_string(at().rank) + " (warp " + std::to_string(at().rank / warp_size) + ", lane " +
               std::to_string(at().rank % warp_size) + ") of block " + block_name() + " at " + place_of(where);
    }

private:
    static const thread_position& at() { return *detail::here.at; }

    // Makes all as it was before the first block.
    void forget() {
        shared_->forget();
        num_exited_ = 0;
        for (block_thread& thread : threads_) {
            thread.exited = false;
            thread.copies.clear();
        }
        for (barrier_state& each : barriers_) each.arrived.clear();
        for (warp_meetings& each : meetings_) each.clear();
    }

    void thread_main() {
        try {
            kernel_();
        } catch (const std::exception& problem) {
            problem_ = problem.what();
        }
        races::release(&grid_end_);
        if (!problem_.empty()) threads_[at().rank].control.leave_for_good(outside_);
        block_thread& self = threads_[at().rank];
        self.exited = true;
        ++num_exited_;
        // Whoever waits for all others may have waited for this one.
        for (barrier_state& each : barriers_)
            if (!each.arrived.empty() && is_full(each)) release(each, num_threads_);
        dispatch(self.control, true);
    }

    bool is_full(const barrier_state& barrier) const {
        const unsigned expected = barrier.expected == 0 ? num_threads_ - num_exited_ : barrier.expected;
        return barrier.arrived.size() >= expected;
    }
    void release(barrier_state& barrier, unsigned except) {
        for (const unsigned rank : barrier.arrived)
            if (rank != except) ready_.add(rank);
        barrier.arrived.clear();
        ++barrier.uses;
    }

    void wait(const char* what, const std::source_location& where) {
        block_thread& self = threads_[at().rank];
        self.waits_in = what;
        self.waits_at = where;
        dispatch(self.control, false);
    }

    // Goes on with a thread that is ready, or outside where none is.
    void dispatch(context& from, bool for_good) {
        context* to = &outside_;
        if (!ready_.empty()) {
            block_thread& next = threads_[ready_.take()];
            detail::here.at = &next.at;
            to = &next.control;
        } else if (num_exited_ < num_threads_) {
            problem_ = deadlock();
        }
        if (for_good) from.leave_for_good(*to);
        if (to != &from) from.leave_to(*to);
    }

    // "threads 0-39 wait in __syncthreads at f:10; threads 40-63 have exited"
    std::string deadlock() const {
        std::map<std::string, std::vector<unsigned>> groups;
        for (unsigned rank = 0; rank < num_threads_; ++rank) {
            const block_thread& thread = threads_[rank];
            groups[thread.exited ? std::string("have exited")
                                 : std::string("wait in ") + thread.waits_in + " at " + place_of(thread.waits_at)]
                .push_back(rank);
        }
        std::string text = "deadlock in block " + block_name() + ": ";
        bool first = true;
        for (const auto& [what, ranks] : groups) {
            text += (first ? "threads " : "; threads ") + ranges(ranks) + " " + what;
            first = false;
        }
        return text;
    }

    std::string block_name() const {
        return "(" + std::to_string(at().block.x) + "," + std::to_string(at().block.y) + "," +
               std::to_string(at().block.z) + ")";
    }

    const grid_options& options_;
    const std::function<void()>& kernel_;
    char& grid_end_;
    unsigned num_threads_;
    std::vector<block_thread> threads_;
    std::vector<warp_meetings> meetings_; // of each warp
    std::array<barrier_state, 16> barriers_;
    std::array<std::array<char, 2>, 16> orders_{}; // of barriers: places that stand for one use of each
    std::vector<std::array<char, 2>> warp_orders_; // of warps
    std::vector<unsigned> warp_syncs_;             // how often each thread came
    ready_threads ready_;
    stack_pool::stacks stacks_; // by rank
    std::unique_ptr<arena> shared_;
    unsigned num_exited_ = 0;
    context outside_;
    std::string problem_;
};

} // namespace

void run_grid(const grid_options& options, const std::function<void()>& kernel) {
    const std::size_t threads = options.block.count();
    if (threads < 1 || threads > 1024)
        throw fault("a block has " + std::to_string(threads) + " threads; it must have 1 to 1024");
    if (options.grid.count() < 1) throw fault("a grid has no blocks; it must have at least one");
    char grid_end = 0;
    seeded_numbers random(options.seed);
    std::vector<std::size_t> blocks(options.grid.count());
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    if (options.order != thread_order::first_in) std::shuffle(blocks.begin(), blocks.end(), random);
    std::unique_ptr<block_run> run;
    for (const std::size_t i : blocks) {
        const extent block{static_cast<unsigned>(i % options.grid.x),
                           static_cast<unsigned>(i / options.grid.x % options.grid.y),
                           static_cast<unsigned>(i / options.grid.x / options.grid.y)};
        if (races::are_looked_for) run = nullptr; // threads and memory that are new to the sanitizer
        if (run == nullptr) run = std::make_unique<block_run>(options, kernel, grid_end);
        run->run(block, random());
    }
    run = nullptr;
    races::acquire(&grid_end);
}

void barrier(unsigned id, unsigned threads, const char* what, const std::source_location& where) {
    running->barrier(id, threads, what, where);
}

void meet_in_warp(std::uint32_t mask, const char* what, void* data, warp_work work, const std::source_location& where) {
    running->meet(mask, what, data, work, where);
}

void sync_warp(const std::source_location& where) {
    running->sync_warp(where);
}

void yield() {
    running->pause();
}

void copy_later(void* shared, const void* global, std::size_t bytes) {
    counters().bytes_read += bytes;
    running->copies().add(shared, global, bytes);
}

void commit_copies() {
    running->copies().commit();
}

void wait_copies(unsigned groups) {
    running->copies().wait(groups);
}

void raise_fault(const std::string& text) {
    running->raise(text);
}

void raise_misaligned(const char* what, std::size_t bytes, const std::source_location& where) {
    raise_fault(std::string(what) + " of " + std::to_string(bytes) +
                " bytes at an address that is no multiple of it: " + describe_here(where));
}

void raise_outside_shared(const char* what, const std::source_location& where) {
    raise_fault(std::string(what) + " outside the block's shared memory: " + describe_here(where));
}

std::string describe_here(const std::source_location& where) {
    return running->describe(where);
}

} // namespace simt
