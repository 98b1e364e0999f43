// Ranks that were made or planned differently find out at the plan, all of them, before they exchange anything.
#include <doctest/doctest.h>

#include "../comm/local_outcomes.hpp"
#include "../support/decode_ranks.hpp"

using namespace ctxpar_test;

namespace {

using policy_type = policy<gqa<bf16, dynamic, dynamic>, interleave<>, merge::dynamic>;

deployment two_ranks() {
    deployment d;
    d.sizes = {2, 1, 2, 1, 1, 1};
    d.interleave = 2;
    d.requests = {{33, 2}, {7, 1}};
    d.checks = check_level::basic;
    return d;
}

// What the plan says on each rank where rank 1 was made for another deployment.
std::vector<outcome> outcomes_of(const deployment& mine, const deployment& theirs) {
    const planted_data my_data = plant(mine), their_data = plant(theirs);
    local_options options;
    options.checks = mine.checks;
    options.timeout = std::chrono::milliseconds(5'000);
    return outcomes(2, options, [&](local_communicator& world) {
        const deployment& d = world.rank() == 0 ? mine : theirs;
        decode_rank<policy_type> rank(world, d, world.rank() == 0 ? my_data : their_data, policy_for<policy_type>(d),
                                      cpu_backend());
        rank.plan();
    });
}
strings plans_of(const deployment& mine, const deployment& theirs) {
    return codes(outcomes_of(mine, theirs));
}

template <class Change>
strings plans_after(const Change& change) {
    deployment other = two_ranks();
    change(other);
    return plans_of(two_ranks(), other);
}

const strings both_refuse{"digest", "digest"};

} // namespace

TEST_CASE("ranks that agree plan in peace") {
    CHECK(plans_of(two_ranks(), two_ranks()) == strings{"", ""});
    CHECK(plans_after([](deployment& d) { d.block_size = 4; }) == strings{"", ""}); // a rank's own affair
    CHECK(plans_after([](deployment& d) { d.layout = pool_layout::hnd; }) == strings{"", ""});
}

TEST_CASE("every rank is told that policies differ") {
    CHECK(plans_after([](deployment& d) { d.interleave = 4; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.merge = merge_kind::ag_rs; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.value_width = 8; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.key_width = 8; }) == both_refuse);
}

TEST_CASE("every rank is told that shapes differ") {
    CHECK(plans_after([](deployment& d) { d.placement = output_placement::all_heads; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.replicated_q = true; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.merged_lse = false; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.q_heads = 16; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.output = scalar_type::bf16; }) == both_refuse);
}

TEST_CASE("every rank is told in what ranks differ") {
    const auto told = [](auto change) {
        deployment other = two_ranks();
        change(other);
        const std::vector<outcome> all = outcomes_of(two_ranks(), other);
        CHECK(all[0].message.find(all[1].message.substr(all[1].message.find(": "))) != std::string::npos);
        return all[0].message.substr(all[0].message.find("rank 0 called"));
    };
    CHECK(told([](deployment& d) { d.interleave = 4; }) ==
          "rank 0 called agree on the interleave size (value 2), rank 1 called agree on the interleave size (value 4)");
    CHECK(told([](deployment& d) { d.q_heads = 16; }) ==
          "rank 0 called agree on q_heads (value 8), rank 1 called agree on q_heads (value 16)");
    const std::string merges = told([](deployment& d) { d.merge = merge_kind::ag_rs; });
    CHECK(merges.find("rank 0 called agree on a2a (") == 0);
    CHECK(merges.find("rank 1 called agree on ag_rs (") != std::string::npos);
}

TEST_CASE("every rank is told that batches differ") {
    CHECK(plans_after([](deployment& d) { d.requests = {{32, 2}, {7, 1}}; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.requests = {{33, 1}, {7, 2}}; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.requests = {{33, 2}}; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.mask.window = 9; }) == both_refuse);
    CHECK(plans_after([](deployment& d) { d.tree = true; }) == both_refuse);
}

TEST_CASE("every rank is told that bounds differ") {
    deployment mine = two_ranks();
    mine.bounds_plan = true;
    mine.pad_rows = 1;
    deployment theirs = mine;
    theirs.pad_rows = 2;
    CHECK(plans_of(mine, theirs) == both_refuse);
    CHECK(plans_of(mine, mine) == strings{"", ""});
}

TEST_CASE("without checks nothing is compared") {
    deployment mine = two_ranks();
    mine.checks = check_level::off;
    deployment theirs = mine;
    theirs.interleave = 4;
    CHECK(plans_of(mine, theirs) == strings{"", ""});
}
