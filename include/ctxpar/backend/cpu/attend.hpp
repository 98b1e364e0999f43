// Attention of query rows over paged local keys on the CPU.
//
// Work is cut into items (item.hpp). One with few (row, head) pairs reads its keys where they lie (stream_walk.hpp).
// Any other is walked here, with up to 32 pairs of one KV head, in tiles of 32 keys: K and V rows are widened to fp32
// once for all pairs, tiles.hpp does the arithmetic, the softmax is online, P stays fp32.
//
// Sums have three levels, to stay exact at a million keys: registers over a tile, a cell of 1,024 keys, and the split.
// Cells and tiles lie at multiples of their size from key 0, wherever a row's interval starts.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cpu/combine.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/item.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>
#include <ctxpar/backend/cpu/stream_walk.hpp>
#include <ctxpar/backend/cpu/tiles.hpp>

namespace ctxpar::inline v0_1::cpu {

// A thread's scratch memory, carved from floats.
struct attend_buffers {
    float* q;      // [dq padded][pairs padded]
    float* keys;   // [tile_keys][dq padded]
    float* values; // [tile_keys][dv padded]; the keys themselves where values are in the keys
    float* p;      // [tile_keys][pairs padded] scores, then probabilities
    float* cell;   // [pair_block][dv padded] unnormalised output of the cell
    float* total;  // [pair_block][dv padded] of the split

    static constexpr std::int64_t floats(std::int64_t query_width, std::int64_t value_width) {
        const std::int64_t q_pad = padded(query_width);
        const std::int64_t v_pad = padded(value_width);
        return (pair_block + tile_keys) * q_pad + (tile_keys + 2 * pair_block) * v_pad + pair_block * tile_keys;
    }
    static attend_buffers carve(float* memory, std::int64_t query_width, std::int64_t value_width) {
        const std::int64_t q_pad = padded(query_width);
        const std::int64_t v_pad = padded(value_width);
        attend_buffers b{};
        b.q = memory;
        b.keys = b.q + pair_block * q_pad;
        b.values = b.keys + tile_keys * q_pad;
        b.p = b.values + tile_keys * v_pad;
        b.cell = b.p + pair_block * tile_keys;
        b.total = b.cell + pair_block * v_pad;
        return b;
    }
};

// One thread's walk over the keys of an item.
template <class Args>
class attend_walk {
    using query = typename item_view<Args>::query;
    using stored = typename item_view<Args>::stored;

public:
    attend_walk(isa set, const Args& args, const attend_item& item, float* scratch)
        : args_(args), item_(item), view_{args, item}, kernels_(kernels_of(set)), widen_query_(widen_of<query>(set)),
          widen_stored_(widen_of<stored>(set)), q_pad_(padded(args.q.width)), v_pad_(padded(args.out.width)),
          lanes_(padded(item.pairs)), buffers_(attend_buffers::carve(scratch, args.q.width, args.out.width)),
          shared_(values_in_keys(args.cache)) {}

    void run() {
        std::fill_n(buffers_.cell, lanes_ * v_pad_, 0.0F);
        std::fill_n(buffers_.total, item_.pairs * v_pad_, 0.0F);
        load_queries();
        const std::int64_t end = view_.last_key();
        for (std::int64_t first = view_.first_tile(); first < end; first += tile_keys) {
            add_tile(first);
            if ((first + tile_keys) % split_grain == 0 || first + tile_keys >= end) fold_cell();
        }
        for (std::int64_t i = 0; i < item_.pairs; ++i)
            view_.write(item_.kv_head, i, total_[i], buffers_.total + i * v_pad_);
    }

private:
    // Of a key.
    struct place {
        std::int64_t page;
        std::int64_t token;
    };

    // Queries lie with the pairs side by side, [column][pair].
    void load_queries() {
        std::fill_n(buffers_.q, q_pad_ * lanes_, 0.0F);
        static_assert(pair_block <= tile_keys);
        float* const rows = buffers_.keys; // they have room there
        for (std::int64_t i = 0; i < item_.pairs; ++i) {
            row_[i] = view_.row_of(i);
            widen_query_(args_.q.at(row_[i], view_.head_of(item_.kv_head, i)), args_.q.width, rows + i * q_pad_);
        }
        for (std::int64_t d = 0; d < args_.q.width; ++d)
            for (std::int64_t i = 0; i < item_.pairs; ++i) buffers_.q[d * lanes_ + i] = rows[i * q_pad_ + d];
    }

