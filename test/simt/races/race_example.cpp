// A block whose warps pass numbers on through shared memory, with the barrier that this takes, and without it where an
// argument is given: the thread sanitizer must be silent about the one and speak about the other, also where all
// numbers arrive.
#include <ctxpar/backend/cuda/intrinsics.cuh>

#include <cstdio>

#include "../kernels.hpp"

namespace {

using namespace ctxpar;

// 64 numbers, a thread each.
template <bool Meets>
void pass_on(const int* from, int* to) {
    int* const shared = cuda::shared_array<int>();
    const unsigned own = cuda::thread_index();
    shared[own] = from[own];
    if (Meets) cuda::sync_block();
    to[own] = shared[(own + 32) % 64];
}

} // namespace

int main(int count, char**) {
    int from[64], to[64] = {};
    for (int i = 0; i < 64; ++i) from[i] = i;
    if (count > 1) {
        simt::launch({1, 64, sizeof(from), simt::thread_order::first_in, 1}, pass_on<false>, from, to);
    } else {
        simt::launch({1, 64, sizeof(from), simt::thread_order::first_in, 1}, pass_on<true>, from, to);
        for (int i = 0; i < 64; ++i)
            if (to[i] != (i + 32) % 64) return 1;
    }
    std::puts("done");
    return 0;
}
