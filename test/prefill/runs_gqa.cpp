// Grouped-query attention with a cache of the element type.
#include "runs.hpp"

namespace ctxpar_test {

prefill_result run_gqa_bf16(const prefill_deployment& d, const prefill_data& data) {
    using policy_type = policy<gqa<bf16, dynamic, dynamic>, interleave<>, merge::dynamic>;
    const auto chosen = policy_for<policy_type>(d);
    const auto make = plain_backends(d);
    if (d.lse == lse_base::binary) return run_prefill<policy_type, float, lse_base::binary>(d, data, chosen, make);
    if (d.output != scalar_type::f32) return run_prefill<policy_type, bf16>(d, data, chosen, make);
    return run_prefill<policy_type>(d, data, chosen, make);
}

} // namespace ctxpar_test
