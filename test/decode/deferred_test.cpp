// Partial sums: what the ranks of a group return adds up to the unsharded attention, and nothing but LSEs has
// travelled.
#include "runs.hpp"

#include "../support/refusal.hpp"

using namespace ctxpar_test;

namespace {

const std::array<std::array<std::int64_t, 3>, 8> topologies{
    {{1, 1, 1}, {2, 1, 2}, {3, 1, 3}, {4, 1, 4}, {4, 1, 2}, {1, 4, 4}, {2, 4, 2}, {2, 2, 4}}};

deployment deferred_over(const std::array<std::int64_t, 3>& sizes) {
    deployment d;
    d.sizes = {sizes[0], sizes[1], sizes[2], 1, 1, 1};
    d.merge = merge_kind::deferred;
    d.placement = output_placement::partial_sums;
    d.replicated_q = true;
    d.q_heads = 12;
    d.key_width = 12;
    d.value_width = 10;
    d.interleave = 2;
    d.block_size = 4;
    d.requests = {{0}, {131, 3}, {1, 1}, {64, 1}, {5, 2}}; // some ranks have no keys of some rows
    return d;
}

template <class Change>
void each_topology(const Change& change) {
    for (const auto& sizes : topologies) {
        deployment d = deferred_over(sizes);
        change(d);
        check_exact(d);
    }
}

enum class share_fault {
    none,
    mean,          // every rank counts the same
    wrong_base,    // natural LSEs read as base 2
    sink_per_rank, // the sink joins once for every rank
    own_only,      // every rank's partial as it is
};

// The deferred merge with weights worked out here, wrongly.
struct faulty_deferred : merge::deferred {
    share_fault fault = share_fault::none;

    template <communicator C, class Backend, class P, lse_base Base, class Out, lse_base OutBase>
    void run(C& kv, Backend& backend, const merge_call<Out, OutBase>& call, const merge::ag_buffers<P, Base>& buffers,
             typename C::stream_type stream) const {
        if (fault == share_fault::none) {
            merge::deferred::run(kv, backend, call, buffers, stream);
            return;
        }
        const exchange_shape& shape = call.shape;
        const auto own = partials(shape, call.rank, buffers);
        const auto states = static_cast<std::size_t>(shape.rows * shape.gathered_heads);
        kv.all_gather(own.lse_out.base, buffers.lses, states * sizeof(float), stream,
                      {"LSE", scalar_type::f32, call.digest});
        suite_ranks::finish(stream);
        for (std::int64_t row = 0; row < shape.rows; ++row)
            for (std::int64_t head = 0; head < shape.gathered_heads; ++head) {
                double sum = call.sinks == nullptr ? 0.0 : std::exp(static_cast<double>(call.sinks[head]));
                if (fault == share_fault::sink_per_rank) sum *= static_cast<double>(shape.ranks);
                for (std::int64_t i = 0; i < shape.ranks; ++i)
                    sum += weight_of(buffers.lses[static_cast<std::size_t>(i) * states +
                                                  static_cast<std::size_t>(row * shape.gathered_heads + head)]);
                const double weight =
                    fault == share_fault::own_only ? 1.0 : weight_of(*own.lse_out.at(row, head)) / std::max(sum, 1e-30);
                for (std::int64_t x = 0; x < shape.value_width; ++x)
                    call.out.at(row, head)[x] =
                        static_cast<Out>(static_cast<float>(weight * static_cast<double>(own.out.at(row, head)[x])));
            }
    }

private:
    template <lse_base Base>
    double weight_of(lse<Base> state) const {
        const double value = state.value;
        if (value == minus_infinity) return 0.0;
        if (fault == share_fault::mean) return 1.0;
        return fault == share_fault::wrong_base ? std::exp2(value) : std::exp(value);
    }
};

static_assert(merge_policy<faulty_deferred> && leaves_partial_sums(faulty_deferred{}));

// The distance of a run with a fault, which without it is exact.
double distance_with(share_fault fault, deployment d) {
    using policy_type = policy<gqa<bf16, dynamic, dynamic>, interleave<>, faulty_deferred>;
    d.merged_lse = false;
    const planted_data data = plant(d);
    policy_type chosen = policy_for<policy_type>(d);
    chosen.merging.fault = fault;
    const run_result got = run_ranks<policy_type>(d, data, chosen, plain_backends(d));
    return distance_between(d, expected(d, data), got.outputs).out;
}

void check_fault(share_fault fault, bool sinks = false) {
    for (const auto& sizes : topologies) {
        deployment d = deferred_over(sizes);
        d.requests = {{131, 3}, {64, 1}, {35, 2}};
        d.sinks = sinks;
        if (d.dcp() == 1 || !is_drawn(d)) continue;
        INFO(describe(d));
        CHECK(distance_with(share_fault::none, d) <= 1.0);
        CHECK(distance_with(fault, d) > 10.0);
    }
}

template <class Merge>
std::string refusal_for(output_placement placement, std::int64_t dcp) {
    decode_shape shape;
    shape.sizes.tp = shape.sizes.dcp = dcp;
    shape.q_heads = 8;
    shape.longest = 16;
    shape.placement = placement;
    const policy<gqa<float, 4>, interleave<1>, Merge> chosen{};
    const mesh ranks(shape.sizes, {attention_kind::gqa, 8, 1});
    return refusal_of([&] { ctxpar::detail::check_policy(chosen, shape, ranks); });
}

} // namespace

