#include "block.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "fiber.hpp"
#include "races.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

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

// Shared memory of one size. What lies behind it is poisoned where the address sanitizer looks.
class arena {
public:
    static constexpr std::size_t page = 4096; // more than the 1,024 that are promised

    explicit arena(std::size_t bytes) : bytes_(bytes), memory_(map(room())) {
#if defined(__SANITIZE_ADDRESS__)
        __asan_poison_memory_region(memory_ + bytes_, room() - bytes_);
#endif
    }
    arena(const arena&) = delete;
    arena& operator=(const arena&) = delete;
    ~arena() {
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(memory_, room());
#endif
        munmap(memory_, room());
    }

    void forget() {
        std::memset(memory_, 0xff, bytes_);
    } // NaN in every floating point type
    std::byte* data() const {
        return memory_;
    }
    std::size_t bytes() const {
        return bytes_;
    }

private:
    // Pages of its own: what is mapped anew has no past that a sanitizer would remember.
    static std::byte* map(std::size_t bytes) {
        void* const place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED) throw std::bad_alloc();
        return static_cast<std::byte*>(place);
    }
    std::size_t room() const {
        return (bytes_ + 2 * page - 1) / page * page;
    }
    std::size_t bytes_;
    std::byte* memory_;
};

enum class status : std::uint8_t { ready, waiting, exited };

struct late_copy {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
};

struct block_thread {
    context control;
    std::deque<std::vector<late_copy>> copies; // groups on their way, the last one not committed

    std::unique_ptr<fiber_stack> stack;
    status state = status::ready;
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
    std::uint32_t arrived = 0;
    const char* what = "";
    std::source_location where;
    std::array<void*, warp_size> data{};
};

class block_run;
thread_local block_run* running = nullptr;

class block_run {
public:
    // `grid_end` stands for the end of all blocks.
    block_run(const grid_options& options, const std::function<void()>& kernel, arena& shared, char& grid_end,
              std::uint64_t seed)
        : options_(options), kernel_(kernel), shared_(shared), grid_end_(grid_end), random_(seed),
          num_threads_(static_cast<unsigned>(options.block.count())), threads_(num_threads_),
          meetings_((num_threads_ + warp_size - 1) / warp_size), warp_orders_(meetings_.size()),
          warp_syncs_(num_threads_) {}

    void run(const extent& block) {
        at_.block = block;
        at_.block_size = options_.block;
        at_.grid_size = options_.grid;
        shared_.forget();
        stack_pool& pool = stack_pool::of_this_thread();
        for (unsigned rank = 0; rank < num_threads_; ++rank) {
            threads_[rank].stack = pool.take();
            threads_[rank].control.start(
                *threads_[rank].stack, [](void*) { running->thread_main(); }, nullptr);
            make_ready(rank);
        }
        running = this;
        dispatch(outside_, false);
        running = nullptr;
        for (block_thread& thread : threads_) pool.give(std::move(thread.stack));
        if (!problem_.empty()) throw fault(problem_);
    }

    const thread_position& at() const { return at_; }
    arena& shared() { return shared_; }

    void barrier(unsigned id, unsigned expected, const char* what, const std::source_location& where) {
        if (id >= barriers_.size())
            raise("barrier " + std::to_string(id) + " does not exist; there are 0 to 15: " + describe(where));
        barrier_state& here = barriers_[id];
        if (!here.arrived.empty() && here.expected != expected)
            raise(describe(where) + " comes to barrier " + std::to_string(id) + " with " + std::to_string(expected) +
                  " threads; others wait there for " + std::to_string(here.expected));
        here.expected = expected;
        here.arrived.push_back(at_.rank);
        void* const order = &orders_[id][here.uses % 2];
        races::release(order);
        if (is_full(here)) {
            release(here, at_.rank);
            pause();
        } else {
            wait(what, where);
        }
        races::acquire(order);
    }

