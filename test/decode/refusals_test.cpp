// Bad input is refused with a code, a sentence that names the values, and nothing written: not the workspace, not the
// pool, not the output.
#include <doctest/doctest.h>

#include <functional>

#include "../support/decode_ranks.hpp"
#include "../support/refusal.hpp"

using namespace ctxpar_test;

namespace {

using policy_type = policy<gqa<bf16, 6, 4>, interleave<2>, merge::a2a>;
using decoder_type = decoder<policy_type, cpu_backend, local_communicator>;

decode_shape small_shape() {
    decode_shape shape;
    shape.q_heads = 4;
    shape.kv_heads = 2;
    shape.max_requests = 2;
    shape.max_rows = 70;
    shape.longest = 40;
    shape.pool_blocks = 6;
    shape.output = scalar_type::f32;
    return shape;
}

// Everything one rank needs for a step of two requests; tests spoil one thing.
struct one_rank {
    decoder_type used{{}, small_shape()};
    raw_memory scratch{used.workspace_bytes() + 512, true};
    std::vector<std::int64_t> lengths{10, 7};
    std::vector<std::int32_t> rows{2, 1};
    std::vector<std::int64_t> ids{4, 1, 5, 0, 2, 3};
    std::vector<std::uint64_t> tree_bits;
    std::vector<bf16> keys = std::vector<bf16>(6 * 4 * 2 * 6, bf16(1.0F));
    std::vector<bf16> values = std::vector<bf16>(6 * 4 * 2 * 4, bf16(1.0F));
    std::vector<bf16> new_keys = std::vector<bf16>(3 * 2 * 6, bf16(2.0F));
    std::vector<bf16> queries = std::vector<bf16>(3 * 4 * 6, bf16(1.0F));
    std::vector<float> out = std::vector<float>(3 * 4 * 4, -5.0F);
    std::vector<natural_lse> lse = std::vector<natural_lse>(3 * 4, natural_lse{-5.0F});

    decode_batch batch() const {
        decode_batch batch;
        batch.requests = 2;
        batch.lengths = index_of(lengths.data());
        batch.query_rows = index_of(rows.data());
        batch.table = table_2d(ids.data(), 2, 3, 4);
        batch.tree_bits = tree_bits.empty() ? nullptr : tree_bits.data();
        return batch;
    }
    workspace memory() const { return {scratch.data(), used.workspace_bytes()}; }
    kv_view<bf16> cache() { return nhd_kv(keys.data(), values.data(), 6, 4, 2, 6, 4); }
    head_view<const bf16> k() const { return dense_view(new_keys.data(), 3, 2, 6); }
    head_view<const bf16> v() const { return dense_view(new_keys.data(), 3, 2, 4); }
    head_view<const bf16> q() const { return dense_view(queries.data(), 3, 4, 6); }
    head_view<float> o() { return dense_view(out.data(), 3, 4, 4); }

    // All bytes that a call could write.
    std::vector<std::byte> bytes() const {
        std::vector<std::byte> all(scratch.data(), scratch.data() + scratch.bytes());
        const auto add = [&](const auto& list) {
            const auto* first = reinterpret_cast<const std::byte*>(list.data());
            all.insert(all.end(), first, first + list.size() * sizeof(list[0]));
        };
        add(keys);
        add(values);
        add(out);
        add(lse);
        return all;
    }
};

// The refusal of spoil(rank), which must write nothing.
std::string refusal_of_one(const std::function<void(one_rank&)>& spoil) {
    one_rank rank;
    const std::vector<std::byte> before = rank.bytes();
    const std::string refusal = refusal_of([&] { spoil(rank); });
    CHECK(rank.bytes() == before);
    return refusal;
}

// The same for a call after a good plan.
std::string refusal_after_plan(const std::function<void(one_rank&, decode_step&)>& spoil) {
    one_rank rank;
    decode_step step = rank.used.plan(rank.batch(), rank.memory(), {});
    const std::vector<std::byte> before = rank.bytes();
    const std::string refusal = refusal_of([&] { spoil(rank, step); });
    CHECK(rank.bytes() == before);
    return refusal;
}

void plan(one_rank& rank) {
    rank.used.plan(rank.batch(), rank.memory(), {});
}

void decode(one_rank& rank, const decode_step& step, const head_view<const bf16>& q) {
    rank.used.decode(step, q, kv_view<const bf16>(rank.cache()), rank.o(), layer_options<>{}, {});
}

template <class Policy>
std::string refusal_of_shape(const decode_shape& shape, const Policy& chosen = {}) {
    return refusal_of([&] { decoder<Policy, cpu_backend, local_communicator>({}, shape, chosen); });
}

} // namespace