TEST_CASE("partial sums add up to the unsharded attention, with replicated queries or gathered ones") {
    each_topology([](deployment&) {});
    each_topology([](deployment& d) { d.replicated_q = false; });
    each_topology([](deployment& d) {
        d.strided_views = true;
        d.max_splits = 1;
    });
}

TEST_CASE("sinks join the denominator of partial sums once") {
    each_topology([](deployment& d) { d.sinks = true; });
    each_topology([](deployment& d) {
        d.sinks = true;
        d.lse = lse_base::binary;
        d.replicated_q = false;
    });
}

TEST_CASE("rows that some ranks see nothing of have exact zeros there") {
    each_topology([](deployment& d) { d.mask.window = 2; });
    each_topology([](deployment& d) { d.mask = {0, 3, 1}; });
}

TEST_CASE("partial sums may be narrow, as partials or in the output") {
    each_topology([](deployment& d) { d.output = scalar_type::bf16; });
    each_topology([](deployment& d) { d.partials = partial::output; });
    each_topology([](deployment& d) {
        d.partials = partial::output;
        d.output = scalar_type::bf16;
    });
    each_topology([](deployment& d) { d.element = d.kv_element = d.output = scalar_type::f16; });
}

TEST_CASE("partial sums of latent attention add up to the unsharded attention") {
    for (const bool replicated_q : {true, false}) {
        for (const auto& sizes : topologies) {
            deployment d = deferred_over(sizes);
            d.is_mla = true;
            d.value_width = 24;
            d.key_width = 32;
            d.replicated_q = replicated_q;
            d.sinks = sizes[1] > 1;
            check_exact(d);
        }
    }
}

TEST_CASE("the number of heads need not divide for partial sums") {
    each_topology([](deployment& d) {
        d.q_heads = 5 * d.sizes.tp;
        d.sinks = true;
    });
}

TEST_CASE("a mean in place of the weights of shares is found") {
    check_fault(share_fault::mean);
}
TEST_CASE("shares by LSEs in the wrong base are found") {
    check_fault(share_fault::wrong_base);
}
TEST_CASE("a sink that joins once for every rank's share is found") {
    check_fault(share_fault::sink_per_rank, true);
}
TEST_CASE("partials that are not scaled are found") {
    check_fault(share_fault::own_only);
}

TEST_CASE("a decoder refuses partial sums of other merges, and another placement of deferred ones") {
    for (const std::int64_t dcp : {1, 4}) {
        CHECK(refusal_for<merge::deferred>(output_placement::partial_sums, dcp) == "none");
        for (const auto placement :
             {output_placement::own_heads, output_placement::scattered, output_placement::all_heads}) {
            CHECK(says(refusal_for<merge::deferred>(placement, dcp), "placement", {"deferred", name_of(placement)}));
            CHECK(refusal_for<merge::a2a>(placement, dcp) == "none");
        }
        CHECK(says(refusal_for<merge::a2a>(output_placement::partial_sums, dcp), "placement", {"a2a"}));
        CHECK(says(refusal_for<merge::ag_rs>(output_placement::partial_sums, dcp), "placement", {"ag_rs"}));
        CHECK(says(refusal_for<merge::ag_ar>(output_placement::partial_sums, dcp), "placement", {"ag_ar"}));
    }
    // Where it is made, before anything else happens.
    using refused = decoder<policy<gqa<float, 4>, interleave<1>, merge::deferred>, cpu_backend, local_communicator>;
    decode_shape shape;
    shape.longest = 16;
    CHECK(refusal_of([&] { refused({}, shape); }).rfind("placement: ", 0) == 0);
}
