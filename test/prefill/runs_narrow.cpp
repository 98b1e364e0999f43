// Partial outputs that cross ranks in the element type.
#include "runs.hpp"

namespace ctxpar_test {

prefill_result run_gqa_narrow(const prefill_deployment& d, const prefill_data& data) {
    using policy_type = policy<gqa<bf16, dynamic, dynamic>, interleave<>, merge::dynamic, partial::output>;
    const auto chosen = policy_for<policy_type>(d);
    if (d.output == scalar_type::f32) return run_prefill<policy_type>(d, data, chosen, plain_backends(d));
    return run_prefill<policy_type, bf16>(d, data, chosen, plain_backends(d));
}

} // namespace ctxpar_test
