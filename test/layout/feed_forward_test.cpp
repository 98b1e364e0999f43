// Weights of the layers behind attention: every column of the feed-forward network is on one rank of those that hold
// the scattered heads.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <ctxpar/layout/feed_forward.hpp>

#include <support/refusal.hpp>

using namespace ctxpar;
using namespace ctxpar_test;

using numbers = std::vector<std::int64_t>;

TEST_CASE("every column is on one rank, in the order of the scattered heads, in every topology") {
    int compared = 0;
    for (const std::int64_t tp : {1, 2, 3, 4, 6}) {
        for (const std::int64_t pcp : {1, 2, 3, 4}) {
            const model_heads heads{attention_kind::mla, 24 * tp, 1};
            for (const std::int64_t dcp : legal_dcp({.tp = tp, .pcp = pcp, .dp = 2}, heads)) {
                const mesh m({.tp = tp, .pcp = pcp, .dcp = dcp, .dp = 2}, heads);
                for (std::int64_t rank = 0; rank < m.world_size(); ++rank) {
                    const feed_forward_part part = feed_forward_shard(m, rank, 576);
                    std::int64_t next = 0;
                    for (const std::int64_t member : part.sum.members) {
                        const feed_forward_part theirs = feed_forward_shard(m, member, 576);
                        CHECK(theirs.sum.members == part.sum.members);
                        CHECK(theirs.first == next);
                        CHECK(theirs.count() == part.count());
                        CHECK(theirs.count() >= 1);
                        next = theirs.last;
                        ++compared;
                    }
                    CHECK(next == 576);
                    const weight_shard scattered = m.output_projection(rank, output_placement::scattered);
                    CHECK(scattered.sum.members == part.sum.members);
                    CHECK(scattered.heads.first * 576 == part.first * m.heads().q_heads);
                    CHECK(scattered.heads.last * 576 == part.last * m.heads().q_heads);
                }
            }
        }
    }
    CHECK(compared > 1000);
}

TEST_CASE("known meshes have the known parts") {
    const mesh inside_tp({.tp = 6, .dcp = 3}, {attention_kind::gqa, 12, 2}); // 2 x 3
    CHECK(feed_forward_shard(inside_tp, 4, 60).first == 40);
    CHECK(feed_forward_shard(inside_tp, 4, 60).last == 50);
    CHECK(feed_forward_shard(inside_tp, 4, 60).sum.members == numbers{0, 1, 2, 3, 4, 5});
    const mesh over_pcp({.tp = 2, .pcp = 3, .dcp = 3}, {attention_kind::gqa, 12, 4});
    CHECK(feed_forward_shard(over_pcp, 3, 60).sum.members == numbers{0, 2, 4, 1, 3, 5});
    CHECK(feed_forward_shard(over_pcp, 3, 60).first == 40); // tp 1, pcp 1
    const mesh two_groups({.tp = 2, .pcp = 4, .dcp = 2}, {attention_kind::gqa, 8, 2});
    CHECK(feed_forward_shard(two_groups, 6, 60).sum.members == numbers{4, 6, 5, 7});
    CHECK(feed_forward_shard(two_groups, 6, 60).first == 15);
    const mesh unknown({.tp = 4, .dcp = 2}, {attention_kind::mla, 0, 1}); // knows no query heads, needs none
    CHECK(feed_forward_shard(unknown, 3, 8).first == 6);
}

TEST_CASE("a width that ranks do not divide is refused, and a rank outside the world") {
    const mesh m({.tp = 2, .pcp = 3, .dcp = 3}, {attention_kind::gqa, 12, 4});
    for (const std::int64_t width : {0, -6, 7, 8})
        CHECK(says(refusal_of([&] { feed_forward_shard(m, 0, width); }), "ffn_width", {"6 ranks", "multiple of 6"}));
    CHECK(refusal_of([&] { feed_forward_shard(m, 6, 6); }).rfind("rank: ", 0) == 0);
    CHECK(feed_forward_shard(m, 5, std::int64_t{6} << 60).last == std::int64_t{6} << 60);
}
