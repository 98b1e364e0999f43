// An attention callable as an engine might bring it: lengths only, dense outputs, LSE in base 2, garbage for rows
// without keys. Faults can be switched on, for tests of the probe.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <ctxpar/backend/with_attention.hpp>
#include <ctxpar/core/stream.hpp>

namespace support {

enum class attention_fault { none, natural_base, head_major, one_length, values_off };

template <ctxpar::lse_base Base, attention_fault Fault = attention_fault::none>
struct plain_attention {
    static constexpr ctxpar::lse_base base = Base;
    static constexpr bool takes_intervals = false;
    static constexpr bool strided = false;
    using p_type = float;

    std::size_t plan_bytes(std::int64_t rows, std::int64_t, std::int64_t) const {
        return static_cast<std::size_t>(rows) * sizeof(std::int64_t);
    }

    // Keeps each row's length in the plan's memory, as a kernel library keeps its schedule.
    void prepare(const ctxpar::attention_plan& plan, ctxpar::host_stream) {
        auto* lengths = static_cast<std::int64_t*>(plan.memory);
        for (std::int64_t row = 0; row < plan.rows; ++row) lengths[row] = plan.arrays.row_lengths[row];
        ++prepared;
    }

    template <class Q, class Kv, class O>
    void run(const ctxpar::attention_plan& plan, const ctxpar::head_view<const Q>& q,
             const ctxpar::kv_view<const Kv>& cache, const ctxpar::head_view<O>& out,
             const ctxpar::head_view<ctxpar::lse<Base>>& lse_out, const ctxpar::score_options& score,
             ctxpar::host_stream) {
        const auto* lengths = static_cast<const std::int64_t*>(plan.memory);
        for (std::int64_t row = 0; row < plan.rows; ++row) {
            std::int64_t keys = lengths[row];
            if (Fault == attention_fault::one_length) keys = lengths[plan.rows - 1];
            for (std::int64_t head = 0; head < plan.heads; ++head) {
                const std::int64_t kv_head = head / (plan.heads / plan.kv_heads);
                std::vector<double> sum(static_cast<std::size_t>(out.width));
                double total = 0.0;
                for (std::int64_t j = 0; j < keys; ++j) {
                    const std::int64_t slot = plan.table.slot(plan.arrays.row_requests[row], j);
                    double dot = 0.0;
                    for (std::int64_t d = 0; d < q.width; ++d)
                        dot += static_cast<double>(static_cast<float>(q.at(row, head)[d])) *
                               static_cast<double>(static_cast<float>(cache.key(slot, kv_head)[d]));
                    const double weight = std::exp(dot * score.scale);
                    total += weight;
                    for (std::int64_t d = 0; d < out.width; ++d)
                        sum[static_cast<std::size_t>(d)] +=
                            weight * static_cast<double>(static_cast<float>(cache.value(slot, kv_head)[d]));
                }
                for (std::int64_t d = 0; d < out.width; ++d) {
                    double value = keys > 0 ? sum[static_cast<std::size_t>(d)] / total : std::nan("");
                    if (Fault == attention_fault::values_off) value *= 1.1;
                    out.at(row, head)[d] = static_cast<O>(static_cast<float>(value));
                }
                const bool natural = Base == ctxpar::lse_base::natural || Fault == attention_fault::natural_base;
                const double logarithm = keys > 0 ? (natural ? std::log(total) : std::log2(total)) : 12.5;
                std::int64_t at = lse_out.offset(row, head);
                if (Fault == attention_fault::head_major) at = head * plan.rows + row;
                lse_out.base[at].value = static_cast<float>(logarithm);
            }
        }
        ++runs;
    }

    int prepared = 0;
    int runs = 0;
};

} // namespace support
