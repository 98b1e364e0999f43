// A user's own attention in place of the built-in one: exact whatever it writes for rows without keys.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include <ctxpar/ctxpar.hpp>

#include "../backend/plain_attention.hpp"

using namespace ctxpar;
using support::plain_attention;

namespace {

constexpr std::int64_t heads_per_rank = 2;
constexpr std::int64_t width = 24;
constexpr std::int64_t block_size = 4;
constexpr std::int64_t columns = 24;
constexpr std::int64_t blocks = 3 * columns;

// A number in [-1, 1) from its place.
float number(std::uint64_t place) {
    place = (place + 1) * 0x9e3779b97f4a7c15ULL;
    place = (place ^ (place >> 29)) * 0xbf58476d1ce4e5b9ULL;
    return static_cast<float>(static_cast<std::int64_t>(place >> 40) - (1 << 23)) / static_cast<float>(1 << 23);
}

struct result {
    std::vector<float> out;
    std::vector<natural_lse> lse_out;
    bool operator==(const result&) const = default;
};

// A linear map of a head: each number twice, and the one opposite.
struct mirrored {
    template <class I, class P>
    void operator()(const head_view<const I>& from, const head_view<P>& to, host_stream) const {
        for (std::int64_t row = 0; row < from.rows; ++row)
            for (std::int64_t head = 0; head < from.heads; ++head)
                for (std::int64_t d = 0; d < width; ++d)
                    to.at(row, head)[d] = 2.0F * from.at(row, head)[d] + from.at(row, head)[width - 1 - d];
    }
};

// One step over three requests, on every rank the same inputs; returns what each rank gets.
template <class Backend, class Merge>
std::vector<result> decode_on(int size, Merge merge, bool sinks, bool maps = false) {
    using chosen = policy<gqa<bf16, width>, interleave<4>, Merge>;
    std::vector<result> results(static_cast<std::size_t>(size));
    run_local_ranks(size, local_options{}, [&](local_communicator& kv) {
        const std::int64_t n = kv.size();
        decode_shape shape;
        shape.sizes.tp = shape.sizes.dcp = n;
        shape.q_heads = heads_per_rank * n;
        shape.max_requests = 3;
        shape.max_rows = 6;
        shape.longest = 128;
        shape.pool_blocks = blocks;
        shape.output = scalar_type::f32;
        shape.merged_lse = true;
        shape.mapped_width = maps ? width : 0;
        decoder<chosen, Backend, local_communicator> decoder{{&kv}, shape, chosen{{}, {}, merge}};
        std::vector<std::byte> memory(decoder.workspace_bytes() + workspace_alignment);
        void* aligned = memory.data();
        std::size_t room = memory.size();
        std::align(workspace_alignment, decoder.workspace_bytes(), aligned, room);

        const std::int64_t lengths[] = {3, 70, 17}; // the first leaves ranks empty
        const std::int64_t query_rows[] = {2, 1, 3};
        std::int64_t table[3][columns];
        for (std::int64_t r = 0; r < 3; ++r)
            for (std::int64_t b = 0; b < columns; ++b) table[r][b] = b * 3 + r;
        std::vector<bf16> k(blocks * block_size * width, bf16(std::nanf("")));
        std::vector<bf16> v(blocks * block_size * width, bf16(std::nanf("")));
        const auto cache = nhd_kv(k.data(), v.data(), blocks, block_size, std::int64_t{1}, width, width);
        const block_table blocks_of_ranks = table_2d(&table[0][0], 3, columns, block_size);
        const shard part{n, kv.rank(), 4};
        for (std::int64_t r = 0; r < 3; ++r)
            for (std::int64_t p = 0; p < lengths[r]; ++p) {
                const std::int64_t slot = slot_of(part, blocks_of_ranks, r, p);
                for (std::int64_t d = 0; slot >= 0 && d < width; ++d) {
                    const auto place = static_cast<std::uint64_t>((r * 1000 + p) * 100 + d);
                    cache.key(slot, 0)[d] = bf16(3.0F * number(2 * place));
                    cache.value(slot, 0)[d] = bf16(number(2 * place + 1));
                }
            }
        std::vector<bf16> q(6 * heads_per_rank * width);
        for (std::size_t i = 0; i < q.size(); ++i)
            q[i] = bf16(number(77 + i + 1000 * static_cast<std::uint64_t>(kv.rank())));
        std::vector<float> sink(static_cast<std::size_t>(shape.q_heads), 0.5F);

        decode_batch batch;
        batch.requests = 3;
        batch.lengths = index_of(lengths);
        batch.query_rows = index_of(query_rows);
        batch.table = blocks_of_ranks;
        result& mine = results[static_cast<std::size_t>(kv.rank())];
        mine.out.resize(6 * heads_per_rank * width);
        mine.lse_out.resize(6 * heads_per_rank);
        layer_options<> options;
        options.lse_out = dense_view(mine.lse_out.data(), 6, heads_per_rank, 1);
        options.sinks = sinks ? sink.data() : nullptr;
        auto step = decoder.plan(batch, {aligned, decoder.workspace_bytes()}, {});
        const auto queries = dense_view(static_cast<const bf16*>(q.data()), 6, heads_per_rank, width);
        const auto out = dense_view(mine.out.data(), 6, heads_per_rank, width);
        if (maps) {
            decoder.decode(step, queries, cache, out, options, head_maps{no_map{}, mirrored{}}, {});
        } else {
            decoder.decode(step, queries, cache, out, options, {});
        }
    });
    return results;
}

void check_close(const std::vector<result>& got, const std::vector<result>& wanted) {
    double error = 0.0;
    double scale = 0.0;
    REQUIRE(got.size() == wanted.size());
    for (std::size_t r = 0; r < got.size(); ++r) {
        for (std::size_t i = 0; i < got[r].out.size(); ++i) {
            error += std::pow(static_cast<double>(got[r].out[i]) - static_cast<double>(wanted[r].out[i]), 2);
            scale += std::pow(static_cast<double>(wanted[r].out[i]), 2);
        }
        for (std::size_t i = 0; i < got[r].lse_out.size(); ++i)
            CHECK(got[r].lse_out[i].value == doctest::Approx(wanted[r].lse_out[i].value).epsilon(1e-5));
    }
    CHECK(std::sqrt(error / scale) <= 2e-6);
}

} // namespace