    void meet(std::uint32_t mask, const char* what, void* data, warp_work work, const std::source_location& where) {
        const unsigned lane = at_.rank % warp_size;
        if ((mask >> lane & 1U) == 0) raise(describe(where) + " calls " + what + " with a mask that does not name it");
        auto& meetings = meetings_[at_.rank / warp_size];
        warp_meeting& here = meetings[mask];
        if (here.arrived != 0 && std::strcmp(here.what, what) != 0)
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
        const warp_meeting all = here;
        meetings.erase(mask);
        work(all.data.data(), mask);
        const unsigned first = at_.rank - lane;
        for (unsigned other = 0; other < warp_size; ++other)
            if ((mask >> other & 1U) != 0 && other != lane) make_ready(first + other);
        pause();
    }

    void copy_later(const late_copy& copy) {
        races::writes(copy.to, copy.bytes);
        std::memset(copy.to, 0xff, copy.bytes);
        auto& groups = threads_[at_.rank].copies;
        if (groups.empty()) groups.emplace_back();
        groups.back().push_back(copy);
    }
    void commit_copies() {
        auto& groups = threads_[at_.rank].copies;
        if (groups.empty()) groups.emplace_back();
        groups.emplace_back();
    }
    void wait_copies(unsigned keep) {
        auto& groups = threads_[at_.rank].copies;
        while (groups.size() > std::size_t{1} + keep) { // the one that is not committed stays
            for (const late_copy& copy : groups.front()) {
                races::reads(copy.from, copy.bytes);
                races::writes(copy.to, copy.bytes);
                std::memcpy(copy.to, copy.from, copy.bytes);
            }
            groups.pop_front();
        }
    }

    void sync_warp(const std::source_location& where) {
        const unsigned warp = at_.rank / warp_size;
        void* const order = &warp_orders_[warp][warp_syncs_[at_.rank]++ % 2];
        races::release(order);
        meet(
            0xffffffffU, "sync_warp", nullptr, [](void* const*, std::uint32_t) {}, where);
        races::acquire(order);
    }

    // Gives control away; the running thread stays ready.
    void pause() {
        make_ready(at_.rank);
        dispatch(threads_[at_.rank].control, false);
    }

    // Unwinds the thread, so that what its kernel has is given back; see thread_main.
    [[noreturn]] void raise(const std::string& text) { throw fault(text); }

    std::string describe(const std::source_location& where) const {
        return "thread " + std::to_string(at_.rank) + " (warp " + std::to_string(at_.rank / warp_size) + ", lane " +
               std::to_string(at_.rank % warp_size) + ") of block " + block_name() + " at " + place_of(where);
    }

private:
    void thread_main() {
        try {
            kernel_();
        } catch (const std::exception& problem) {
            problem_ = problem.what();
        }
        races::release(&grid_end_);
        if (!problem_.empty()) threads_[at_.rank].control.leave_for_good(outside_);
        block_thread& self = threads_[at_.rank];
        self.state = status::exited;
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
            if (rank != except) make_ready(rank);
        const unsigned uses = barrier.uses + 1;
        barrier = {};
        barrier.uses = uses;
    }

    void wait(const char* what, const std::source_location& where) {
        block_thread& self = threads_[at_.rank];
        self.state = status::waiting;
        self.waits_in = what;
        self.waits_at = where;
        dispatch(self.control, false);
    }

    void make_ready(unsigned rank) {
        threads_[rank].state = status::ready;
        ready_.push_back(rank);
    }

    // Goes on with a thread that is ready, or outside where none is.
    void dispatch(context& from, bool for_good) {
        context* to = &outside_;
        if (!ready_.empty()) {
            const unsigned next = take_ready();
            at_.rank = next;
            at_.thread = {next % options_.block.x, next / options_.block.x % options_.block.y,
                          next / options_.block.x / options_.block.y};
            to = &threads_[next].control;
        } else if (num_exited_ < num_threads_) {
            problem_ = deadlock();
        }
        if (for_good) from.leave_for_good(*to);
        if (to != &from) from.leave_to(*to);
    }

