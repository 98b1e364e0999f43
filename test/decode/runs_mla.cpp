// Multi-head latent attention, with a cache of bf16 or e4m3.
#include "runs.hpp"

namespace ctxpar_test {

run_result run_mla(const deployment& d, const planted_data& data) {
    const auto make = plain_backends(d);
    if (d.kv_element == scalar_type::e4m3) {
        using policy_type = policy<mla<bf16, dynamic, dynamic, fp8_e4m3>, interleave<>, merge::dynamic>;
        return run_ranks<policy_type>(d, data, policy_for<policy_type>(d), make);
    }
    using policy_type = policy<mla<bf16, dynamic, dynamic>, interleave<>, merge::dynamic>;
    if (d.output != scalar_type::f32) return run_ranks<policy_type, bf16>(d, data, policy_for<policy_type>(d), make);
    return run_ranks<policy_type>(d, data, policy_for<policy_type>(d), make);
}

} // namespace ctxpar_test
