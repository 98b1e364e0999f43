#include "fiber.hpp"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "races.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__) || defined(SIMT_UCONTEXT)
#define SIMT_USES_UCONTEXT 1
#include <ucontext.h>
#else
#define SIMT_USES_UCONTEXT 0
#endif

namespace simt {

fiber_stack::fiber_stack() {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* const place =
        mmap(nullptr, usable_bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (place == MAP_FAILED || mprotect(place, page, PROT_NONE) != 0) std::abort();
    mapped_ = static_cast<std::byte*>(place);
    bottom_ = mapped_ + page;
    constexpr std::size_t step = 128;
    static std::atomic<std::size_t> num_stacks = 0;
    spread_ = num_stacks++ % (spread_bytes / step) * step;
}

fiber_stack::~fiber_stack() {
    munmap(mapped_, usable_bytes + static_cast<std::size_t>(bottom_ - mapped_));
}

stack_pool& stack_pool::shared() {
    static auto& pool = *new stack_pool; // OS threads may end later than static objects
    return pool;
}

stack_pool::stacks stack_pool::take(std::size_t count) {
    stacks taken;
    taken.reserve(count);
    const std::lock_guard lock(mutex_);
    while (taken.size() < count && !free_.empty()) {
        taken.push_back(std::move(free_.back()));
        free_.pop_back();
    }
    while (taken.size() < count) taken.push_back(std::make_unique<fiber_stack>());
    return taken;
}

void stack_pool::give(stacks given, [[maybe_unused]] bool given_up) {
    if (races::are_looked_for) return; // a stack that is mapped anew is new to the sanitizer too
#if defined(__SANITIZE_ADDRESS__)
    if (given_up) // what the functions in which it was have poisoned
        for (const auto& stack : given) __asan_unpoison_memory_region(stack->bottom(), fiber_stack::usable_bytes);
#endif
    const std::lock_guard lock(mutex_);
    while (!given.empty()) { // the first one is the first to be taken again
        free_.push_back(std::move(given.back()));
        given.pop_back();
    }
}

#if SIMT_USES_UCONTEXT
struct context::machine_state {
    ucontext_t registers;
};
#else
struct context::machine_state {};

// Saves the registers that a call must keep, changes stacks, and goes on where the other one was left. It returns, and
// does not jump: contexts are mostly left in the same place, by the same calls, so that the processor expects this
// return and those behind it where they go. After a jump it would be one return behind, and wrong at every one of them.
asm(R"(
.text
.p2align 4
.type simt_switch, @function
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size simt_switch, .-simt_switch
)");
extern "C" void simt_switch(void** save, void* load) asm("simt_switch");
#endif

struct fiber_entry {
#if SIMT_USES_UCONTEXT
    static void run(unsigned high, unsigned low) {
        context::begin(reinterpret_cast<context*>(static_cast<std::uintptr_t>(high) << 32 | low));
    }
#else
    // The first thing on a new stack: what to run was put into a register that a switch keeps. Like a fiber's last
    // call, it does not come back, of which the address sanitizer need not know.
    __attribute__((no_sanitize("address"))) static void run() {
        context* self = nullptr;
        asm volatile("movq %%rbx, %0" : "=r"(self));
        context::begin(self);
    }
#endif
};

context::context() = default;
context::~context() {
    if (owns_race_fiber_) races::destroy_fiber(race_fiber_);
}

void context::start(fiber_stack& stack, void (*run)(void*), void* argument) {
#if defined(__SANITIZE_ADDRESS__)
    // What the functions with which the last fiber on this stack ended have poisoned.
    constexpr std::size_t used = 2 * fiber_stack::spread_bytes;
    __asan_unpoison_memory_region(stack.top() - used, used);
#endif
    run_ = run;
    argument_ = argument;
    fake_stack_ = nullptr;
    if (owns_race_fiber_) races::destroy_fiber(race_fiber_);
    race_fiber_ = races::create_fiber();
    owns_race_fiber_ = true;
    stack_bottom_ = stack.bottom();
    stack_bytes_ = fiber_stack::usable_bytes;
#if SIMT_USES_UCONTEXT
    state_ = std::make_unique<machine_state>();
    getcontext(&state_->registers);
    state_->registers.uc_stack.ss_sp = stack.bottom();
    state_->registers.uc_stack.ss_size = static_cast<std::size_t>(stack.begin() - stack.bottom());
    state_->registers.uc_link = nullptr;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&state_->registers, reinterpret_cast<void (*)()>(&fiber_entry::run), 2,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
#else
    // As simt_switch leaves a stack: six registers and where to go on; then the stack as a call would find it.
    auto* top = reinterpret_cast<std::uintptr_t*>(stack.begin());
    *--top = 0; // no one to return to
    *--top = reinterpret_cast<std::uintptr_t>(&fiber_entry::run);
    for (int i = 0; i < 6; ++i) *--top = 0;
    top[4] = reinterpret_cast<std::uintptr_t>(this); // rbx
    stack_pointer_ = top;
#endif
}

void context::begin(context* self) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(self->fake_stack_, nullptr, nullptr);
#endif
    self->run_(self->argument_);
    std::abort(); // run leaves for good
}

void context::leave([[maybe_unused]] context& to, [[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
    if (stack_bottom_ == nullptr) { // the OS thread's own stack
        pthread_attr_t attributes;
        void* bottom = nullptr;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &bottom, &stack_bytes_);
        pthread_attr_destroy(&attributes);
        stack_bottom_ = bottom;
    }
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, to.stack_bottom_, to.stack_bytes_);
#endif
    if (race_fiber_ == nullptr) race_fiber_ = races::this_fiber();
    races::switch_to_fiber(to.race_fiber_);
#if SIMT_USES_UCONTEXT
    if (state_ == nullptr) state_ = std::make_unique<machine_state>();
    swapcontext(&state_->registers, &to.state_->registers);
#else
    simt_switch(&stack_pointer_, to.stack_pointer_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

void context::leave_for_good(context& to) {
    leave(to, true);
    std::abort();
}

} // namespace simt
