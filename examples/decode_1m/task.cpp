#include "task.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace demo {
namespace {

// `value` as an fp8 e4m3 number times `scale`: 4 significant bits, the smallest step 2^-9, at most 448.
float in_fp8(float value, float scale) {
    const float magnitude = std::fabs(value / scale);
    const std::uint32_t exponent = std::max(std::bit_cast<std::uint32_t>(magnitude) >> 23, 127U - 6U);
    const float shift = std::bit_cast<float>((exponent + 20U) << 23) * 1.5F; // its last place is that of the result
    const float rounded = std::min((magnitude + shift) - shift, 448.0F);
    return std::copysign(rounded, value);
}

// What the cache holds of a row of numbers that are exact in bf16 and f16.
void as_cached(const problem& all, float scale, const std::vector<float>& row, double* to) {
    if (all.kv_type == ctxpar::scalar_type::e4m3) {
        for (std::size_t d = 0; d < row.size(); ++d) to[d] = static_cast<double>(in_fp8(row[d], scale)) * scale;
    } else {
        for (std::size_t d = 0; d < row.size(); ++d) to[d] = row[d];
    }
}

} // namespace

void task::token(std::int64_t position, double* key, double* value) const {
    thread_local std::vector<float> row;
    row.resize(static_cast<std::size_t>(all.query_width));
    data.key(layer, request, position, kv_head, row.data());
    as_cached(all, all.k_scale, row, key);
    if (all.is_mla()) {
        std::copy_n(key, all.value_width, value);
        return;
    }
    row.resize(static_cast<std::size_t>(all.value_width));
    data.value(layer, request, position, kv_head, row.data());
    as_cached(all, all.v_scale, row, value);
}

} // namespace demo
