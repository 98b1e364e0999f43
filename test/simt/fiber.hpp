// Fibers: many small threads of control on one OS thread, switched by hand. The emulator runs every thread of a CUDA
// block as one.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace simt {

// A stack with a page that no one may touch below it.
class fiber_stack {
public:
    static constexpr std::size_t usable_bytes = 64 * 1024;

    fiber_stack();
    fiber_stack(const fiber_stack&) = delete;
    fiber_stack& operator=(const fiber_stack&) = delete;
    ~fiber_stack();

    std::byte* bottom() const { return bottom_; }
    std::byte* top() const { return bottom_ + usable_bytes; }
    // Where a fiber begins: a little below the top, at most `spread_bytes`, and differently for stacks that follow each
    // other, so that what all of them use most does not share a few lines of the processor's cache.
    std::byte* begin() const { return top() - spread_; }
    static constexpr std::size_t spread_bytes = 4096;

private:
    std::byte* mapped_;
    std::byte* bottom_;
    std::size_t spread_;
};

// Stacks that are used again, by all OS threads: those that stand for ranks come and go.
class stack_pool {
public:
    using stacks = std::vector<std::unique_ptr<fiber_stack>>;

    static stack_pool& shared();
    stacks take(std::size_t count);
    // `given_up`: on some of them a fiber was left that did not come to its end.
    void give(stacks given, bool given_up = false);

private:
    std::mutex mutex_;
    stacks free_;
};

// Where control is kept while it is elsewhere: that of a fiber, or of the OS thread that runs fibers.
class context {
public:
    context(); // of the running OS thread; filled when it is left
    context(const context&) = delete;
    context& operator=(const context&) = delete;
    ~context();

    // Makes this the start of a fiber on `stack`: run(argument), which ends by leaving for the last time.
    void start(fiber_stack& stack, void (*run)(void*), void* argument);

    // Leaves this context, which is running, and goes on where `to` was left.
    void leave_to(context& to) { leave(to, false); }
    // The same for a fiber that is never entered again. It does not come back, but is not declared so: the address
    // sanitizer does a lot before such a call.
    void leave_for_good(context& to);

private:
    struct machine_state;
    static void begin(context* self);
    void leave(context& to, bool for_good);
    friend struct fiber_entry;

    void* stack_pointer_ = nullptr; // where registers are saved
    std::unique_ptr<machine_state> state_;
    void (*run_)(void*) = nullptr;
    void* argument_ = nullptr;
    const void* stack_bottom_ = nullptr; // what the address sanitizer is told
    std::size_t stack_bytes_ = 0;
    void* fake_stack_ = nullptr;
    void* race_fiber_ = nullptr; // as the thread sanitizer knows it
    bool owns_race_fiber_ = false;
};

} // namespace simt