    // What each pair sees of the tile; returns the union.
    std::uint32_t mask_tile(std::int64_t first) {
        std::uint32_t any = 0;
        for (std::int64_t i = 0; i < item_.pairs; ++i) {
            const bool same_row = i > 0 && row_[i] == row_[i - 1];
            mask_[i] = same_row ? mask_[i - 1] : args_.plan.arrays.rows[row_[i]].tile_mask(first);
            any |= mask_[i];
        }
        return any;
    }

    // Where the keys of a tile in `mask` lie; the others are left as they are.
    void find(std::int64_t first, std::uint32_t mask, place (&at)[tile_keys]) const {
        const std::int64_t block_size = args_.plan.table.block_size;
        std::int64_t left = 0; // keys from here on that lie one after the other
        for (std::int64_t t = 0; t < tile_keys; ++t, --left) {
            if ((mask >> t & 1U) == 0) {
                left = 1;
            } else if (left > 0) {
                at[t] = {at[t - 1].page, at[t - 1].token + 1};
            } else {
                const std::int64_t slot = args_.plan.table.slot(item_.run->request, first + t);
                at[t] = {args_.cache.page_of(slot), args_.cache.token_of(slot)};
                left = std::min(block_size - (first + t) % block_size, args_.cache.page_size - at[t].token);
            }
        }
    }

    // Asks for the rows of a key that the next tile will read: heads of one token lie next to each other, so the rows
    // of one head are too far apart for the processor to foresee.
    void prefetch_key(const place& at) const {
        prefetch_row(args_.cache.k.at(at.page, at.token, item_.kv_head), args_.q.width);
        if (!shared_) prefetch_row(args_.cache.v.at(at.page, at.token, item_.kv_head), args_.out.width);
    }
    static void prefetch_row(const stored* row, std::int64_t width) {
        const char* const bytes = reinterpret_cast<const char*>(row);
        for (std::int64_t b = 0; b < width * static_cast<std::int64_t>(sizeof(stored)); b += 64)
            __builtin_prefetch(bytes + b);
    }

    // Widens the keys that some row sees; the others, whose blocks may be gone, are zero and not touched.
    void load_tile(std::int64_t first, std::uint32_t any) {
        const std::uint32_t ahead = view_.seen_by(item_.pairs - 1).tile_mask(first + tile_keys);
        place next[tile_keys];
        place here[tile_keys];
        find(first + tile_keys, ahead, next);
        find(first, any, here);
        for (std::int64_t t = 0; t < tile_keys; ++t) {
            if ((ahead >> t & 1U) != 0) prefetch_key(next[t]);
            if ((any >> t & 1U) == 0) {
                std::fill_n(buffers_.keys + t * q_pad_, q_pad_, 0.0F);
                if (!shared_) std::fill_n(buffers_.values + t * v_pad_, v_pad_, 0.0F);
                factors_.key[t] = factors_.value[t] = 0.0F;
                continue;
            }
            const auto [page, token] = here[t];
            const kv_scale& value_scale = shared_ ? args_.cache.k_scale : args_.cache.v_scale;
            widen_stored_(args_.cache.k.at(page, token, item_.kv_head), args_.q.width, buffers_.keys + t * q_pad_);
            if (!shared_)
                widen_stored_(args_.cache.v.at(page, token, item_.kv_head), args_.out.width,
                              buffers_.values + t * v_pad_);
            factors_.key[t] = args_.score.scale * args_.cache.k_scale.at(page, token, item_.kv_head);
            factors_.value[t] = value_scale.at(page, token, item_.kv_head);
        }
    }

