// Partial outputs that cross ranks in the element type.
#include "runs.hpp"

namespace ctxpar_test {

run_result run_narrow_partials(const deployment& d, const planted_data& data) {
    const auto make = plain_backends(d);
    if (d.element == scalar_type::f16) {
        using policy_type = policy<gqa<f16, dynamic, dynamic>, interleave<>, merge::dynamic, partial::output>;
        return run_ranks<policy_type, f16>(d, data, policy_for<policy_type>(d), make);
    }
    using policy_type = policy<gqa<bf16, dynamic, dynamic>, interleave<>, merge::dynamic, partial::output>;
    if (d.output == scalar_type::f32) return run_ranks<policy_type>(d, data, policy_for<policy_type>(d), make);
    return run_ranks<policy_type, bf16>(d, data, policy_for<policy_type>(d), make);
}

} // namespace ctxpar_test