TEST_CASE("a step that is right is not refused") {
    CHECK(refusal_of([] {
              one_rank rank;
              const decode_step step = rank.used.plan(rank.batch(), rank.memory(), {});
              rank.used.append(step, rank.k(), rank.v(), rank.cache(), {});
              decode(rank, step, rank.q());
          }) == "none");
}

TEST_CASE("a plan refuses lengths and rows") {
    CHECK(says(refusal_of_one([](one_rank& rank) { rank.lengths[1] = -3, plan(rank); }), "length",
               {"request 1", "-3", "0 to 40"}));
    CHECK(says(refusal_of_one([](one_rank& rank) { rank.lengths[0] = 41, plan(rank); }), "length", {"41", "40"}));
    CHECK(
        says(refusal_of_one([](one_rank& rank) { rank.rows[1] = -1, plan(rank); }), "query_rows", {"request 1", "-1"}));
    CHECK(says(refusal_of_one([](one_rank& rank) { rank.rows[1] = 69, plan(rank); }), "query_rows",
               {"69", "after 2", "70"}));
    CHECK(says(refusal_of_one([](one_rank& rank) {
                   decode_batch batch = rank.batch();
                   batch.requests = 3;
                   rank.used.plan(batch, rank.memory(), {});
               }),
               "requests", {"3", "0 to 2"}));
    CHECK(says(refusal_of_one([](one_rank& rank) {
                   decode_batch batch = rank.batch();
                   batch.lengths.data = nullptr;
                   rank.used.plan(batch, rank.memory(), {});
               }),
               "null", {"2 requests"}));
}

TEST_CASE("a plan refuses tables") {
    CHECK(says(refusal_of_one([](one_rank& rank) { rank.lengths[0] = 13, plan(rank); }), "table_too_short",
               {"request 0", "13 tokens", "4 blocks", "3 blocks"}));
    CHECK(says(refusal_of_one([](one_rank& rank) { rank.ids[1] = 6, plan(rank); }), "table",
               {"block 1", "request 0", "id 6", "6 blocks"}));
    CHECK(says(refusal_of_one([](one_rank& rank) { rank.ids[3] = -1, plan(rank); }), "table", {"request 1", "-1"}));
    CHECK(says(refusal_of_one([](one_rank& rank) {
                   decode_batch batch = rank.batch();
                   batch.table.requests = 1;
                   rank.used.plan(batch, rank.memory(), {});
               }),
               "table_too_short", {"1 rows", "2 requests"}));
    CHECK(says(refusal_of_one([](one_rank& rank) {
                   decode_batch batch = rank.batch();
                   batch.table.block_size = 0;
                   rank.used.plan(batch, rank.memory(), {});
               }),
               "block_size", {"0"}));
}

TEST_CASE("a plan refuses masks and trees") {
    for (const auto& [mask, code] : {std::pair{mask_rule{-1, 0, 0}, "window"}, std::pair{mask_rule{0, -2, 0}, "chunk"},
                                     std::pair{mask_rule{0, 0, -3}, "prefix"}}) {
        CHECK(says(refusal_of_one([&, rule = mask](one_rank& rank) {
                       decode_batch batch = rank.batch();
                       batch.mask = rule;
                       rank.used.plan(batch, rank.memory(), {});
                   }),
                   code, {"-"}));
    }
    CHECK(says(refusal_of_one([](one_rank& rank) {
                   rank.rows[0] = 65;
                   rank.tree_bits.assign(66, 1);
                   plan(rank);
               }),
               "tree", {"65", "64"}));
    CHECK(says(refusal_of_one([](one_rank& rank) {
                   rank.tree_bits = {1, 7, 1}; // the second of two rows claims to see a third
                   plan(rank);
               }),
               "tree", {"row 1", "request 0", "2 rows"}));
}

