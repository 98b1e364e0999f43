// Grouped-query attention with a cache of the element type.
#include "runs.hpp"

namespace ctxpar_test {

run_result run_gqa_bf16(const deployment& d, const planted_data& data) {
    using policy_type = policy<gqa<bf16, dynamic, dynamic>, interleave<>, merge::dynamic>;
    const auto chosen = policy_for<policy_type>(d);
    const auto make = plain_backends(d);
    if (d.output != scalar_type::f32) return run_ranks<policy_type, bf16>(d, data, chosen, make);
    if (d.lse == lse_base::binary) return run_ranks<policy_type, float, lse_base::binary>(d, data, chosen, make);
    return run_ranks<policy_type>(d, data, chosen, make);
}

run_result run_gqa_f16(const deployment& d, const planted_data& data) {
    using policy_type = policy<gqa<f16, dynamic, dynamic>, interleave<>, merge::dynamic>;
    const auto chosen = policy_for<policy_type>(d);
    return run_ranks<policy_type, f16>(d, data, chosen, plain_backends(d));
}

run_result run_gqa_f32(const deployment& d, const planted_data& data) {
    using policy_type = policy<gqa<float, dynamic, dynamic>, interleave<>, merge::dynamic>;
    return run_ranks<policy_type>(d, data, policy_for<policy_type>(d), plain_backends(d));
}

} // namespace ctxpar_test
