// exchange: the bytes that each rank sends in one layer, and the collectives it makes.
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/exchange.hpp>

#include "arguments.hpp"

namespace inspect {
namespace {

struct options {
    std::string attention, merge, placement; // none: scattered, or partial_sums where that is what the merge leaves
    std::int64_t q_heads = 0, ranks = 0, rows = 0, element_bytes = 0;
    std::optional<std::int64_t> head_dim, latent, rope, output_bytes, distinct_tp;
    bool replicated_q = false;
};

void check_usage(const options& given) {
    const bool mla = given.attention == "mla";
    ctxpar::require(mla || given.head_dim, "usage", "--attention gqa needs --head-dim");
    ctxpar::require(mla || (!given.latent && !given.rope), "usage", "--latent and --rope belong to --attention mla");
    ctxpar::require(!mla || !given.head_dim, "usage",
                    "--head-dim belongs to --attention gqa; mla has --latent and --rope");
}

ctxpar::output_placement placement_of(const options& given) {
    const bool shares = ctxpar::merge_named(given.merge) == ctxpar::merge_kind::deferred;
    ctxpar::require(given.placement.empty() || shares == (given.placement == "partial_sums"), "placement", "--merge ",
                    given.merge, " and --placement ", given.placement,
                    " do not fit: partial_sums are what deferred leaves, and nothing else");
    if (shares) return ctxpar::output_placement::partial_sums;
    return given.placement == "own_heads" ? ctxpar::output_placement::own_heads : ctxpar::output_placement::scattered;
}

ctxpar::exchange_shape shape_of(const options& given) {
    const bool mla = given.attention == "mla";
    const std::int64_t latent = given.latent.value_or(512), rope = given.rope.value_or(64);
    ctxpar::exchange_shape shape;
    shape.ranks = given.ranks;
    shape.distinct_tp = given.distinct_tp.value_or(given.ranks);
    shape.rows = given.rows;
    shape.gathered_heads = given.q_heads;
    shape.value_width = mla ? latent : given.head_dim.value_or(0);
    shape.query_bytes = given.element_bytes;
    shape.partial_bytes = given.output_bytes.value_or(given.element_bytes);
    shape.output_bytes = shape.partial_bytes;
    shape.replicated_q = given.replicated_q;
    shape.placement = placement_of(given);

    constexpr std::int64_t most_ranks = 2147483647;
    ctxpar::require(shape.ranks >= 1 && shape.ranks <= most_ranks, "ranks", "there are ", shape.ranks,
                    " ranks; there must be at least 1 and at most ", most_ranks);
    ctxpar::require(shape.scatters(), "scatter_heads", "the ", shape.gathered_heads,
                    " gathered heads are not a multiple of the ", shape.ranks, " ranks; they must be");
    const auto at_least_one = [](const char* name, std::int64_t value) {
        ctxpar::require(value >= 1, "size", name, " is ", value, "; it must be at least 1");
    };
    at_least_one("--q-heads", shape.gathered_heads);
    ctxpar::require(shape.rows >= 0, "size", "--rows is ", shape.rows, "; it must be at least 0");
    if (mla) at_least_one("--latent", latent);
    if (mla) at_least_one("--rope", rope);
    if (!mla) at_least_one("--head-dim", shape.value_width);
    at_least_one("--element-bytes", shape.query_bytes);
    at_least_one("--output-bytes", shape.partial_bytes);
    at_least_one("--distinct-tp", shape.distinct_tp);
    ctxpar::require(shape.ranks % shape.distinct_tp == 0, "size", "--distinct-tp is ", shape.distinct_tp,
                    "; it must divide the ", shape.ranks, " ranks");

    // Byte counts are products of all of these; a bound that is easy to see keeps every one of them in 64 bits.
    const double bytes = static_cast<double>(shape.ranks) * static_cast<double>(std::max<std::int64_t>(shape.rows, 1)) *
                         static_cast<double>(shape.gathered_heads) *
                         (static_cast<double>(shape.value_width) + static_cast<double>(mla ? rope : 4)) *
                         static_cast<double>(std::max({shape.query_bytes, shape.partial_bytes, std::int64_t{4}}));
    ctxpar::require(bytes < 0x1p60, "size", "the sizes multiply to about ", fmt::format("{:.3g}", bytes),
                    " bytes; ranks x rows x heads x width x bytes must be below 2^60");
    shape.query_width = mla ? latent + rope : shape.value_width;
    return shape;
}

answer run(const options& given) {
    const ctxpar::exchange_shape shape = shape_of(given);
    const ctxpar::merge::dynamic merge{ctxpar::merge_named(given.merge)};
    const ctxpar::exchange_bytes sent = ctxpar::exchange(merge, shape);

    answer result;
    table rows({"step", "bytes sent by each rank"});
    const auto add = [&](const char* name, std::uint64_t bytes) {
        result.values[name] = bytes;
        rows.row({name, fmt::format("{}", bytes)});
    };
    add("gather_q", sent.gather_q);
    add("gather_lse", sent.gather_lse);
    add("outputs", sent.outputs);
    if (ctxpar::restore_of(merge.scatters_heads(), shape).size > 1) add("regather", sent.regather);
    add("total", sent.total);
    result.values["collectives"] = sent.collectives;
    result.text = rows.text() + fmt::format("in {} collectives:", sent.collectives);
    const ctxpar::collective_schedule schedule = ctxpar::layer_schedule(merge, shape);
    for (int i = 0; i < schedule.count; ++i) {
        const ctxpar::collective_call& call = schedule.calls[static_cast<std::size_t>(i)];
        result.text +=
            fmt::format("{} {} of {} over {} ranks", i == 0 ? "" : ",", name_of(call.op), call.what, call.size);
    }
    result.text += sent.collectives == 0 ? " one rank sends nothing\n" : "\n";
    return result;
}

} // namespace

std::function<answer()> exchange_command(CLI::App& app) {
    const auto given = std::make_shared<options>();
    word(app, need::required, "--attention", given->attention, {"gqa", "mla"}, "kind of attention");
    number(app, need::required, "--q-heads", given->q_heads, "heads that a rank evaluates, after the gather");
    number(app, need::required, "--ranks", given->ranks, "ranks that share the KV");
    number(app, need::required, "--rows", given->rows, "query rows");
    number(app, "--head-dim", given->head_dim, "gqa: width of a head");
    number(app, "--latent", given->latent, "mla: width of the latent (512)");
    number(app, "--rope", given->rope, "mla: width of the rope part (64)");
    number(app, need::required, "--element-bytes", given->element_bytes, "bytes of an element of Q");
    word(app, need::required, "--merge", given->merge, {"ag_rs", "ag_ar", "a2a", "deferred"},
         "how partial outputs are merged");
    flag(app, "--replicated-q", given->replicated_q, "every rank projects all queries of its group");
    number(app, "--output-bytes", given->output_bytes, "bytes of an element of the outputs (as of Q)");
    number(app, "--distinct-tp", given->distinct_tp, "different tp ranks in the group (all)");
    word(app, need::optional, "--placement", given->placement, {"scattered", "own_heads", "partial_sums"},
         "what a rank holds in the end (scattered; with deferred partial_sums)");
    return [given] {
        check_usage(*given);
        return run(*given);
    };
}

} // namespace inspect
