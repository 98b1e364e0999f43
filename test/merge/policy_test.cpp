// A policy is what its parts are: empty where they are types, holding values where they have any, and open to parts
// that users write.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include <ctxpar/attention/mla.hpp>
#include <ctxpar/decode.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/policy.hpp>

#include "merge_runs.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

namespace {

// Parts as a user writes them. Each is what it says, built on no base of the library.
struct my_attention {
    using element = bf16;
    using kv_element = bf16;
    static constexpr attention_kind kind = attention_kind::gqa;
    static constexpr bool values_in_keys = false;
    static constexpr std::int64_t query_width() { return 24; }
    static constexpr std::int64_t value_width() { return 12; }
    static float default_scale() { return 0.125F; }
};

struct my_interleave {
    std::int64_t size() const { return 3; }
};

// A merge that forwards: what matters is that a decoder takes it.
struct my_merge {
    static const char* name() { return "mine"; }
    static bool scatters_heads() { return true; }
    static bool knows_all_lse() { return true; }
    static void schedule(const exchange_shape& shape, collective_schedule& list) {
        merge::ag_rs::schedule(shape, list);
    }
    template <class P, lse_base Base>
    static merge::ag_buffers<P, Base> carve(carver& memory, const exchange_shape& shape) {
        return merge::ag_rs::carve<P, Base>(memory, shape);
    }
    template <class P, lse_base Base>
    static partial_views<P, Base> partials(const exchange_shape& shape, std::int64_t rank,
                                           const merge::ag_buffers<P, Base>& buffers) {
        return merge::ag_rs::partials(shape, rank, buffers);
    }
    template <class C, class Backend, class P, lse_base Base, class Out, lse_base OutBase>
    static void run(C& kv, Backend& backend, const merge_call<Out, OutBase>& call,
                    const merge::ag_buffers<P, Base>& buffers, typename C::stream_type stream) {
        merge::ag_rs::run(kv, backend, call, buffers, stream);
    }
};

// One decode of 40 tokens over two ranks; the outputs of both, 4 heads of 12 numbers in all.
template <class Policy>
std::vector<float> decode_with(const Policy& chosen) {
    constexpr std::int64_t length = 40;
    std::vector<float> all(4 * 12, -1);
    run_local_ranks(2, {}, [&](local_communicator& comm) {
        decode_shape shape;
        shape.sizes.tp = shape.sizes.dcp = 2;
        shape.q_heads = 4;
        shape.kv_heads = 1;
        shape.longest = length;
        shape.output = scalar_type::f32;
        decoder<Policy, cpu_backend, local_communicator> made{{&comm}, shape, chosen};
        nan_workspace workspace(made.workspace_bytes());
        std::mt19937 random(static_cast<std::uint32_t>(comm.rank()));
        std::normal_distribution<float> normal;
        const auto numbers = [&](std::size_t count) {
            std::vector<bf16> list(count);
            for (bf16& x : list) x = bf16(normal(random));
            return list;
        };
        std::vector<bf16> k = numbers(length * 24), v = numbers(length * 12), q = numbers(2 * 24);
        const std::int64_t lengths[] = {length};
        decode_batch batch;
        batch.requests = 1;
        batch.lengths = index_of(lengths);
        batch.table = identity_table(1, length);
        const auto step = made.plan(batch, {workspace.data(), made.workspace_bytes()}, {});
        const auto cache = contiguous_kv(k.data(), v.data(), 1, length, 1, 24, 12);
        made.decode(step, dense_view(static_cast<const bf16*>(q.data()), 1, 2, 24), cache,
                    dense_view(all.data() + comm.rank() * 24, 1, 2, 12), layer_options<>{}, {});
    });
    return all;
}

} // namespace

TEST_CASE("A policy of types is an empty object") {
    CHECK(std::is_empty_v<policy<gqa<bf16, 128>, interleave<16>, merge::a2a>>);
    CHECK(std::is_empty_v<policy<mla<bf16, 512, 64>, interleave<1>, merge::ag_rs>>);
    CHECK(std::is_empty_v<policy<mla<bf16, 512, 64>, interleave<1>, merge::ag_ar, partial::output>>);
    CHECK(std::is_trivially_copyable_v<policy<gqa<bf16, dynamic>, interleave<>, merge::dynamic>>);
}

TEST_CASE("A policy with run-time parts holds their values") {
    using run_time = policy<gqa<bf16, dynamic>, interleave<>, merge::dynamic>;
    const run_time chosen{gqa<bf16, dynamic>{128}, {16}, {merge_kind::ag_ar}};
    CHECK(chosen.attention.query_width() == 128);
    CHECK(chosen.interleaving.size() == 16);
    CHECK(chosen.merging.kind == merge_kind::ag_ar);
    CHECK_FALSE(std::is_empty_v<run_time>);
}

TEST_CASE("Partials cross ranks as fp32, or as the element where the policy says so") {
    using exact = policy<gqa<f16, 64>, interleave<16>, merge::a2a>;
    using narrow = policy<gqa<f16, 64>, interleave<16>, merge::a2a, partial::output>;
    CHECK(std::is_same_v<exact::partial_element, float>);
    CHECK(std::is_same_v<narrow::partial_element, f16>);
    CHECK(std::is_same_v<narrow::element, f16>);
    CHECK(exact::partials == partial::fp32);
}

TEST_CASE("Parts that users write decode like the library's own") {
    CHECK(attention_policy<my_attention>);
    CHECK(interleave_policy<my_interleave>);
    CHECK(merge_policy<my_merge>);
    const auto own = decode_with(policy<my_attention, interleave<3>, merge::ag_rs>{});
    CHECK(decode_with(policy<my_attention, my_interleave, my_merge>{}) == own);
    CHECK(decode_with(policy<my_attention, interleave<>, merge::dynamic>{{}, {3}, {merge_kind::ag_rs}}) == own);
    // Of 40 tokens the ranks now hold 20 each, not 21 and 19: other keys, since each rank's are its own here.
    CHECK(decode_with(policy<my_attention, interleave<4>, merge::ag_rs>{}) != own);
    CHECK(own != std::vector<float>(48, -1));
}