TEST_CASE("a lengths-only callable with dense outputs in base 2 equals the built-in attention") {
    using own = with_attention<cpu_backend, plain_attention<lse_base::binary>>;
    for (const int size : {1, 2, 3, 4}) {
        for (const bool sinks : {false, true}) {
            for (const merge_kind kind : {merge_kind::a2a, merge_kind::ag_rs, merge_kind::ag_ar}) {
                CAPTURE(size);
                CAPTURE(sinks);
                const merge::dynamic merge{kind};
                check_close(decode_on<own>(size, merge, sinks), decode_on<cpu_backend>(size, merge, sinks));
            }
        }
    }
}

TEST_CASE("what a callable writes for rows without keys goes through a map of heads and no further") {
    using own = with_attention<cpu_backend, plain_attention<lse_base::binary>>;
    for (const int size : {1, 2, 4}) {
        for (const merge_kind kind : {merge_kind::a2a, merge_kind::ag_rs, merge_kind::ag_ar}) {
            CAPTURE(size);
            const merge::dynamic merge{kind};
            const auto mapped = decode_on<cpu_backend>(size, merge, true, true);
            check_close(decode_on<own>(size, merge, true, true), mapped);
            auto plain = decode_on<cpu_backend>(size, merge, true); // mapped here
            for (result& rank : plain) {
                const std::vector<float> from = rank.out;
                for (std::size_t i = 0; i < from.size(); ++i)
                    rank.out[i] = 2.0F * from[i] + from[i / width * width + (width - 1 - i % width)];
            }
            check_close(mapped, plain);
        }
    }
}

TEST_CASE("a callable that takes lengths only is not given a window or a draft tree") {
    using own = with_attention<cpu_backend, plain_attention<lse_base::natural>>;
    using chosen = policy<gqa<bf16, width>, interleave<4>, merge::a2a>;
    decode_shape shape;
    shape.longest = 16;
    decoder<chosen, own, local_communicator> decoder{{}, shape};
    alignas(workspace_alignment) static std::byte memory[1 << 16];
    REQUIRE(decoder.workspace_bytes() <= sizeof(memory));
    const std::int64_t length = 9;
    decode_batch batch;
    batch.requests = 1;
    batch.lengths = index_of(&length);
    batch.table = identity_table(1, 16);
    batch.mask.window = 4;
    CHECK_THROWS_AS(decoder.plan(batch, {memory, sizeof(memory)}, {}), config_error);
    batch.mask.window = 0;
    CHECK_NOTHROW(decoder.plan(batch, {memory, sizeof(memory)}, {}));
    const std::uint64_t bits = 1;
    batch.tree_bits = &bits;
    CHECK_THROWS_AS(decoder.plan(batch, {memory, sizeof(memory)}, {}), config_error);
}

TEST_CASE("row pages are the CSR lists of one-row requests") {
    const std::int64_t row_lengths[] = {0, 5, 8};
    const std::int64_t row_requests[] = {0, 1, 1};
    const std::int32_t ids[] = {7, 8, 9, 4, 5, 6};
    attention_plan plan;
    plan.table = table_2d(ids, 2, 3, 4);
    plan.rows = 3;
    plan.arrays.row_lengths = const_cast<std::int64_t*>(row_lengths);
    plan.arrays.row_requests = const_cast<std::int64_t*>(row_requests);
    std::int32_t offsets[4];
    std::int32_t pages[8];
    std::int32_t last[3];
    write_row_pages(plan, offsets, pages, last);
    CHECK(std::vector<std::int32_t>(offsets, offsets + 4) == std::vector<std::int32_t>{0, 0, 2, 4});
    CHECK(std::vector<std::int32_t>(pages, pages + 4) == std::vector<std::int32_t>{4, 5, 4, 5});
    CHECK(std::vector<std::int32_t>(last, last + 3) == std::vector<std::int32_t>{0, 1, 4});
}
