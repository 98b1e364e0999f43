// Windows, chunks, visible prefixes and draft trees in a batch with prefills are those of the unsharded attention, on
// every path. Where no new row sees a block of context, it may be gone.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

prefill_deployment base(std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
    prefill_deployment d;
    d.sizes.tp = tp;
    d.sizes.pcp = pcp;
    d.sizes.dcp = dcp;
    d.q_heads = 2 * tp * pcp;
    d.interleave = 2;
    d.block_size = 4;
    d.seed = static_cast<std::uint64_t>(tp * 100 + pcp * 10 + dcp);
    d.serve({prefills(0, 23), decodes(66, 3), prefills(45, 18), decodes(30), prefills(70, 1), prefills(19, 5)});
    return d;
}

// Over several groups, with context in few and many chunks, decode rows on either path.
void each_group(const prefill_deployment& wanted) {
    for (const auto& [tp, pcp, dcp] :
         {std::array{1, 2, 2}, std::array{2, 2, 4}, std::array{1, 4, 2}, std::array{2, 1, 2}, std::array{1, 3, 1}}) {
        prefill_deployment d = base(tp, pcp, dcp);
        d.mask = wanted.mask;
        d.tree = wanted.tree;
        d.interleave = d.seed % 2 == 0 ? 1 : 3;
        d.context_rows = dcp * d.interleave * (pcp == 2 ? 3 : 64);
        d.decode_rows = pcp == 2 ? prefill_path::gather_kv : prefill_path::automatic;
        d.split = pcp == 4 ? zigzag_split::padded : zigzag_split::balanced;
        d.seed += static_cast<std::uint64_t>(wanted.mask.window);
        if (!wanted.batch.empty()) d.serve(wanted.batch);
        each_path(d);
    }
}

prefill_deployment masked(const mask_rule& mask) {
    prefill_deployment d;
    d.mask = mask;
    return d;
}

} // namespace

TEST_CASE("a window lets new rows see their last tokens") {
    for (const std::int64_t window : {1, 2, 7, 20, 40, 1000}) each_group(masked({window, 0, 0}));
}

TEST_CASE("chunked attention lets new rows see their own chunk") {
    for (const std::int64_t chunk : {1, 8, 16, 65}) each_group(masked({0, chunk, 0}));
}

TEST_CASE("a prefix stays visible to new rows beside a window or a chunk") {
    for (const mask_rule& mask :
         {mask_rule{9, 0, 4}, mask_rule{0, 32, 5}, mask_rule{30, 64, 33}, mask_rule{9, 0, 128}, mask_rule{5, 0, 1}})
        each_group(masked(mask));
}

TEST_CASE("a window that begins behind the context needs none of it") {
    prefill_deployment d = masked({6, 0, 0});
    d.serve({prefills(30, 40), prefills(1, 20), prefills(64, 13)});
    each_group(d);
    d.mask = {0, 64, 0}; // the new tokens of the last request begin a chunk
    each_group(d);
}

TEST_CASE("rows of a draft tree see their ancestors only, beside prefills") {
    for (const std::int64_t window : {0, 11}) {
        prefill_deployment d = masked({window, 0, 0});
        d.tree = true;
        each_group(d);
        d.serve({decodes(40, 9), prefills(21, 12), decodes(17, 1), decodes(50, 30), prefills(0, 70)});
        each_group(d);
    }
}