TEST_CASE("a plan refuses workspaces") {
    const auto plan_into = [](std::size_t offset, std::size_t missing, bool null) {
        return refusal_of_one([=](one_rank& rank) {
            std::byte* const data = null ? nullptr : rank.scratch.data() + offset;
            rank.used.plan(rank.batch(), {data, rank.used.workspace_bytes() - missing}, {});
        });
    };
    const std::string bytes = std::to_string(one_rank().used.workspace_bytes());
    CHECK(says(plan_into(0, 1, false), "workspace", {bytes.c_str()}));
    CHECK(says(plan_into(8, 0, false), "workspace", {"256"}));
    CHECK(says(plan_into(0, 0, true), "workspace", {"null"}));
}

TEST_CASE("append refuses rows and caches") {
    using step_type = decode_step;
    const auto append =
        [](const std::function<void(head_view<const bf16>&, head_view<const bf16>&, kv_view<bf16>&)>& spoil) {
            return refusal_after_plan([&](one_rank& rank, step_type& step) {
                head_view<const bf16> k = rank.k(), v = rank.v();
                kv_view<bf16> cache = rank.cache();
                spoil(k, v, cache);
                rank.used.append(step, k, v, cache, {});
            });
        };
    CHECK(says(append([](auto& k, auto&, auto&) { k.rows = 2; }), "shape", {"k", "2 rows", "3 rows"}));
    CHECK(says(append([](auto& k, auto&, auto&) { k.width = 4; }), "shape", {"4 elements", "of 6"}));
    CHECK(says(append([](auto&, auto& v, auto&) { v.heads = 1; }), "shape", {"v", "1 heads", "2 heads"}));
    CHECK(says(append([](auto& k, auto&, auto&) { k.base = nullptr; }), "null", {"k"}));
    CHECK(says(append([](auto&, auto&, auto& cache) { cache.kv_heads = 1; }), "kv_heads", {"1 heads", "2"}));
    CHECK(says(append([](auto&, auto&, auto& cache) { cache.value_width = 3; }), "width", {"3", "4"}));
    CHECK(says(append([](auto&, auto&, auto& cache) { cache.pages = 4; }), "pool", {"16 slots", "24"}));
    CHECK(says(append([](auto&, auto&, auto& cache) { cache.k.base = nullptr; }), "null", {"keys"}));
    CHECK(says(append([](auto&, auto&, auto& cache) { cache.k_scale.kind = scale_kind::token; }), "null", {"keys"}));
}

TEST_CASE("append refuses slots past the cache") {
    const auto append = [](std::int64_t slot) {
        return refusal_of_one([=](one_rank& rank) {
            const std::vector<std::int64_t> slots{0, slot, -1};
            rank.used.append(index_of(slots.data()), rank.k(), rank.v(), rank.cache(), {});
        });
    };
    CHECK(says(append(24), "slot", {"row 1", "24", "0 to 23"}));
    CHECK(says(append(-2), "slot", {"row 1", "-2"}));
    CHECK(says(
        refusal_of_one([](one_rank& rank) { rank.used.append(index_view{}, rank.k(), rank.v(), rank.cache(), {}); }),
        "null", {"3"}));
}

