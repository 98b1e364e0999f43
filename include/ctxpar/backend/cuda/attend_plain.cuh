// Attention of query rows over paged local keys on a device: the plain form, which takes any head size, any element
// types, any mask and any page layout. A warp takes one (row, head) and one split of its keys: lanes share the dot
// product of a key, every lane keeps the softmax, and each has its columns of the output.
//
// Sums have three levels, as on the CPU: a key, a cell of 1,024 keys, the split; P stays fp32. Where all rows of all
// inputs allow it they are read in pieces of 16 bytes. The order of sums depends on that, so it is one choice for a
// launch and not for a row: the bits of a request do not depend on its place among others.
#pragma once

#include <cstdint>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cuda/attend_output.cuh>
#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/pieces.cuh>

namespace ctxpar::inline v0_1::cuda {

// Output columns of a lane: value widths up to 32 * this.
inline constexpr int most_lane_columns = 16;
inline constexpr std::int64_t most_value_width = warp_size * most_lane_columns;

// The sum of what all lanes give, the same bits on every lane.
CTXPAR_DEVICE float sum_of_lanes(float value) {
    for (unsigned step = warp_size / 2; step > 0; step /= 2) value += from_lane_xor(value, step);
    return value;
}

// Which columns of the output a lane has: runs of `piece` elements.
template <int Columns, int Piece>
struct lane_columns {
    static constexpr int count = Columns > Piece ? Columns : Piece;
    bool wide; // runs of Piece, else of one

    CTXPAR_DEVICE std::int64_t operator[](int c) const {
        const auto lane = static_cast<std::int64_t>(lane_index());
        return wide ? (c / Piece * std::int64_t{warp_size} + lane) * Piece + c % Piece
                    : c * std::int64_t{warp_size} + lane;
    }
};

// The state of one (row, head): a softmax and this lane's columns of the weighted values.
template <int Columns>
struct lane_state {
    softmax_state<lse_base::natural> softmax;
    float sums[Columns] = {};

    CTXPAR_DEVICE void merge(const lane_state& other) {
        const auto factor = softmax.merge(other.softmax);
        for (int c = 0; c < Columns; ++c) sums[c] = sums[c] * factor.own + other.sums[c] * factor.other;
    }
};

// One warp at work on one (row, head) and split.
template <int Columns, class Q, class Kv>
struct plain_attention {
    static constexpr int piece = 16 / static_cast<int>(sizeof(Kv));
    using columns = lane_columns<Columns, piece>;
    using state = lane_state<columns::count>;

    const attend_call<Q, Kv>& call;
    const segment& run;
    columns at;
    std::int64_t row;
    std::int64_t head;
    std::int64_t split;

    CTXPAR_DEVICE float score(std::int64_t kv_head, std::int64_t page, std::int64_t token) const {
        const auto& args = call.attend;
        const Q* const query = args.q.at(row, head);
        const Kv* const key = args.cache.k.at(page, token, kv_head);
        float product = 0.0F;
        if (at.wide) {
            for (std::int64_t d = std::int64_t{lane_index()} * piece; d < args.q.width; d += warp_size * piece) {
                const auto q = read_piece<piece>(query + d);
                const auto k = read_piece<piece>(key + d);
                CTXPAR_UNROLL_ALL
                for (int x = 0; x < piece; ++x) product += q.at[x] * k.at[x];
            }
        } else {
            for (std::int64_t d = lane_index(); d < args.q.width; d += warp_size)
                product += widened(query[d]) * widened(key[d]);
        }
        const float scaled = sum_of_lanes(product) * (args.score.scale * args.cache.k_scale.at(page, token, kv_head));
        const float cap = args.score.soft_cap;
        return cap > 0.0F ? cap * tanhf(scaled / cap) : scaled;
    }

    // sums = sums * factor + weight * value
    CTXPAR_DEVICE void add_value(state& cell, float factor, float weight, const Kv* value) const {
        const std::int64_t width = call.attend.out.width;
        if (at.wide) {
            CTXPAR_UNROLL_ALL
            for (int c = 0; c < columns::count; c += piece) {
                if (at[c] >= width) continue;
                const auto more = read_piece<piece>(value + at[c]);
                CTXPAR_UNROLL_ALL
                for (int x = 0; x < piece; ++x) cell.sums[c + x] = cell.sums[c + x] * factor + weight * more.at[x];
            }
        } else {
            CTXPAR_UNROLL_ALL
            for (int c = 0; c < Columns; ++c) {
                if (at[c] < width) cell.sums[c] = cell.sums[c] * factor + weight * widened(value[at[c]]);
            }
        }
    }