    unsigned take_ready() {
        std::size_t index = 0;
        if (options_.order == thread_order::any) index = random_() % ready_.size();
        if (options_.order == thread_order::one_warp) {
            const auto same_warp = [&](unsigned rank) { return rank / warp_size == warp_; };
            if (std::none_of(ready_.begin(), ready_.end(), same_warp))
                warp_ = ready_[random_() % ready_.size()] / warp_size;
            index = static_cast<std::size_t>(std::find_if(ready_.begin(), ready_.end(), same_warp) - ready_.begin());
        }
        const unsigned rank = ready_[index];
        if (index == 0) {
            ready_.pop_front();
        } else {
            ready_[index] = ready_.back();
            ready_.pop_back();
        }
        return rank;
    }

    // "threads 0-39 wait in __syncthreads at f:10; threads 40-63 have exited"
    std::string deadlock() const {
        std::map<std::string, std::vector<unsigned>> groups;
        for (unsigned rank = 0; rank < num_threads_; ++rank) {
            const block_thread& thread = threads_[rank];
            groups[thread.state == status::exited
                       ? std::string("have exited")
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
        return "(" + std::to_string(at_.block.x) + "," + std::to_string(at_.block.y) + "," +
               std::to_string(at_.block.z) + ")";
    }

    const grid_options& options_;
    const std::function<void()>& kernel_;
    arena& shared_;
    char& grid_end_;
    std::mt19937_64 random_;
    unsigned num_threads_;
    std::vector<block_thread> threads_;
    std::vector<std::map<std::uint32_t, warp_meeting>> meetings_; // of each warp, by mask
    std::array<barrier_state, 16> barriers_;
    std::array<std::array<char, 2>, 16> orders_{}; // of barriers: places that stand for one use of each
    std::vector<std::array<char, 2>> warp_orders_; // of warps
    std::vector<unsigned> warp_syncs_;             // how often each thread came
    std::deque<unsigned> ready_;
    unsigned num_exited_ = 0;
    unsigned warp_ = 0;
    context outside_;
    thread_position at_;
    std::string problem_;
};

} // namespace

void run_grid(const grid_options& options, const std::function<void()>& kernel) {
    const std::size_t threads = options.block.count();
    if (threads < 1 || threads > 1024)
        throw fault("a block has " + std::to_string(threads) + " threads; it must have 1 to 1024");
    if (options.grid.count() < 1) throw fault("a grid has no blocks; it must have at least one");
    char grid_end = 0;
    std::mt19937_64 random(options.seed);
    std::vector<std::size_t> blocks(options.grid.count());
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
    if (options.order != thread_order::first_in) std::shuffle(blocks.begin(), blocks.end(), random);
    for (const std::size_t i : blocks) {
        const extent block{static_cast<unsigned>(i % options.grid.x),
                           static_cast<unsigned>(i / options.grid.x % options.grid.y),
                           static_cast<unsigned>(i / options.grid.x / options.grid.y)};
        arena shared(options.shared_bytes);
        block_run(options, kernel, shared, grid_end, random()).run(block);
    }
    races::acquire(&grid_end);
}

const thread_position& position() {
    return running->at();
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

std::byte* shared_memory() {
    return running->shared().data();
}

std::size_t shared_bytes() {
    return running->shared().bytes();
}

bool is_shared(const void* place, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(place);
    const arena& shared = running->shared();
    return first >= shared.data() && bytes <= shared.bytes() &&
           static_cast<std::size_t>(first - shared.data()) <= shared.bytes() - bytes;
}

void copy_later(void* shared, const void* global, std::size_t bytes) {
    counters().bytes_read += bytes;
    running->copy_later({shared, global, bytes});
}

void commit_copies() {
    running->commit_copies();
}

void wait_copies(unsigned groups) {
    running->wait_copies(groups);
}

traffic& counters() {
    thread_local traffic counted;
    return counted;
}

void raise_fault(const std::string& text) {
    running->raise(text);
}

std::string describe_here(const std::source_location& where) {
    return running->describe(where);
}

} // namespace simt
