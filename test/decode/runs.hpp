// Deployments over the ranks of the suites, for the element types that are compiled here: the types are fields of the
// deployment. And the check that most tests make of one.
#pragma once

#include <doctest/doctest.h>

#include "../support/decode_ranks.hpp"
#include "../support/drawn.hpp"

namespace ctxpar_test {

// Each in the file that compiles it.
run_result run_gqa_bf16(const deployment& d, const planted_data& data);
run_result run_gqa_f16(const deployment& d, const planted_data& data);
run_result run_gqa_f32(const deployment& d, const planted_data& data);
run_result run_gqa_fp8(const deployment& d, const planted_data& data);
run_result run_mla(const deployment& d, const planted_data& data);
run_result run_narrow_partials(const deployment& d, const planted_data& data);

inline run_result run_once(const deployment& d, const planted_data& data) {
    if (d.is_mla) return run_mla(d, data);
    if (d.partials == partial::output) return run_narrow_partials(d, data);
    if (d.element == scalar_type::f32) return run_gqa_f32(d, data);
    if (d.kv_element == scalar_type::e4m3 || d.kv_element == scalar_type::e5m2) return run_gqa_fp8(d, data);
    if (d.element == scalar_type::f16) return run_gqa_f16(d, data);
    return run_gqa_bf16(d, data);
}

// The same bits on every rank.
inline bool same_bits(const run_result& a, const run_result& b) {
    for (std::size_t rank = 0; rank < a.outputs.size(); ++rank) {
        if (!same_bits(a.outputs[rank].out, b.outputs[rank].out)) return false;
        if (!same_bits(a.outputs[rank].lse, b.outputs[rank].lse)) return false;
    }
    return a.outputs.size() == b.outputs.size();
}

// Where the ranks have a twin, over both, which must give the same bits.
template <class Ranks = suite_ranks>
run_result run(const deployment& d, const planted_data& data) {
    if constexpr (has_twin<Ranks>) {
        auto [result, are_same] = Ranks::twice([&] { return run_once(d, data); },
                                               [](const auto& a, const auto& b) { return same_bits(a, b); });
        INFO(describe(d));
        CHECK(are_same);
        return std::move(result);
    } else {
        return run_once(d, data);
    }
}

// The law of the library: what the ranks return together is what one unsharded attention returns.
inline distance distance_of(const deployment& d) {
    const planted_data data = plant(d);
    const run_result got = run(d, data);
    INFO(describe(d));
    CHECK(got.problem() == "");
    return distance_between(d, expected(d, data), got.outputs);
}

inline void check_always(const deployment& d) {
    const distance far = distance_of(d);
    INFO(describe(d));
    CHECK(far.out <= 1.0);
    CHECK(far.lse <= 1.0);
}

// Of a deployment of a suite, where it is drawn.
inline void check_exact(const deployment& d) {
    if (is_drawn(d)) check_always(d);
}

} // namespace ctxpar_test