TEST_CASE("decode refuses queries, outputs and LSEs") {
    CHECK(says(refusal_after_plan([](one_rank& rank, decode_step& step) {
                   decode(rank, step, dense_view(static_cast<const bf16*>(rank.queries.data()), 3, 2, 6));
               }),
               "shape", {"q", "2 heads", "4 heads"}));
    CHECK(says(refusal_after_plan([](one_rank& rank, decode_step& step) {
                   rank.used.decode(step, rank.q(), kv_view<const bf16>(rank.cache()),
                                    dense_view(rank.keys.data(), 3, 4, 4), layer_options<>{}, {});
               }),
               "output", {"bf16", "f32"}));
    CHECK(says(refusal_after_plan([](one_rank& rank, decode_step& step) {
                   rank.used.decode(step, rank.q(), kv_view<const bf16>(rank.cache()),
                                    dense_view(rank.out.data(), 3, 4, 3), layer_options<>{}, {});
               }),
               "shape", {"out", "3 elements", "of 4"}));
    CHECK(says(refusal_after_plan([](one_rank& rank, decode_step& step) {
                   layer_options<> options;
                   options.lse_out = dense_view(rank.lse.data(), 3, 4, 1);
                   rank.used.decode(step, rank.q(), kv_view<const bf16>(rank.cache()), rank.o(), options, {});
               }),
               "merged_lse", {"merged_lse"}));
}

TEST_CASE("a decoder refuses what it can not be made for") {
    decode_shape shape = small_shape();
    shape.q_heads = 0;
    CHECK(says(refusal_of_shape<policy_type>(shape), "size", {"q_heads"}));
    CHECK(says(refusal_of_shape<policy<mla<bf16, 4, 2>, interleave<2>, merge::a2a>>([] {
                   decode_shape unknown = small_shape();
                   unknown.q_heads = 0;
                   unknown.kv_heads = 1;
                   return unknown;
               }()),
               "q_heads", {"0"}));
    shape = small_shape();
    shape.longest = 0;
    CHECK(says(refusal_of_shape<policy_type>(shape), "size", {"longest", "0"}));
    shape = small_shape();
    shape.max_rows = 0;
    CHECK(says(refusal_of_shape<policy_type>(shape), "size", {"max_rows"}));
    shape = small_shape();
    shape.output = scalar_type::f16;
    CHECK(says(refusal_of_shape<policy_type>(shape), "output", {"f16", "f32", "bf16"}));
    using dynamic_policy = policy<gqa<bf16, dynamic, dynamic>, interleave<>, merge::dynamic>;
    CHECK(says(refusal_of_shape<dynamic_policy>(small_shape(), {gqa<bf16, dynamic, dynamic>{0, 4}, {2}, {}}), "width",
               {"0"}));
    CHECK(says(refusal_of_shape<dynamic_policy>(small_shape(), {gqa<bf16, dynamic, dynamic>{6, 4}, {0}, {}}),
               "interleave", {"0"}));
}

TEST_CASE("a decoder refuses groups that are missing, of another size or in another order") {
    decode_shape shape = small_shape();
    shape.sizes = {2, 1, 2, 1, 1, 1};
    shape.kv_heads = 1;
    CHECK(says(refusal_of_shape<policy_type>(shape), "group", {"kv group", "1 ranks", "2", "none was given"}));

    local_world three(3), two(2), other(2);
    local_communicator of_three = three.rank(0), first = two.rank(0), second = two.rank(1), swapped = other.rank(0);
    CHECK(says(refusal_of([&] { decoder_type({&of_three}, shape); }), "group", {"3 ranks", "2"}));
    CHECK(says(refusal_of([&] { decoder_type({&first, &of_three}, shape); }), "group", {"query group", "3 ranks"}));
    CHECK(says(refusal_of([&] {
                   decoder_type({&second, &swapped}, shape);
               }),
               "group", {"query group", "rank 0", "must be rank 1"}));
    shape.rank = 1;
    CHECK(says(refusal_of([&] { decoder_type({&first}, shape); }), "group", {"rank 1", "rank 0"}));
    CHECK(refusal_of([&] { decoder_type({&second}, shape); }) == "none");

    // Over TP and PCP the scattered heads are gathered in a group of their own.
    decode_shape plane = small_shape();
    plane.sizes = {2, 2, 4, 1, 1, 1};
    plane.kv_heads = 1;
    local_world four(4);
    local_communicator kv = four.rank(0);
    CHECK(says(refusal_of([&] { decoder_type({&kv, &first}, plane); }), "group", {"heads group", "none was given"}));
    plane.placement = output_placement::all_heads;
    CHECK(refusal_of([&] { decoder_type({&kv, &first}, plane); }) == "none");
}
