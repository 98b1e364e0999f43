// One rank with a small batch, of which tests spoil one thing: the refusal has a code and a sentence, and nothing was
// written.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <ctxpar/ctxpar.hpp>

#include "../support/kv_pool.hpp"
#include "../support/refusal.hpp"

namespace refusals {

using namespace ctxpar;

using ctxpar_test::refusal_of;
using ctxpar_test::says;

using policy_type = policy<gqa<bf16, 6, 4>, interleave<2>, merge::a2a>;
using prefiller_type = prefiller<policy_type, cpu_backend, local_communicator>;

inline prefill_shape small_shape() {
    prefill_shape shape;
    shape.q_heads = 4;
    shape.kv_heads = 2;
    shape.max_requests = 3;
    shape.max_rows = 12;
    shape.max_decode_rows = 2;
    shape.longest = 20;
    shape.pool_blocks = 6;
    shape.output = scalar_type::f32;
    return shape;
}

// A prefill of 4 tokens after 3, and a decode of 2 rows after 5.
struct one_rank {
    explicit one_rank(const prefill_shape& shape = small_shape()) : used({}, shape) {}

    prefiller_type used;
    ctxpar_test::raw_memory scratch{used.workspace_bytes() + 512, true};
    std::vector<std::int64_t> computed{3, 5};
    std::vector<std::int64_t> tokens{4, 2};
    std::vector<std::int64_t> offsets{0, 4, 6};
    std::vector<std::int32_t> kinds{0, 1};
    std::vector<std::int64_t> ids{4, 1, 5, 0, 2, 3};
    std::vector<std::uint64_t> tree_bits;
    std::vector<bf16> keys = std::vector<bf16>(6 * 4 * 2 * 6, bf16(1.0F));
    std::vector<bf16> values = std::vector<bf16>(6 * 4 * 2 * 4, bf16(1.0F));
    std::vector<bf16> new_keys = std::vector<bf16>(6 * 2 * 6, bf16(2.0F));
    std::vector<bf16> queries = std::vector<bf16>(6 * 4 * 6, bf16(1.0F));
    std::vector<float> out = std::vector<float>(6 * 4 * 4, -5.0F);
    std::vector<natural_lse> lse = std::vector<natural_lse>(6 * 4, natural_lse{-5.0F});
    std::vector<float> hidden = std::vector<float>(6 * 2, -5.0F);

    prefill_batch batch() const {
        prefill_batch batch;
        batch.requests = 2;
        batch.computed = index_of(computed.data());
        batch.tokens = index_of(tokens.data());
        batch.kinds = index_of(kinds.data());
        batch.table = table_2d(ids.data(), 2, 3, 4);
        batch.tree_bits = tree_bits.empty() ? nullptr : tree_bits.data();
        return batch;
    }
    workspace memory() const { return {scratch.data(), used.workspace_bytes()}; }
    kv_view<bf16> cache() { return nhd_kv(keys.data(), values.data(), 6, 4, 2, 6, 4); }
    head_view<const bf16> k() const { return dense_view(new_keys.data(), 6, 2, 6); }
    head_view<const bf16> v() const { return dense_view(new_keys.data(), 6, 2, 4); }
    head_view<const bf16> q() const { return dense_view(queries.data(), 6, 4, 6); }
    head_view<float> o() { return dense_view(out.data(), 6, 4, 4); }
    head_view<float> rows() { return dense_view(hidden.data(), 6, 1, 2); }
    prefill_step plan() { return used.plan(batch(), memory(), {}); }
    void attend(const prefill_step& step, const head_view<const bf16>& queries_view) {
        used.attend(step, queries_view, kv_view<const bf16>(cache()), o(), layer_options<>{}, {});
    }

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
        add(hidden);
        return all;
    }
};

// The refusal of spoil(rank), which must write nothing.
inline std::string refusal_of_one(const std::function<void(one_rank&)>& spoil) {
    one_rank rank;
    const std::vector<std::byte> before = rank.bytes();
    const std::string refusal = refusal_of([&] { spoil(rank); });
    CHECK(rank.bytes() == before);
    return refusal;
}

// The same for a call after a good plan.
inline std::string refusal_after_plan(const std::function<void(one_rank&, prefill_step&)>& spoil) {
    one_rank rank;
    prefill_step step = rank.plan();
    const std::vector<std::byte> before = rank.bytes();
    const std::string refusal = refusal_of([&] { spoil(rank, step); });
    CHECK(rank.bytes() == before);
    return refusal;
}

} // namespace refusals
