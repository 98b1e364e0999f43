// 8-bit caches.
#include "runs.hpp"

namespace ctxpar_test {

run_result run_gqa_fp8(const deployment& d, const planted_data& data) {
    const auto make = plain_backends(d);
    if (d.kv_element == scalar_type::e5m2) {
        using policy_type = policy<gqa<bf16, dynamic, dynamic, fp8_e5m2>, interleave<>, merge::dynamic>;
        return run_ranks<policy_type>(d, data, policy_for<policy_type>(d), make);
    }
    using policy_type = policy<gqa<bf16, dynamic, dynamic, fp8_e4m3>, interleave<>, merge::dynamic>;
    return run_ranks<policy_type>(d, data, policy_for<policy_type>(d), make);
}

} // namespace ctxpar_test