    // All keys [begin, end) that the row sees.
    CTXPAR_DEVICE state attend_keys(std::int64_t begin, std::int64_t end) const {
        const auto& args = call.attend;
        const visible_keys seen = args.plan.arrays.rows[row];
        const std::int64_t kv_head = head / (args.q.heads / args.cache.kv_heads);
        const kv_scale& value_scale = values_in_keys(args.cache) ? args.cache.k_scale : args.cache.v_scale;
        state total;
        state cell;
        CTXPAR_ROLLED
        for (std::int64_t key = begin; key < end; ++key) {
            if (key % split_grain == 0) {
                total.merge(cell);
                cell = {};
            }
            if (!seen.sees(key)) continue;
            const std::int64_t slot = args.plan.table.slot(run.request, key);
            const std::int64_t page = args.cache.page_of(slot);
            const std::int64_t token = args.cache.token_of(slot);
            const float of_key = score(kv_head, page, token);
            const float factor = cell.softmax.raise(of_key);
            const float weight = cell.softmax.add(of_key) * value_scale.at(page, token, kv_head);
            add_value(cell, factor, weight, args.cache.v.at(page, token, kv_head));
        }
        total.merge(cell);
        return total;
    }

    CTXPAR_DEVICE void write(const state& result) const {
        const auto& args = call.attend;
        const natural_lse lse_value = result.softmax.finish();
        const bool nothing = is_minus_infinity(lse_value.value);
        const bool is_split = run.splits() > 1;
        const std::int64_t vector = (split * args.out.rows + row) * args.out.heads + head;
        const std::int64_t first = is_split ? vector * args.out.width : args.out.offset(row, head);
        float* const wide = is_split ? args.scratch.split_out : args.out.base;
        const bool narrow = !is_split && call.narrow_base != nullptr;
        CTXPAR_UNROLL_ALL
        for (int c = 0; c < columns::count; ++c) {
            const std::int64_t d = at[c];
            if (d >= args.out.width || (!at.wide && c >= Columns)) continue;
            const float value = nothing ? 0.0F : result.sums[c] / result.softmax.sum;
            if (narrow) {
                call.narrow_base[first + d] = rounded_to<Q>(value);
            } else {
                wide[first + d] = value;
            }
        }
        if (lane_index() == 0) *(is_split ? args.scratch.split_lse + vector : args.lse_out.at(row, head)) = lse_value;
    }

    CTXPAR_DEVICE void attend() const {
        const std::int64_t first = (run.first_split + split) * run.split_tokens;
        const visible_keys seen = call.attend.plan.arrays.rows[row];
        const std::int64_t from = seen.prefix > 0 ? 0 : seen.lo;
        const std::int64_t begin = from > first ? from : first;
        const std::int64_t end = seen.hi < first + run.split_tokens ? seen.hi : first + run.split_tokens;
        write(attend_keys(begin, end));
    }
};

// Rows over blocks in x, splits in y; the warps of a block share the heads of a row. `wide`: rows of queries, keys and
// values are pieces of 16 bytes, at multiples of 16.
template <int Columns, class Q, class Kv>
CTXPAR_KERNEL void attend_plain_kernel(attend_call<Q, Kv> call, bool wide) {
    const auto& args = call.attend;
    const std::int64_t warps = block_threads() / warp_size;
    for (std::int64_t s = 0; s < args.plan.segments; ++s) {
        const segment& run = args.plan.arrays.segments[s];
        const std::int64_t splits = run.splits() > 1 ? run.splits() : 1;
        for (std::int64_t r = block_x(); r < run.rows; r += grid_x())
            for (std::int64_t split = block_y(); split < splits; split += grid_y())
                for (std::int64_t head = thread_index() / warp_size; head < args.q.heads; head += warps)
                    plain_attention<Columns, Q, Kv>{call, run, {wide}, run.first_row + r, head, split}.attend();
    }
}

} // namespace ctxpar::inline v0_1::cuda