    // With a soft cap the factor of the key comes first, and is then done with.
    void cap_scores() {
        const float cap = args_.score.soft_cap;
        for (std::int64_t t = 0; t < tile_keys; ++t)
            for (std::int64_t i = 0; i < item_.pairs; ++i) {
                float& score = buffers_.p[t * lanes_ + i];
                score = cap * std::tanh(score * factors_.key[t] / cap);
            }
        std::fill_n(factors_.key, tile_keys, 1.0F);
    }

    void add_tile(std::int64_t first) {
        const std::uint32_t any = mask_tile(first);
        if (any == 0) return;
        load_tile(first, any);
        kernels_.score({buffers_.q, buffers_.keys, q_pad_, lanes_, buffers_.p});
        if (args_.score.soft_cap > 0.0F) cap_scores();
        float keep[pair_block];
        kernels_.weigh({buffers_.p, mask_, lanes_, keep}, factors_, cell_);
        float* const values = shared_ ? buffers_.keys : buffers_.values;
        const std::int64_t stride = shared_ ? q_pad_ : v_pad_;
        const std::uint32_t apart = take_out(values, stride, any);
        const tile_values tile{
            buffers_.p, lanes_,        values, stride, std::countr_zero(any), tile_keys - std::countl_zero(any),
            keep,       buffers_.cell, v_pad_};
        kernels_.add(tile, item_.pairs);
        for (std::uint32_t rest = apart; rest != 0; rest &= rest - 1)
            add_apart(first, std::countr_zero(rest), values + std::countr_zero(rest) * stride);
    }

    // A value that not all pairs see must not reach those that don't, whatever it holds: 0 times NaN is NaN. Zeroes
    // such values where they are not finite, and returns their keys.
    std::uint32_t take_out(float* values, std::int64_t stride, std::uint32_t any) const {
        std::uint32_t all = any;
        for (std::int64_t i = 0; i < item_.pairs; ++i) all &= mask_[i];
        std::uint32_t apart = 0;
        for (std::uint32_t rest = any & ~all; rest != 0; rest &= rest - 1) {
            float* const value = values + std::countr_zero(rest) * stride;
            const auto finite = [](float x) { return (std::bit_cast<std::uint32_t>(x) & 0x7f800000U) != 0x7f800000U; };
            if (std::all_of(value, value + args_.out.width, finite)) continue;
            std::fill_n(value, args_.out.width, 0.0F);
            apart |= rest & -rest;
        }
        return apart;
    }

    // Adds key first + t, whose value was taken out, to the pairs that see it; `value` is room for its row.
    void add_apart(std::int64_t first, std::int64_t t, float* value) {
        const std::int64_t slot = args_.plan.table.slot(item_.run->request, first + t);
        const auto& plane = shared_ ? args_.cache.k : args_.cache.v;
        widen_stored_(plane.at(args_.cache.page_of(slot), args_.cache.token_of(slot), item_.kv_head), args_.out.width,
                      value);
        for (std::int64_t i = 0; i < item_.pairs; ++i) {
            if ((mask_[i] >> t & 1U) == 0) continue;
            const float weight = buffers_.p[t * lanes_ + i];
            for (std::int64_t d = 0; d < args_.out.width; ++d) buffers_.cell[i * v_pad_ + d] += weight * value[d];
        }
    }

    // Puts the cell's state into the split's.
    void fold_cell() {
        for (std::int64_t i = 0; i < item_.pairs; ++i) {
            const auto factor = total_[i].merge(cell_.of(i));
            float* sum = buffers_.total + i * v_pad_;
            const float* add = buffers_.cell + i * v_pad_;
            for (std::int64_t d = 0; d < v_pad_; ++d) sum[d] = sum[d] * factor.own + add[d] * factor.other;
        }
        cell_ = tile_softmax::none();
        std::fill_n(buffers_.cell, lanes_ * v_pad_, 0.0F);
    }

