// Scaled, summed, packed and converted on a device as on the CPU.
#include <ctxpar/backend/cuda/combine.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include <ctxpar/backend/cpu.hpp>

#include "device_parts.hpp"
#include "kernels.hpp"

using namespace ctxpar;
using namespace device_parts;

namespace {

template <class P, lse_base Base>
void check_scale(std::int64_t width, bool sinks) {
    const std::int64_t rows = 5, heads = 6;
    const plain::partials<P> from(3, rows, heads, width, 19);
    const plain::part_list<P, Base> list(from, sinks);
    const state_origin first{1, 2};
    for (std::int64_t part = 0; part < 3; ++part) {
        const auto own = dense_view(from.out[static_cast<std::size_t>(part)].data(), rows, heads, width);
        std::vector<P> due(from.out[0].size());
        std::vector<lse<Base>> due_lse(3 * 3);
        cpu_backend().scale(list.parts, part, own, dense_view(due.data(), rows, heads, width), first,
                            dense_view(due_lse.data(), 3, 3, 1), {});
        simt::in_all_orders([&](simt::thread_order order, std::uint64_t seed) {
            std::vector<P> scaled = from.out[static_cast<std::size_t>(part)]; // in place
            std::vector<lse<Base>> lses(due_lse.size());
            simt::launch({3, 64, 0, order, seed}, cuda::scale_kernel<P, Base, Base>, on_device(list.parts), part,
                         dense_view<const P>(scaled.data(), rows, heads, width),
                         dense_view(scaled.data(), rows, heads, width), first, dense_view(lses.data(), 3, 3, 1));
            CHECK(all_alike(scaled, due));
            for (std::size_t i = 0; i < lses.size(); ++i) CHECK(alike(lses[i].value, due_lse[i].value));
        });
    }
}

template <class P, class Out>
void check_sum(std::int64_t width) {
    const std::int64_t rows = 3, heads = 4;
    const plain::partials<P> from(5, rows, heads, width, 23);
    cuda::part_list parts{};
    std::vector<const void*> pointers;
    for (const auto& one : from.out) pointers.push_back(one.data());
    for (std::size_t i = 0; i < pointers.size(); ++i) parts.at[i] = pointers[i];
    const P* none = nullptr;
    std::vector<Out> due(from.out[0].size()), out(due.size());
    cpu_backend().sum_parts(pointers.data(), 5, dense_view(none, rows, heads, width),
                            dense_view(due.data(), rows, heads, width), {});
    simt::launch({2, 32}, cuda::sum_parts_kernel<P, Out>, parts, std::int64_t{5}, dense_view(none, rows, heads, width),
                 dense_view(out.data(), rows, heads, width));
    CHECK(all_alike(out, due));
}

template <class P>
void check_pack(std::int64_t width) {
    const std::int64_t rows = 3, heads = 4, pitch = width + static_cast<std::int64_t>(4 / sizeof(P));
    const plain::partials<P> from(1, rows, heads, width, 29);
    std::vector<natural_lse> lses(static_cast<std::size_t>(rows * heads));
    for (std::size_t i = 0; i < lses.size(); ++i)
        lses[i].value = i == 5 ? -float_infinity : 0.37F * static_cast<float>(i);
    std::vector<P> due(static_cast<std::size_t>(rows * heads * pitch)), packed(due.size());
    const auto out = dense_view(from.out[0].data(), rows, heads, width);
    const auto lse_in = dense_view<const natural_lse>(lses.data(), rows, heads, 1);
    cpu_backend().pack(out, lse_in, blocked_view(due.data(), 2, rows, heads / 2, width, pitch), {});
    simt::launch({2, 64}, cuda::pack_kernel<P, lse_base::natural>, out, lse_in,
                 blocked_view(packed.data(), 2, rows, heads / 2, width, pitch));
    CHECK(std::memcmp(packed.data(), due.data(), due.size() * sizeof(P)) == 0);
}

} // namespace

TEST_CASE("scaled on a device as on the CPU, in place, with the LSEs that are wanted") {
    for (const bool sinks : {false, true}) {
        check_scale<float, lse_base::natural>(33, sinks);
        check_scale<bf16, lse_base::binary>(64, sinks);
    }
}

TEST_CASE("parts are summed in their order") {
    check_sum<float, float>(50);
    check_sum<bf16, float>(32);
    check_sum<float, bf16>(7);
}

TEST_CASE("packed vectors carry their LSE at any alignment") {
    check_pack<float>(5);
    check_pack<bf16>(6);
    check_pack<bf16>(5);
}

TEST_CASE("converted values are those of the CPU") {
    const plain::partials<float> from(1, 4, 6, 20, 31);
    std::vector<bf16> due(4 * 3 * 20), out(due.size());
    cpu_backend().copy(dense_view(from.out[0].data(), 4, 6, 20), 2, dense_view(due.data(), 4, 3, 20), {});
    simt::launch({2, 32}, cuda::convert_kernel<float, bf16>, dense_view(from.out[0].data(), 4, 6, 20), std::int64_t{2},
                 dense_view(out.data(), 4, 3, 20));
    CHECK(all_alike(out, due));
}
