// What AG+RS and AG+AR share: the chunks of a partial, the memory they take, and the scaling that makes partials add
// up.
#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <vector>

#include <ctxpar/merge/ag_forms.hpp>

#include "merge_laws.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

namespace {

exchange_shape small_shape(std::int64_t ranks, std::int64_t rows, std::int64_t heads, std::int64_t width) {
    exchange_shape shape;
    shape.ranks = ranks;
    shape.rows = rows;
    shape.gathered_heads = heads;
    shape.value_width = width;
    return shape;
}

std::size_t up(std::size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

} // namespace

TEST_CASE("Chunks hold whole heads of one rank where heads scatter, and an equal share where they do not") {
    CHECK(merge::chunk_elements(small_shape(4, 3, 8, 5)) == 3 * 2 * 5);
    CHECK(merge::chunk_elements(small_shape(4, 3, 6, 5)) == 23); // 90 over 4
    CHECK(merge::chunk_elements(small_shape(1, 3, 6, 5)) == 90);
    CHECK(merge::chunk_elements(small_shape(4, 0, 8, 5)) == 0);
    // Every element of a partial has a place of its own in the chunks, and rank g's heads lie in chunk g.
    for (const std::int64_t heads : {8, 6}) {
        const exchange_shape shape = small_shape(4, 3, heads, 5);
        const auto view = merge::chunked_view<const float>(shape, nullptr);
        std::set<std::int64_t> places;
        bool in_chunk = true;
        for (std::int64_t row = 0; row < 3; ++row)
            for (std::int64_t head = 0; head < heads; ++head)
                for (std::int64_t d = 0; d < 5; ++d) {
                    places.insert(view.offset(row, head) + d);
                    in_chunk = in_chunk && (heads != 8 || view.offset(row, head) / 30 == head / 2);
                }
        CHECK(places.size() == static_cast<std::size_t>(15 * heads));
        CHECK(*places.begin() == 0);
        CHECK(*places.rbegin() == 15 * heads - 1);
        CHECK(in_chunk);
    }
}

TEST_CASE("Memory is that of the buffers, and scaled outputs share theirs with the partial where they may") {
    const exchange_shape shape = small_shape(4, 3, 8, 5);
    const std::size_t chunks = up(120 * sizeof(bf16));
    const std::size_t lses = up(4 * 24 * sizeof(float));
    for (const bool dense : {false, true})
        for (const bool all : {false, true}) {
            exchange_shape own = shape;
            own.dense_partials = dense;
            carver memory(nullptr);
            merge::carve_ag<bf16, lse_base::natural>(memory, own, all);
            CHECK(memory.bytes() == chunks * (2 + (dense ? 1 : 0) + (all ? 1 : 0)) + lses);
            nan_workspace workspace(memory.bytes());
            carver real(workspace.data());
            const auto buffers = merge::carve_ag<bf16, lse_base::natural>(real, own, all);
            CHECK((buffers.own == buffers.scaled) == !dense);
            for (std::int64_t rank = 0; rank < 4; ++rank) {
                const auto views = merge::ag_partials(own, rank, buffers);
                CHECK(views.out.base == buffers.own);
                CHECK(views.lse_out.base == buffers.lses + rank * 24); // where the gather wants this rank's part
                CHECK(views.lse_out.is_dense());
                CHECK(views.out.is_dense() == dense);
            }
        }
    carver alone(nullptr);
    merge::carve_ag<bf16, lse_base::natural>(alone, small_shape(1, 3, 8, 5), true);
    CHECK(alone.bytes() == chunks + up(24 * sizeof(float)));
}

TEST_CASE("Scaled partials of all ranks add up to the merge, and LSEs go out for the heads asked for") {
    const plain::partials<float> from(3, 4, 6, 5, 110);
    for (const bool dense : {false, true}) {
        std::vector<std::vector<float>> scaled(3);
        std::vector<std::vector<natural_lse>> lses(3, std::vector<natural_lse>(4 * 2));
        run_local_ranks(3, {}, [&](local_communicator& comm) {
            bytes_only moved(comm);
            const exchange_shape shape = shape_of(from, dense);
            carver counting(nullptr);
            merge::carve_ag<float, lse_base::natural>(counting, shape, false);
            nan_workspace workspace(counting.bytes());
            carver memory(workspace.data());
            const auto buffers = merge::carve_ag<float, lse_base::natural>(memory, shape, false);
            const auto rank = static_cast<std::size_t>(comm.rank());
            const auto views = merge::ag_partials(shape, comm.rank(), buffers);
            write_partials(from, rank, views);
            merge_call<float, lse_base::natural> call;
            call.shape = shape;
            call.rank = comm.rank();
            call.live = from.live.data();
            call.live_stride = 4;
            call.sinks = from.sinks.data();
            call.lse_first_head = 3;
            call.lse_out = dense_view(lses[rank].data(), 4, 2, 1);
            cpu_backend backend;
            merge::gather_and_scale(moved, backend, call, buffers, {});
            const auto view = merge::chunked_view(shape, buffers.scaled);
            for (std::int64_t row = 0; row < 4; ++row)
                for (std::int64_t head = 0; head < 6; ++head)
                    scaled[rank].insert(scaled[rank].end(), view.at(row, head), view.at(row, head) + 5);
            if (!dense) return;
            bool kept = true; // an attention's own dense output is not touched
            for (std::size_t i = 0; i < from.out[rank].size(); ++i)
                kept = kept && (std::isnan(from.out[rank][i]) || from.out[rank][i] == buffers.own[i]);
            CHECK(kept);
        });
        plain::relative_error error;
        bool right = true;
        for (std::int64_t row = 0; row < 4; ++row)
            for (std::int64_t head = 0; head < 6; ++head) {
                const plain::merged expected = from.expect(row, head, plain::base::e, true);
                for (std::size_t d = 0; d < 5; ++d) {
                    const std::size_t at = from.at(row, head) * 5 + d;
                    error.add(scaled[0][at] + scaled[1][at] + scaled[2][at], expected.out[d]);
                }
                if (head != 3 && head != 4) continue;
                const auto at = static_cast<std::size_t>(row * 2 + head - 3);
                for (std::size_t rank = 0; rank < 3; ++rank)
                    right = right && plain::near_lse(lses[rank][at].value, expected.lse);
            }
        CHECK(error.value() <= 1e-6);
        CHECK(right);
    }
}

TEST_CASE("A gather of LSEs is fp32, once a row and gathered head") {
    collective_schedule list;
    merge::schedule_lse_gather(small_shape(8, 32, 128, 512), list);
    CHECK(list.count == 1);
    CHECK(list.calls[0].type == scalar_type::f32);
    CHECK(list.bytes_sent() == 7ULL * 32 * 128 * 4);
}
