// Descriptions that have travelled as messages give the same lists, and broken messages are refused.
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/transfer.hpp>
#include <ctxpar/layout/transfer_message.hpp>

#include "refusal.hpp"
#include "transfer_pools.hpp"

namespace {

using namespace ctxpar_test;
using ctxpar::received_rank;
using ctxpar::transfer;
using ctxpar::transfer_plan;
using ctxpar::transfer_rank;
using ctxpar::transfer_side;
using numbers = std::vector<std::int64_t>;

struct arrived {
    std::vector<received_rank> owners;
    std::vector<transfer_rank> ranks;

    explicit arrived(const transfer_side& side) {
        for (const transfer_rank& rank : side.ranks) owners.emplace_back(ctxpar::transfer_message(rank));
        for (const received_rank& owner : owners) ranks.push_back(owner.rank());
    }
};

using listed = std::vector<std::tuple<std::int64_t, std::int64_t, transfer>>;

listed list_of(const transfer_side& from, const transfer_side& to, const ctxpar::paged_request& source,
               const ctxpar::paged_request& target) {
    const ctxpar::transfer_link link(from, to);
    listed all;
    transfer_plan(link, source, target, 1, 30)
        .for_each({}, [&](std::int64_t src, std::int64_t dst, const transfer& each) {
            all.push_back({src, dst, each});
        });
    return all;
}

numbers message_of(pool_form form, pool_scales scales) {
    std::mt19937 random(1);
    const transfer_deployment<ctxpar::fp8_e4m3> side({2, 2, 4, 0, form, scales, 1, 1, 1}, {2, 3, 8, 4}, 20, random);
    return ctxpar::transfer_message(side.side().ranks[1]);
}

} // namespace

TEST_CASE("each side finds the same lists from its own ranks and the other side's messages") {
    for (const pool_form form : {pool_form::nhd, pool_form::joint_hnd, pool_form::pointers_nhd, pool_form::gaps})
        for (const pool_scales scales : {pool_scales::none, pool_scales::token, pool_scales::shared_token}) {
            std::mt19937 random(2);
            const transfer_deployment<ctxpar::fp8_e4m3> from({2, 4, 4, 0, form, scales, 1, 2, 2}, {2, 3, 8, 4}, 30,
                                                             random);
            const transfer_deployment<ctxpar::fp8_e4m3> to({3, 4, 4, 0, form, scales, 1, 1, 1}, {2, 3, 8, 4}, 30,
                                                           random);
            transfer_side source = from.side(), target = to.side();
            const listed due = list_of(source, target, from.cache(), to.cache());
            CHECK(due.size() > 10);
            const arrived sources(source), targets(target);
            transfer_side far_source = source, far_target = target;
            far_source.ranks = sources.ranks;
            far_target.ranks = targets.ranks;
            CHECK(list_of(source, far_target, from.cache(), to.cache()) == due);
            CHECK(list_of(far_source, target, from.cache(), to.cache()) == due);
            for (std::size_t i = 0; i < sources.ranks.size(); ++i)
                CHECK(ctxpar::transfer_message(sources.ranks[i]) == ctxpar::transfer_message(source.ranks[i]));
        }
}

TEST_CASE("every number of a message arrives") {
    // A message whose free numbers are all different comes back as it was.
    numbers message = message_of(pool_form::pointers_hnd, pool_scales::token);
    constexpr std::size_t head = 2, fields = 17 + 16; // the mark and count; numbers of the rank, 16 of them of planes
    const auto kept = [](std::size_t i) {             // enumerations, factors
        return i == head + 7 || i == head + 8 || (i >= head + 13 && i <= head + 16);
    };
    for (std::size_t i = head; i < head + fields; ++i)
        if (!kept(i)) message[i] = 1000 + static_cast<std::int64_t>(i);
    message[head + 7] = 2, message[head + 8] = 1, message[head + 13] = 1, message[head + 14] = 2;
    message[head + 15] = 0x3f000000, message[head + 16] = 0x3e800000;
    const received_rank received(message);
    CHECK(received.rank().part == ctxpar::shard{1002, 1003, 1004});
    CHECK(received.rank().heads == ctxpar::head_range{1006, 1007});
    CHECK(received.rank().geometry.element == ctxpar::scalar_type::bf16);
    CHECK(received.rank().geometry.value_scale == ctxpar::scale_kind::token);
    CHECK((received.rank().geometry.key_factor == 0.5F && received.rank().geometry.value_factor == 0.25F));
    CHECK(ctxpar::transfer_message(received.rank()) == message);
}

TEST_CASE("messages that are cut off, too long or of something else are refused") {
    const numbers good = message_of(pool_form::pointers_nhd, pool_scales::token);
    const auto refused = [](const numbers& message) {
        return refusal_of([&] { received_rank{std::span<const std::int64_t>(message)}; });
    };
    CHECK(refused(good) == "none");
    CHECK(says(refused({}), "message", {"0 numbers"}));
    numbers wrong = good;
    ++wrong[0];
    CHECK(says(refused(wrong), "message", {"another version"}));
    wrong = good;
    wrong.pop_back();
    CHECK(says(refused(wrong), "message", {"came as"}));
    for (std::size_t count = 2; count < good.size(); ++count) { // cut off, and the count made to fit
        wrong.assign(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(count));
        wrong[1] = static_cast<std::int64_t>(count);
        CHECK(says(refused(wrong), "message", {"description"}));
    }
    wrong = good;
    wrong.push_back(0);
    wrong[1] = static_cast<std::int64_t>(wrong.size());
    CHECK(says(refused(wrong), "message", {"1 too many"}));
    wrong = good;
    wrong[9] = 6; // no such element type
    CHECK(says(refused(wrong), "message", {"has 6 where at most 5"}));
    wrong[9] = -1;
    CHECK(says(refused(wrong), "message", {"has -1"}));
    wrong = good;
    wrong[10] = 2; // neither true nor false
    CHECK(says(refused(wrong), "message", {"at most 1"}));
    wrong = good;
    wrong[35] = std::numeric_limits<std::int64_t>::max(); // layers
    CHECK(says(refused(wrong), "message", {"array of 9223372036854775807"}));
    wrong[35] = -1;
    CHECK(says(refused(wrong), "message", {"array of -1"}));
}
