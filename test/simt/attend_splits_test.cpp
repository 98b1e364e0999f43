// The splits of keys, and the plain kernel, which takes what matrix units do not.
#include <ctxpar/backend/cuda/attend_plain.cuh>
#include <ctxpar/backend/cuda/attend_splits.cuh>
#include <ctxpar/backend/cuda/attend_tiles.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attend_setting.hpp"
#include "kernels.hpp"

using namespace ctxpar;
using namespace attend_setting;

namespace {

template <class Q, class Kv>
void check_plain(const problem& p, bool wide) {
    setting<Q, Kv> s(p);
    constexpr int columns = 8;
    const auto call = cuda::attend_call_of(s.args());
    simt::launch({3, 64}, cuda::attend_plain_kernel<columns, Q, Kv>, call, wide);
    simt::launch({2, 64}, cuda::combine_splits_kernel<Q>, cuda::splits_call_of(call));
    const distances far = distance(s);
    CHECK(far.out <= 2e-6);
    CHECK(far.lse <= 2e-6);

    std::vector<Q> narrow(s.out.size(), Q(float_nan));
    if constexpr (!std::is_same_v<Q, float>) {
        auto to_narrow = call;
        to_narrow.attend.out.base = nullptr;
        to_narrow.narrow_base = narrow.data();
        simt::launch({3, 64}, cuda::attend_plain_kernel<columns, Q, Kv>, to_narrow, wide);
        simt::launch({2, 64}, cuda::combine_splits_kernel<Q>, cuda::splits_call_of(to_narrow));
        int wrong = 0;
        for (std::size_t i = 0; i < narrow.size(); ++i)
            wrong += static_cast<float>(narrow[i]) != static_cast<float>(Q(s.out[i]));
        CHECK(wrong == 0);
    }
}

} // namespace

TEST_CASE("a request has the same bits alone and in a batch, however it is split") {
    problem p;
    p.requests = {{3000, 2}, {700, 1}, {1900, 1}};
    p.group = 3;
    p.max_splits = 5;
    setting<bf16, bf16> s(p);
    for (segment& run : s.segments) schedule_splits(run, {5, 512, 256});
    CHECK(s.segments[0].splits() == 4);
    CHECK(s.segments[1].splits() == 2);
    using shape = cuda::tiles<64, 64, false, false, 3>;
    const auto run = [&](std::int64_t first, std::int64_t count) {
        auto call = cuda::attend_call_of(s.args());
        call.attend.plan.arrays.segments += first;
        call.attend.plan.segments = count;
        const auto shared = static_cast<std::size_t>(cuda::tile_layout<shape, bf16, bf16>::stages +
                                                     2 * cuda::tile_layout<shape, bf16, bf16>::stage_bytes);
        simt::launch({3, static_cast<unsigned>(shape::shape.threads()), shared},
                     cuda::attend_tiles_kernel<shape, bf16, bf16>, call, 2);
        simt::launch({2, 64}, cuda::combine_splits_kernel<bf16>, cuda::splits_call_of(call));
    };
    run(0, 3);
    CHECK(distance(s).out <= 2e-6);
    const std::vector<float> together = s.out;
    std::fill(s.out.begin(), s.out.end(), float_nan);
    for (std::int64_t i = 0; i < 3; ++i) run(i, 1);
    CHECK(s.out == together);
}

TEST_CASE("the plain kernel is exact with wide reads and without, for splits and outputs of 16 bits too") {
    problem p;
    p.requests = {{150, 2}, {40, 1}, {1300, 1}};
    p.kv_heads = 2;
    p.group = 2;
    p.max_splits = 2;
    p.split_tokens = 1024;
    for (const bool wide : {false, true}) {
        for (const std::int64_t width : {64, 160}) {
            p.key_width = width;
            p.value_width = width == 64 ? 64 : 144;
            check_plain<float, float>(p, wide);
            check_plain<bf16, bf16>(p, wide);
            check_plain<f16, fp8_e4m3>(p, wide);
        }
    }
    p.key_width = 37;
    p.value_width = 3;
    check_plain<bf16, bf16>(p, false);
    check_plain<float, float>(p, false);
}
