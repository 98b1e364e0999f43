// Partial states merged by the device kernel are those of the CPU backend: the same rules, the same order of adding.
#include <ctxpar/backend/cuda/combine.cuh>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <ctxpar/backend/cpu.hpp>

#include "device_parts.hpp"
#include "kernels.hpp"

using namespace ctxpar;
using namespace device_parts;

namespace {

template <class P, class Out, lse_base Base>
void check_merge(std::int64_t count, std::int64_t rows, std::int64_t heads, std::int64_t width, bool with_sinks) {
    const plain::partials<P> from(count, rows, heads, width, 7);
    const plain::part_list<P, Base> list(from, with_sinks);
    const auto states = static_cast<std::size_t>(rows * heads);
    std::vector<Out> due(states * static_cast<std::size_t>(width));
    std::vector<lse<Base>> due_lse(states);
    cpu_backend().merge(list.parts, dense_view(due.data(), rows, heads, width),
                        dense_view(due_lse.data(), rows, heads, 1), {});
    simt::in_all_orders([&](simt::thread_order order, std::uint64_t seed) {
        std::vector<Out> out(due.size());
        std::vector<lse<Base>> lses(states);
        simt::launch({2, 64, 0, order, seed}, cuda::merge_kernel<P, Out, Base, Base>, on_device(list.parts),
                     dense_view(out.data(), rows, heads, width), dense_view(lses.data(), rows, heads, 1));
        CHECK(all_alike(out, due));
        for (std::size_t i = 0; i < states; ++i) CHECK(alike(lses[i].value, due_lse[i].value));
    });
}

} // namespace

TEST_CASE("merged on a device as on the CPU") {
    for (const bool sinks : {false, true}) {
        check_merge<float, float, lse_base::natural>(3, 5, 3, 80, sinks);
        check_merge<float, bf16, lse_base::binary>(8, 2, 3, 33, sinks);
        check_merge<bf16, float, lse_base::natural>(1, 4, 2, 192, sinks);
        check_merge<bf16, bf16, lse_base::natural>(4, 3, 5, 16, sinks);
    }
}

TEST_CASE("a merge in place of its first part, its LSE included") {
    const std::int64_t rows = 4, heads = 3, width = 40;
    plain::partials<float> from(2, rows, heads, width, 11);
    const plain::part_list<float, lse_base::natural> list(from, false);
    std::vector<float> due(static_cast<std::size_t>(rows * heads * width));
    std::vector<natural_lse> due_lse(static_cast<std::size_t>(rows * heads));
    cpu_backend().merge(list.parts, dense_view(due.data(), rows, heads, width),
                        dense_view(due_lse.data(), rows, heads, 1), {});
    simt::in_all_orders([&](simt::thread_order order, std::uint64_t seed) {
        std::vector<float> out(from.out[0].begin(), from.out[0].end());
        std::vector<natural_lse> lses(due_lse.size());
        for (std::int64_t i = 0; i < rows * heads; ++i)
            lses[static_cast<std::size_t>(i)] = list.parts.lse_of(0, i / heads, i % heads);
        auto parts = on_device(list.parts);
        std::vector<natural_lse> other(lses.size());
        for (std::int64_t i = 0; i < rows * heads; ++i)
            other[static_cast<std::size_t>(i)] = list.parts.lse_of(1, i / heads, i % heads);
        parts.outs.at[0] = out.data();
        parts.lse_behind_vector = false;
        parts.lses.at[0] = lses.data();
        parts.lses.at[1] = other.data();
        const natural_lse* none = nullptr;
        parts.lse_in = dense_view(none, rows, heads, 1);
        simt::launch({1, 64, 0, order, seed}, cuda::merge_kernel<float, float, lse_base::natural, lse_base::natural>,
                     parts, dense_view(out.data(), rows, heads, width), dense_view(lses.data(), rows, heads, 1));
        CHECK(all_alike(out, due));
        for (std::size_t i = 0; i < lses.size(); ++i) CHECK(alike(lses[i].value, due_lse[i].value));
    });
}
