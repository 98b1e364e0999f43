// What a decode call sends and launches is what its schedule, the byte formulas and the README say.
#include "runs.hpp"

using namespace ctxpar_test;

namespace {

// The bytes each rank sends, by the formulas in merge/exchange.hpp, written out once more.
std::uint64_t bytes_by_hand(const deployment& d) {
    const std::int64_t n = d.sizes.dcp, m = n <= d.sizes.pcp ? 1 : n / d.sizes.pcp;
    if (n == 1) return 0;
    const std::int64_t heads = d.q_heads / d.sizes.tp * m, rows = d.rows();
    const std::int64_t wide = d.partials == partial::fp32 ? 4 : 2;
    std::int64_t sum = d.replicated_q ? 0 : (m - 1) * rows * (heads / m) * d.key_width * 2;
    const bool scatters = d.merge == merge_kind::a2a || d.merge == merge_kind::ag_rs;
    if (d.merge == merge_kind::deferred) {
        sum += (n - 1) * rows * heads * 4;
    } else if (d.merge == merge_kind::a2a) {
        sum += (n - 1) * rows * (heads / n) * (d.value_width * wide + 4);
    } else {
        const std::int64_t chunk = (rows * heads * d.value_width + n - 1) / n * wide;
        sum += (n - 1) * rows * heads * 4 + (n - 1) * chunk * (scatters ? 1 : 2);
    }
    const std::int64_t ranks = d.placement == output_placement::all_heads   ? n
                               : d.placement == output_placement::own_heads ? n / m
                                                                            : 1;
    if (scatters) {
        const std::int64_t lse = d.merged_lse && d.merge == merge_kind::a2a ? 4 : 0;
        const std::int64_t element = d.output == scalar_type::f32 ? 4 : 2;
        sum += (ranks - 1) * rows * (heads / n) * (d.value_width * element + lse);
    }
    return static_cast<std::uint64_t>(sum);
}

// Operations of one layer: attend, those of the merge, and one copy for every gather that does not end in place.
std::uint64_t launches_by_hand(const deployment& d) {
    const std::int64_t n = d.sizes.dcp, m = n <= d.sizes.pcp ? 1 : n / d.sizes.pcp;
    if (n == 1) return d.sinks ? 2 : 1;
    if (d.merge == merge_kind::deferred) { // and a copy where partials are of another type than the output
        return (d.partials == partial::fp32) == (d.output == scalar_type::f32) ? 2 : 3;
    }
    std::uint64_t count = d.merge == merge_kind::a2a ? 2 : (d.merge == merge_kind::ag_rs ? 3 : 4);
    const bool gathers_again = d.merge != merge_kind::ag_ar && (d.placement == output_placement::all_heads ||
                                                                (d.placement == output_placement::own_heads && m < n));
    if (gathers_again) count += d.merge == merge_kind::a2a && d.merged_lse ? 2 : 1;
    const bool packs = d.partials == partial::output && d.value_width % 2 != 0;
    if (d.merge == merge_kind::a2a && packs) ++count;
    return count;
}

void check_traffic(const deployment& d) {
    const planted_data data = plant(d);
    const run_result got = run(d, data);
    INFO(describe(d));
    for (const rank_report& report : got.reports) {
        CHECK(report.bytes_sent == bytes_by_hand(d));
        CHECK(report.bytes_sent == report.schedule.bytes_sent());
        CHECK(report.bytes_sent == report.exchange.total);
        CHECK(report.exchange.collectives == report.schedule.count);
        CHECK(report.launches == launches_by_hand(d));
        CHECK(report.other_bytes == 0); // plan and append send nothing
    }
}

deployment base() {
    deployment d;
    d.q_heads = 16;
    d.key_width = 12;
    d.interleave = 2;
    d.requests = {{33, 2}, {0, 0}, {7, 1}};
    return d;
}

// A group of one rank that must not be talked to.
struct silent_communicator {
    using stream_type = host_stream;
    static void refuse() { raise(comm_error({"called", 0, -1, "", "", "", 0}, "a call was made in a group of one")); }
    int rank() const { return 0; }
    int size() const { return 1; }
    void all_gather(const void*, void*, std::size_t, host_stream, collective_note = {}) { refuse(); }
    void all_to_all(const void*, void*, std::size_t, host_stream, collective_note = {}) { refuse(); }
    void all_to_all(const void*, std::span<const std::size_t>, void*, std::span<const std::size_t>, host_stream,
                    collective_note = {}) {
        refuse();
    }
    void agree(std::uint64_t, const char*, host_stream) { refuse(); }
    void check() {}
    void wait(host_stream) { refuse(); }
    std::uint64_t bytes_sent() const { return 0; }
    check_level checks() const { return check_level::collective; }
};

static_assert(communicator<silent_communicator>);

template <class Merge>
bool decodes_in_silence() {
    using policy_type = policy<gqa<float, 2>, interleave<2>, Merge>;
    silent_communicator alone;
    decode_shape shape;
    shape.longest = 4;
    shape.output = scalar_type::f32;
    if (leaves_partial_sums(Merge{})) shape.placement = output_placement::partial_sums;
    decoder<policy_type, cpu_backend, silent_communicator> used({&alone, &alone, &alone}, shape);
    raw_memory memory(used.workspace_bytes(), true);
    std::vector<float> k(8, 1.0F), v(8, 2.0F), q(2, 3.0F), out(2);
    const std::int64_t length = 3;
    decode_batch batch;
    batch.requests = 1;
    batch.lengths = index_of(&length);
    batch.table = identity_table(1, 4);
    const decode_step step = used.plan(batch, {memory.data(), used.workspace_bytes()}, {});
    const auto cache = contiguous_kv(k.data(), v.data(), 1, 4, 1, 2, 2);
    const auto row = dense_view(static_cast<const float*>(q.data()), 1, 1, 2);
    used.append(step, row, row, cache, {});
    used.decode(step, row, kv_view<const float>(cache), dense_view(out.data(), 1, 1, 2), layer_options<>{}, {});
    used.check(step);
    return step.schedule.count == 0 && out[0] > 2.0F;
}

} // namespace

