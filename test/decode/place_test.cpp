// The heads a rank's output holds are those the mesh says.
#include <doctest/doctest.h>

#include <cstdint>

#include <ctxpar/decode/place.hpp>

using namespace ctxpar;

TEST_CASE("placed heads are the mesh's columns of the output projection, relative to the group's heads") {
    int compared = 0;
    for (const std::int64_t tp : {1, 2, 3, 4, 8}) {
        for (const std::int64_t pcp : {1, 2, 3, 4}) {
            for (const std::int64_t dcp : legal_dcp({.tp = tp, .pcp = pcp}, {attention_kind::mla, 24 * tp, 1})) {
                const mesh ranks{{.tp = tp, .pcp = pcp, .dcp = dcp}, {attention_kind::mla, 24 * tp, 1}};
                for (std::int64_t rank = 0; rank < ranks.world_size(); ++rank) {
                    const std::int64_t first = ranks.gathered_heads(rank).first;
                    const std::int64_t place = ranks.groups_of(rank).kv.rank;
                    for (const auto placement : {output_placement::own_heads, output_placement::scattered,
                                                 output_placement::all_heads, output_placement::partial_sums}) {
                        if (placement == output_placement::scattered && !ranks.scatters_heads()) continue;
                        const head_range wanted = ranks.output_projection(rank, placement).heads;
                        const head_range got = detail::placed_heads(ranks, placement, place);
                        CHECK(got == head_range{wanted.first - first, wanted.last - first});
                        ++compared;
                    }
                }
            }
        }
    }
    CHECK(compared > 500);
}
