// 8-bit caches.
#include "runs.hpp"

namespace ctxpar_test {

prefill_result run_gqa_fp8(const prefill_deployment& d, const prefill_data& data) {
    using policy_type = policy<gqa<bf16, dynamic, dynamic, fp8_e4m3>, interleave<>, merge::dynamic>;
    return run_prefill<policy_type>(d, data, policy_for<policy_type>(d), plain_backends(d));
}

prefill_result run_mla_fp8(const prefill_deployment& d, const prefill_data& data) {
    using policy_type = policy<mla<bf16, dynamic, dynamic, fp8_e4m3>, interleave<>, merge::dynamic>;
    return run_prefill<policy_type>(d, data, policy_for<policy_type>(d), plain_backends(d));
}

} // namespace ctxpar_test
