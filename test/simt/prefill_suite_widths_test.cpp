// Prefills with head widths as models have them, the ones for which devices have kernels of their own, on every path.
#include "../prefill/runs.hpp"

using namespace ctxpar_test;

namespace {

prefill_deployment over(std::int64_t pcp, std::int64_t key_width, std::int64_t value_width) {
    prefill_deployment d;
    d.sizes.pcp = d.sizes.dcp = pcp;
    d.q_heads = 2 * pcp;
    d.kv_heads = pcp == 2 ? 2 : 1;
    d.key_width = key_width;
    d.value_width = value_width;
    d.interleave = pcp == 3 ? 16 : 2;
    d.block_size = 16;
    d.context_rows = 16 * d.sizes.dcp * d.interleave;
    d.earlier_steps = pcp % 2;
    d.seed = static_cast<std::uint64_t>(key_width * 10 + pcp);
    d.serve({prefills(0, 33), prefills(40, 9), decodes(65, 2), prefills(31, 1)});
    return d;
}

void both_paths(prefill_deployment d) {
    for (const prefill_path path : {prefill_path::gather_q, prefill_path::gather_kv}) {
        d.prefill_rows = d.decode_rows = path;
        d.merge = static_cast<merge_kind>(d.seed % 3);
        ++d.seed;
        check_always(d);
    }
}

} // namespace

TEST_CASE("prefill rows are exact at every width that models have") {
    for (const auto& [key, value] : {std::array{64, 64}, std::array{96, 96}, std::array{128, 128}, std::array{192, 192},
                                     std::array{256, 256}, std::array{192, 128}}) {
        both_paths(over(1 + key % 3, key, value));
    }
}

TEST_CASE("prefill rows over 8-bit caches are exact at every width that models have") {
    for (const std::int64_t width : {64, 96, 128, 192, 256}) {
        prefill_deployment d = over(1 + width / 32 % 3, width, width);
        d.kv_element = scalar_type::e4m3;
        d.scales = width % 64 == 0 ? scale_choice::token : scale_choice::head;
        d.mask.window = width == 96 ? 32 : 0;
        both_paths(d);
    }
}

TEST_CASE("latent prefill rows of 512 and 64 are exact, absorbed and up-projected") {
    for (const scalar_type type : {scalar_type::bf16, scalar_type::e4m3}) {
        prefill_deployment d = over(type == scalar_type::bf16 ? 2 : 1, 576, 512);
        d.is_mla = true;
        d.kv_heads = 1;
        d.kv_element = type;
        d.serve({prefills(0, 17), prefills(20, 5), decodes(23, 2)});
        both_paths(d);
        d.nope_width = 128;
        d.projected_value_width = 128;
        d.prefill_rows = d.decode_rows = prefill_path::automatic;
        check_always(d);
    }
}
