// The workspace of a step: counted and carved by one function, exact, and nothing in it overlaps.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/decode/buffers.hpp>
#include <ctxpar/merge/dynamic.hpp>

using namespace ctxpar;

namespace {

using chosen = policy<gqa<bf16, 16>, interleave<4>, merge::dynamic>;

decode_shape shape_of(const topology& sizes, output_placement placement, bool merged_lse) {
    decode_shape shape;
    shape.sizes = sizes;
    shape.q_heads = 8;
    shape.max_requests = 3;
    shape.max_rows = 7;
    shape.longest = 64;
    shape.placement = placement;
    shape.merged_lse = merged_lse;
    shape.max_splits = 8;
    return shape;
}

struct piece {
    const void* at;
    std::size_t bytes;
};

} // namespace

TEST_CASE("counting and carving agree, and every buffer is aligned, inside, and on its own") {
    const topology shapes[] = {{}, {.tp = 4, .dcp = 4}, {.tp = 2, .pcp = 2, .dcp = 4}, {.tp = 1, .pcp = 4, .dcp = 2}};
    const cpu_backend backend{{.threads = 2}};
    for (const topology& sizes : shapes) {
        for (const merge_kind kind : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
            for (const std::int64_t mapped : {0, 5}) {
                const chosen policy{{}, {}, {kind}};
                decode_shape shape =
                    shape_of(sizes, mapped > 0 ? output_placement::own_heads : output_placement::all_heads, true);
                shape.mapped_width = mapped;
                const mesh ranks{sizes, {attention_kind::gqa, shape.q_heads, 1}, shape.rules};
                const std::size_t bytes = detail::carve_decode(policy, backend, shape, ranks, nullptr).bytes;
                const host_workspace memory{bytes};
                const workspace lent = memory;
                const auto all = detail::carve_decode(policy, backend, shape, ranks, lent.data);
                REQUIRE(all.bytes == bytes);

                const std::size_t states = 7 * static_cast<std::size_t>(ranks.gathered_heads());
                const piece pieces[] = {
                    {all.arrays.rows, 7 * sizeof(visible_keys)},
                    {all.arrays.segments, 4 * sizeof(segment)},
                    {all.arrays.slots, 7 * sizeof(std::int64_t)},
                    {all.arrays.local_lengths, 3 * sizeof(std::int64_t)},
                    {all.arrays.live, 7 * static_cast<std::size_t>(sizes.dcp)},
                    {all.arrays.row_lengths, 7 * sizeof(std::int64_t)},
                    {all.arrays.row_requests, 7 * sizeof(std::int64_t)},
                    {all.arrays.status, sizeof(step_status)},
                    {all.pass.queries, ranks.distinct_tp() > 1 ? states * 16 * sizeof(bf16) : 0},
                    {all.pass.scratch.split_out, 8 * states * 16 * sizeof(float)},
                    {all.pass.scratch.split_lse, 8 * states * sizeof(float)},
                    {all.pass.unmapped, mapped > 0 ? states * 16 * sizeof(float) : 0},
                    {all.pass.scratch.threads,
                     2 * static_cast<std::size_t>(all.pass.scratch.thread_floats) * sizeof(float)},
                };
                const auto* first = static_cast<const std::byte*>(lent.data);
                std::vector<std::pair<std::size_t, std::size_t>> spans;
                for (const piece& each : pieces) {
                    const auto from = static_cast<std::size_t>(static_cast<const std::byte*>(each.at) - first);
                    CHECK(from % workspace_alignment == 0);
                    CHECK(from + each.bytes <= bytes);
                    if (each.bytes > 0) spans.emplace_back(from, from + each.bytes);
                }
                std::sort(spans.begin(), spans.end());
                for (std::size_t i = 1; i < spans.size(); ++i) CHECK(spans[i - 1].second <= spans[i].first);
            }
        }
    }
}

TEST_CASE("what a topology does not need is not carved") {
    const cpu_backend backend;
    const chosen policy{};
    const auto bytes_of = [&](decode_shape shape) {
        const mesh ranks{shape.sizes, {attention_kind::gqa, shape.q_heads, 1}, shape.rules};
        return detail::carve_decode(policy, backend, shape, ranks, nullptr).bytes;
    };
    decode_shape shape = shape_of({.tp = 4, .dcp = 4}, output_placement::own_heads, false);
    const std::size_t base = bytes_of(shape);
    shape.replicated_q = true; // no gathered queries: [4][7][2][16] bf16
    CHECK(bytes_of(shape) == base - 4 * 7 * 2 * 16 * 2);
    shape.replicated_q = false;
    shape.placement = output_placement::all_heads; // heads are gathered again: [4][7][2][16] bf16
    CHECK(bytes_of(shape) == base + 4 * 7 * 2 * 16 * 2);
    shape.placement = output_placement::own_heads;
    shape.mapped_width = 16; // partial outputs before their map: [7][8][16] fp32
    CHECK(bytes_of(shape) == base + 7 * 8 * 16 * 4);
    shape.unmapped_query_width = 16; // mapped queries: [7][8][16] bf16
    CHECK(bytes_of(shape) == base + 7 * 8 * 16 * 4 + 7 * 8 * 16 * 2);
}