TEST_CASE("ranks send exactly the bytes of the schedule, and launch what is said") {
    for (const auto& [tp, pcp, dcp] : {std::array{1, 1, 1}, std::array{2, 1, 2}, std::array{4, 1, 4},
                                       std::array{1, 4, 4}, std::array{2, 4, 2}, std::array{2, 2, 4}}) {
        for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
            for (const output_placement placement :
                 {output_placement::own_heads, output_placement::scattered, output_placement::all_heads}) {
                for (const bool flag : {false, true}) {
                    deployment d = base();
                    d.sizes = {tp, pcp, dcp, 1, 1, 1};
                    d.merge = merge;
                    d.placement = placement;
                    d.replicated_q = d.merged_lse = flag;
                    d.sinks = placement == output_placement::scattered;
                    check_traffic(d);
                    d.partials = partial::output;
                    d.output = scalar_type::bf16;
                    d.value_width = 5;
                    d.replicated_q = !flag;
                    check_traffic(d);
                }
            }
        }
    }
}

TEST_CASE("a deferred merge sends LSEs and nothing else") {
    for (const auto& [tp, pcp, dcp] : {std::array{1, 1, 1}, std::array{2, 1, 2}, std::array{3, 1, 3},
                                       std::array{1, 4, 4}, std::array{2, 4, 2}, std::array{2, 2, 4}}) {
        for (const bool flag : {false, true}) {
            deployment d = base();
            d.q_heads = 6; // 4 ranks do not divide them
            d.sizes = {tp, pcp, dcp, 1, 1, 1};
            d.merge = merge_kind::deferred;
            d.placement = output_placement::partial_sums;
            d.replicated_q = flag;
            d.sinks = d.merged_lse = !flag;
            check_traffic(d);
            d.output = scalar_type::bf16;
            check_traffic(d);
            d.partials = partial::output;
            check_traffic(d);
        }
    }
}

TEST_CASE("head counts that do not divide are cut into equal chunks of elements") {
    deployment d = base();
    d.sizes = {1, 4, 4, 1, 1, 1};
    d.q_heads = 5;
    d.value_width = 3;
    d.merge = merge_kind::ag_ar;
    check_traffic(d);
}

TEST_CASE("one rank makes no call") {
    CHECK(decodes_in_silence<merge::a2a>());
    CHECK(decodes_in_silence<merge::ag_rs>());
    CHECK(decodes_in_silence<merge::ag_ar>());
    CHECK(decodes_in_silence<merge::deferred>());
}
