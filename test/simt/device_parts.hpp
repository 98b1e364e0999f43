// Partial states as device kernels take them, and comparisons that let NaN be NaN.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cuda/combine.cuh>

#include "../backend/plain_partials.hpp"

namespace device_parts {

using namespace ctxpar;

template <class P, lse_base Base>
cuda::parts_on_device<P, Base> on_device(const merge_parts<P, Base>& parts) {
    cuda::parts_on_device<P, Base> list{};
    list.lse_behind_vector = parts.lse_parts == nullptr;
    for (std::int64_t i = 0; i < parts.count; ++i) {
        list.outs.at[i] = parts.out_parts[i];
        if (parts.lse_parts != nullptr) list.lses.at[i] = parts.lse_parts[i];
    }
    list.count = parts.count;
    list.out = parts.out;
    list.lse_in = parts.lse_in;
    list.live = parts.live;
    list.live_stride = parts.live_stride;
    list.sinks = parts.sinks;
    return list;
}

// Equal, or not a number on both sides.
template <class T>
bool alike(const T& a, const T& b) {
    return std::memcmp(&a, &b, sizeof(T)) == 0 ||
           (static_cast<float>(a) != static_cast<float>(a) && static_cast<float>(b) != static_cast<float>(b));
}

template <class Out>
bool all_alike(const std::vector<Out>& a, const std::vector<Out>& b) {
    bool equal = a.size() == b.size();
    for (std::size_t i = 0; equal && i < a.size(); ++i) equal = alike(a[i], b[i]);
    return equal;
}

} // namespace device_parts
