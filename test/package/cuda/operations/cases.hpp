// Decoders of all kinds. One CUDA file instantiates their operations, C++ files the decoders.
#pragma once

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/attention/mla.hpp>
#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/ag_ar.hpp>
#include <ctxpar/merge/ag_rs.hpp>
#include <ctxpar/merge/deferred.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/policy.hpp>

namespace cases {

using namespace ctxpar;

template <class Policy, class Out, lse_base Base = lse_base::natural, class Backend = cuda_backend>
struct decoder_case {
    using policy_type = Policy;
    using out_type = Out;
    using backend_type = Backend;
    static constexpr lse_base base = Base;
};

using grouped = gqa<bf16, 128>;
using by_a2a = decoder_case<policy<grouped, interleave<16>, merge::a2a>, bf16>;
using by_ag_rs = decoder_case<policy<grouped, interleave<1>, merge::ag_rs>, bf16>;
using by_ag_ar = decoder_case<policy<grouped, interleave<>, merge::ag_ar>, bf16>;
using deferred = decoder_case<policy<grouped, interleave<16>, merge::deferred>, bf16>;
using at_run_time = decoder_case<policy<gqa<bf16, dynamic>, interleave<>, merge::dynamic>, float>;
using binary_lse = decoder_case<policy<grouped, interleave<16>, merge::dynamic>, bf16, lse_base::binary>;
using narrow_parts = decoder_case<policy<gqa<f16, 64>, interleave<16>, merge::dynamic, partial::output>, f16>;
using narrow_parts_wide_out = decoder_case<policy<grouped, interleave<16>, merge::ag_rs, partial::output>, float>;
using eight_bits = decoder_case<policy<gqa<bf16, 128, 128, fp8_e4m3>, interleave<16>, merge::ag_ar>, float>;
using plain = decoder_case<policy<gqa<float, 128>, interleave<16>, merge::a2a>, float>;
using latent = decoder_case<policy<mla<bf16, 512, 64>, interleave<16>, merge::a2a>, bf16>;
using rounded = decoder_case<policy<mla<bf16, 512, 64>, interleave<16>, merge::deferred>, float, lse_base::natural,
                             rounding_cuda_backend>;

} // namespace cases

// clang-format off
#define CTXPAR_CASES(use) \
    use(by_a2a) use(by_ag_rs) use(by_ag_ar) use(deferred) use(at_run_time) use(binary_lse) use(narrow_parts) \
    use(narrow_parts_wide_out) use(eight_bits) use(plain) use(latent) use(rounded)
// clang-format on
