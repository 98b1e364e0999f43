// The contract of merge policies and the schedule they state.
#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <type_traits>

#include <ctxpar/merge/merge.hpp>

using namespace ctxpar;

namespace {

// All that the concept asks for.
struct small_merge {
    static constexpr const char* name() { return "small"; }
    static constexpr bool scatters_heads() { return false; }
    static constexpr bool knows_all_lse() { return false; }
    static void schedule(const exchange_shape&, collective_schedule&) {}
    template <class P, lse_base Base>
    static int carve(carver&, const exchange_shape&) {
        return 0;
    }
    static partial_views<float, lse_base::natural> partials(const exchange_shape&, std::int64_t, int) { return {}; }
};

struct without_name {
    static constexpr bool scatters_heads() { return false; }
    static constexpr bool knows_all_lse() { return false; }
    static void schedule(const exchange_shape&, collective_schedule&) {}
};

struct without_partials : small_merge {
    static void partials(const exchange_shape&, std::int64_t, int) {}
};

} // namespace

TEST_CASE("A type with all that a merge needs is a policy; one that lacks something is none") {
    CHECK(merge_policy<small_merge>);
    CHECK_FALSE(merge_policy<without_name>);
    CHECK_FALSE(merge_policy<without_partials>);
    CHECK_FALSE(merge_policy<float>);
}

TEST_CASE("A schedule keeps the calls of groups, in order, and counts what is sent") {
    collective_schedule list;
    list.add({collective_op::all_gather, group_role::query, scalar_type::bf16, 1, 100, "alone"});
    CHECK(list.count == 0);
    CHECK(list.bytes_sent() == 0);
    list.add({collective_op::all_gather, group_role::kv, scalar_type::f32, 4, 100, "first"});
    list.add({collective_op::all_to_all, group_role::kv, scalar_type::f32, 2, 7, "second"});
    CHECK(list.count == 2);
    CHECK(std::string(list.calls[0].what) == "first");
    CHECK(list.bytes_sent() == 307);
    list.add({collective_op::all_to_all, group_role::kv, scalar_type::f32, 3, std::uint64_t{1} << 33, "large"});
    CHECK(list.bytes_sent() == 307 + (std::uint64_t{1} << 34));
    CHECK(std::is_trivially_copyable_v<collective_schedule>);
}

TEST_CASE("Scattered heads are disjoint and cover all gathered ones") {
    exchange_shape shape;
    shape.gathered_heads = 24;
    for (const std::int64_t ranks : {1, 2, 3, 8, 24}) {
        shape.ranks = ranks;
        CHECK(shape.scatters());
        std::int64_t next = 0;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
            CHECK(scattered_heads(shape, rank).first == next);
            next = scattered_heads(shape, rank).last;
        }
        CHECK(next == 24);
    }
    shape.ranks = 5;
    CHECK_FALSE(shape.scatters());
    shape.distinct_tp = 4;
    CHECK(shape.heads_per_rank() == 6);
}

TEST_CASE("Operations have names of their own") {
    std::set<std::string> names;
    for (const collective_op op : {collective_op::all_gather, collective_op::all_to_all, collective_op::reduce_scatter,
                                   collective_op::all_reduce})
        names.insert(name_of(op));
    CHECK(names == std::set<std::string>{"all_gather", "all_to_all", "reduce_scatter", "all_reduce"});
}

TEST_CASE("A digest tells values, their number and their order apart") {
    std::set<std::uint64_t> seen;
    const auto note = [&](const detail::digest& sum) { seen.insert(sum.value()); };
    note({});
    note(detail::digest().add(0));
    note(detail::digest().add(0).add(0));
    note(detail::digest().add(1).add(2));
    note(detail::digest().add(2).add(1));
    note(detail::digest().add(std::uint64_t{1} << 56));
    note(detail::digest().add_signed(-1));
    CHECK(seen.size() == 7);
    CHECK(detail::digest().add(7).add_signed(-3).value() == detail::digest().add(7).add_signed(-3).value());
}
