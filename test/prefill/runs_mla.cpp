// Multi-head latent attention, absorbed and up-projected.
#include "runs.hpp"

namespace ctxpar_test {

prefill_result run_mla_bf16(const prefill_deployment& d, const prefill_data& data) {
    using policy_type = policy<mla<bf16, dynamic, dynamic>, interleave<>, merge::dynamic>;
    return run_prefill<policy_type>(d, data, policy_for<policy_type>(d), plain_backends(d));
}

prefill_result run_mla_f32(const prefill_deployment& d, const prefill_data& data) {
    using policy_type = policy<mla<float, dynamic, dynamic>, interleave<>, merge::dynamic>;
    return run_prefill<policy_type>(d, data, policy_for<policy_type>(d), plain_backends(d));
}

} // namespace ctxpar_test
