// What a prefiller is made for: shapes, topologies and groups that are not legal are refused at construction.
#include <doctest/doctest.h>

#include <functional>

#include "refusals.hpp"

using namespace refusals;

namespace {

template <class Policy = policy_type>
std::string refusal_of_shape(const std::function<void(prefill_shape&)>& spoil, const Policy& chosen = {}) {
    return refusal_of([&] {
        prefill_shape shape = small_shape();
        spoil(shape);
        prefiller<Policy, cpu_backend, local_communicator>({}, shape, chosen);
    });
}

} // namespace

TEST_CASE("a shape that is right is not refused") {
    CHECK(refusal_of_shape([](prefill_shape&) {}) == "none");
}

TEST_CASE("sizes below their least are refused by name") {
    CHECK(says(refusal_of_shape([](prefill_shape& s) { s.max_rows = 0; }), "size", {"max_rows", "0", "1"}));
    CHECK(says(refusal_of_shape([](prefill_shape& s) { s.max_requests = -2; }), "size", {"max_requests", "-2"}));
    CHECK(says(refusal_of_shape([](prefill_shape& s) { s.longest = 0; }), "size", {"longest", "0"}));
    CHECK(says(refusal_of_shape([](prefill_shape& s) { s.context_rows = -1; }), "size", {"context_rows", "-1"}));
    CHECK(says(refusal_of_shape([](prefill_shape& s) { s.max_splits = 0; }), "size", {"max_splits"}));
    CHECK(says(refusal_of_shape([](prefill_shape& s) { s.hidden_bytes = -8; }), "size", {"hidden_bytes", "-8"}));
    CHECK(says(refusal_of_shape([](prefill_shape& s) { s.max_decode_rows = 13; }), "size", {"13", "12"}));
    CHECK(says(refusal_of_shape([](prefill_shape& s) { s.max_rows = std::int64_t{1} << 54; }), "size", {"2^56"}));
}

TEST_CASE("a PCP or DCP shape that is not legal is refused with those that are") {
    const auto with = [](std::int64_t tp, std::int64_t pcp, std::int64_t dcp) {
        return [=](prefill_shape& s) {
            s.sizes.tp = tp;
            s.sizes.pcp = pcp;
            s.sizes.dcp = dcp;
        };
    };
    CHECK(says(refusal_of_shape(with(1, 0, 1)), "size", {"pcp", "0"}));
    CHECK(says(refusal_of_shape(with(1, 4, 3)), "dcp_shape", {"3", "1, 2, 4"}));
    CHECK(says(refusal_of_shape(with(2, 2, 4)), "dcp_kv_heads", {"dcp 4", "1, 2"}));
    CHECK(says(refusal_of_shape(with(1, 2, 1)), "group", {"rows group", "needs 2", "none was given"}));
    CHECK(says(refusal_of_shape(with(1, 2, 2)), "group", {"kv group", "needs 2"}));
}

TEST_CASE("a workspace below one round of ownership is refused, where context is gathered at all") {
    const auto small = [](prefill_shape& s) {
        s.sizes.pcp = s.sizes.dcp = 2;
        s.context_rows = 3;
    };
    CHECK(says(refusal_of_shape(small), "workspace", {"3 rows", "2 ranks", "interleave of 2", "at least 4"}));
    CHECK(says(refusal_of_shape([&](prefill_shape& s) {
                   small(s);
                   s.prefill_rows = prefill_path::gather_q;
               }),
               "group", {})); // the next thing that is wrong here
}

TEST_CASE("up-projection is refused where it has no meaning") {
    using latent = policy<mla<bf16, 4, 2>, interleave<2>, merge::a2a>;
    const auto projected = [](prefill_shape& s) {
        s.kv_heads = 1;
        s.projected_query_width = 5;
        s.projected_value_width = 3;
    };
    CHECK(refusal_of_shape<latent>(projected) == "none");
    CHECK(says(refusal_of_shape<latent>([&](prefill_shape& s) {
                   projected(s);
                   s.prefill_rows = prefill_path::gather_q;
               }),
               "projection", {"gather_kv or automatic"}));
    CHECK(says(refusal_of_shape<latent>([&](prefill_shape& s) {
                   projected(s);
                   s.decode_rows = prefill_path::gather_kv;
               }),
               "projection", {"gather_q or automatic"}));
    CHECK(says(refusal_of_shape<latent>([&](prefill_shape& s) {
                   projected(s);
                   s.projected_value_width = 0;
               }),
               "projection", {"5", "0"}));
    CHECK(says(refusal_of_shape([](prefill_shape& s) { s.projected_query_width = s.projected_value_width = 4; }),
               "projection", {"gqa"}));
}

TEST_CASE("heads that do not scatter are refused only where decode rows must be scattered") {
    const auto three = [](prefill_shape& s) {
        s.sizes.pcp = s.sizes.dcp = 3;
        s.kv_heads = 1;
    };
    local_world kv(3), rows(3);
    local_communicator kv_rank = kv.rank(0), rows_rank = rows.rank(0);
    const groups<local_communicator> ranks{&kv_rank, nullptr, nullptr, &rows_rank};
    const auto refusal = [&](std::int64_t decode_rows, prefill_path path) {
        return refusal_of([&] {
            prefill_shape shape = small_shape();
            three(shape);
            shape.max_decode_rows = decode_rows;
            shape.decode_rows = path;
            prefiller_type(ranks, shape);
        });
    };
    CHECK(says(refusal(2, prefill_path::automatic), "scatter_heads", {"4 gathered heads", "dcp 3", "ag_ar"}));
    CHECK(refusal(0, prefill_path::automatic) == "none");
    CHECK(refusal(2, prefill_path::gather_kv) == "none");
}

TEST_CASE("a merge that leaves partial sums is refused, with decode rows or without") {
    using chosen = policy<policy_type::attention_type, policy_type::interleave_type, merge::deferred>;
    for (const std::int64_t decode_rows : {0, 2}) {
        const std::string refusal =
            refusal_of_shape<chosen>([&](prefill_shape& s) { s.max_decode_rows = decode_rows; });
        CHECK(says(refusal, "placement", {"merge deferred", "own heads of own rows", "ag_ar"}));
    }
}

TEST_CASE("groups in another order than the mesh are refused") {
    local_world kv(2), rows(2);
    local_communicator kv_rank = kv.rank(0), rows_rank = rows.rank(1);
    prefill_shape shape = small_shape();
    shape.sizes.pcp = shape.sizes.dcp = 2;
    CHECK(says(refusal_of([&] {
                   prefiller_type({&kv_rank, nullptr, nullptr, &rows_rank}, shape);
               }),
               "group", {"rank 1", "rows (PCP) group", "rank 0", "modulo 2"}));
    shape.rank = 0;
    CHECK(says(refusal_of([&] {
                   prefiller_type({&kv_rank, nullptr, nullptr, &rows_rank}, shape);
               }),
               "group", {"rank 1", "must be rank 0"}));
}