    const Args& args_;
    const attend_item& item_;
    item_view<Args> view_;
    tile_kernels kernels_;
    widen_function<query> widen_query_;
    widen_function<stored> widen_stored_;
    std::int64_t q_pad_;
    std::int64_t v_pad_;
    std::int64_t lanes_; // pairs, padded
    attend_buffers buffers_;
    bool shared_; // values are the first elements of the key rows
    tile_factors factors_{};
    std::int64_t row_[pair_block] = {};
    std::uint32_t mask_[pair_block] = {};
    tile_softmax cell_ = tile_softmax::none();
    running_softmax total_[pair_block];
};

// fp32 numbers of scratch memory that one thread needs.
constexpr std::int64_t attend_floats(std::int64_t query_width, std::int64_t value_width) {
    return padded(std::max(attend_buffers::floats(query_width, value_width), stream_floats(query_width, value_width)));
}

// Does one item with the kernels of an instruction set.
template <class Args>
void attend_one(isa set, const Args& args, const attend_item& item, float* scratch) {
    if (streams_keys(args, item.pairs)) {
        stream_walk<Args>(set, args, item, scratch).run();
    } else {
        attend_walk<Args>(set, args, item, scratch).run();
    }
}

// Items of one segment: (KV heads, block of pairs, split), splits fastest. A segment without keys has one split, which
// writes the empty state.
struct segment_items {
    std::int64_t kv_heads;
    std::int64_t heads_of_item;
    std::int64_t pairs;
    std::int64_t splits;

    // Items take fewer KV heads where there would be fewer than `wanted`; that changes no result.
    template <class Args>
    segment_items(const Args& args, const segment& run, std::int64_t wanted = 1)
        : kv_heads(args.cache.kv_heads), heads_of_item(1), pairs(run.rows * (args.q.heads / args.cache.kv_heads)),
          splits(std::max<std::int64_t>(run.splits(), 1)) {
        if (blocks() > 1 || !streams_keys(args, pairs)) return;
        heads_of_item = heads_together(args, pairs);
        while (heads_of_item > 1 && count() < wanted) heads_of_item = (heads_of_item + 1) / 2;
    }

    std::int64_t blocks() const { return (pairs + pair_block - 1) / pair_block; }
    std::int64_t groups() const { return (kv_heads + heads_of_item - 1) / heads_of_item; }
    std::int64_t count() const { return groups() * blocks() * splits; }
    attend_item item(const segment& run, std::int64_t index) const {
        attend_item one;
        one.run = &run;
        one.split = index % splits;
        one.first_pair = index / splits % blocks() * pair_block;
        one.pairs = std::min(pair_block, pairs - one.first_pair);
        one.kv_head = index / splits / blocks() * heads_of_item;
        one.kv_heads = std::min(heads_of_item, kv_heads - one.kv_head);
        return one;
    }
};

// Merges the splits of one row, all heads.
template <class Args>
void combine_splits(isa set, const Args& args, std::int64_t row, std::int64_t splits) {
    using element = std::remove_reference_t<decltype(*args.out.base)>;
    const combine_function<float, element> combine = combine_of<float, element>(set);
    const std::int64_t step = args.out.rows * args.out.heads;
    for (std::int64_t head = 0; head < args.out.heads; ++head) {
        const std::int64_t first = row * args.out.heads + head;
        const natural_lse* lses = args.scratch.split_lse + first;
        merge_weights<lse_base::natural> weights;
        for (std::int64_t s = 0; s < splits; ++s) weights.see(lses[s * step]);
        for (std::int64_t s = 0; s < splits; ++s) weights.add(lses[s * step]);
        const float* vectors[max_merge_parts];
        float weight[max_merge_parts];
        std::int64_t count = 0;
        for (std::int64_t s = 0; s < splits; ++s) {
            if (!weights.has_weight(lses[s * step])) continue;
            float* const sum = args.scratch.split_out + (s * step + first) * args.out.width;
            vectors[count] = sum;
            weight[count++] = weights.weight(lses[s * step]);
            if (count < max_merge_parts) continue; // what there is so far goes on as one vector
            combine_of<float, float>(set)(vectors, weight, count, args.out.width, sum);
            vectors[0] = sum;
            weight[0] = 1.0F;
            count = 1;
        }
        element* const to = args.out.at(row, head);
        if (count == 0) {
            std::fill_n(to, args.out.width, element(0.0F));
        } else {
            combine(vectors, weight, count, args.out.width, to);
        }
        args.lse_out.at(row, head)->value = weights.result().value;
    }
}

} // namespace ctxpar::inline v0_1::cpu
