// Attention of query rows over paged local keys on the CPU.
//
// Work is cut into items of (segment, KV head, up to 32 (row, head) pairs, split of the keys); each is done by one
// thread and none depends on another, so bits depend neither on threads nor on the rest of the batch. An item walks its
// keys in tiles of 32: K and V rows are widened to fp32 once for all pairs, tiles.hpp does the
// arithmetic, the softmax is online, P stays fp32.
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
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>
#include <ctxpar/backend/cpu/tiles.hpp>

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t pair_block = 32;

constexpr std::int64_t padded(std::int64_t width) {
    return (width + pad_floats - 1) / pad_floats * pad_floats;
}

// One unit of work.
struct attend_item {
    const segment* run = nullptr;
    std::int64_t kv_head = 0;
    std::int64_t first_pair = 0; // pairs of the segment: pair = row_in_segment * heads_per_kv + head_in_group
    std::int64_t pairs = 0;
    std::int64_t split = 0; // 0 .. run->splits() - 1
};

// A thread's scratch memory, carved from floats.
struct attend_buffers {
    float* q;      // [pair_block][dq padded]
    float* keys;   // [tile_keys][dq padded]
    float* values; // [tile_keys][dv padded]; the keys themselves where values are in the keys
    float* p;      // [pair_block][tile_keys] scores, then probabilities
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
    using query = std::remove_const_t<std::remove_reference_t<decltype(*std::declval<Args>().q.base)>>;
    using stored = std::remove_const_t<std::remove_reference_t<decltype(*std::declval<Args>().cache.k.base)>>;

public:
    attend_walk(isa set, const Args& args, const attend_item& item, float* scratch)
        : args_(args), item_(item), kernels_(kernels_of(set)), widen_query_(widen_of<query>(set)),
          widen_stored_(widen_of<stored>(set)), group_(args.q.heads / args.cache.kv_heads),
          q_pad_(padded(args.q.width)), v_pad_(padded(args.out.width)),
          buffers_(attend_buffers::carve(scratch, args.q.width, args.out.width)), shared_(values_in_keys(args.cache)) {}

    void run() {
        std::fill_n(buffers_.cell, item_.pairs * v_pad_, 0.0F);
        std::fill_n(buffers_.total, item_.pairs * v_pad_, 0.0F);
        for (std::int64_t i = 0; i < item_.pairs; ++i)
            widen_query_(args_.q.at(row_of(i), head_of(i)), args_.q.width, buffers_.q + i * q_pad_);
        const segment& run = *item_.run;
        const std::int64_t split_begin = (run.first_split + item_.split) * run.split_tokens;
        const std::int64_t begin = std::max(first_key(), split_begin) / tile_keys * tile_keys;
        const std::int64_t end = std::min(last_key(), split_begin + run.split_tokens);
        for (std::int64_t first = begin; first < end; first += tile_keys) {
            add_tile(first);
            if ((first + tile_keys) % split_grain == 0 || first + tile_keys >= end) fold_cell();
        }
        for (std::int64_t i = 0; i < item_.pairs; ++i) write(i);
    }

private:
    // No row of the item sees a key outside [first_key(), last_key()): in a segment bounds never decrease; any of its
    // rows may have a prefix.
    std::int64_t first_key() const {
        const visible_keys* const rows = args_.plan.arrays.rows;
        const bool prefix = std::any_of(rows + row_of(0), rows + row_of(item_.pairs - 1) + 1,
                                        [](const visible_keys& row) { return row.prefix > 0; });
        return prefix ? 0 : std::max(item_.run->begin, rows[row_of(0)].lo);
    }
    std::int64_t last_key() const {
        return std::min(item_.run->end, args_.plan.arrays.rows[row_of(item_.pairs - 1)].hi);
    }
    std::int64_t row_of(std::int64_t pair) const { return item_.run->first_row + (item_.first_pair + pair) / group_; }
    std::int64_t head_of(std::int64_t pair) const {
        return item_.kv_head * group_ + (item_.first_pair + pair) % group_;
    }

    // What each pair sees of the tile; returns the union.
    std::uint32_t mask_tile(std::int64_t first) {
        std::uint32_t any = 0;
        for (std::int64_t i = 0; i < item_.pairs; ++i) {
            const bool same_row = i > 0 && row_of(i) == row_of(i - 1);
            mask_[i] = same_row ? mask_[i - 1] : args_.plan.arrays.rows[row_of(i)].tile_mask(first);
            any |= mask_[i];
        }
        return any;
    }

    // Asks for the rows of a key that the next tile will read: heads of one token lie next to each other, so the rows
    // of one head are too far apart for the processor to foresee.
    void prefetch_key(std::int64_t key) {
        const std::int64_t slot = args_.plan.table.slot(item_.run->request, key);
        const std::int64_t page = args_.cache.page_of(slot);
        const std::int64_t token = args_.cache.token_of(slot);
        prefetch_row(args_.cache.k.at(page, token, item_.kv_head), args_.q.width);
        if (!shared_) prefetch_row(args_.cache.v.at(page, token, item_.kv_head), args_.out.width);
    }
    static void prefetch_row(const stored* row, std::int64_t width) {
        const char* const bytes = reinterpret_cast<const char*>(row);
        for (std::int64_t b = 0; b < width * static_cast<std::int64_t>(sizeof(stored)); b += 64)
            __builtin_prefetch(bytes + b);
    }

    // Widens the keys that some row sees; the others, whose blocks may be gone, are zero and not touched.
    void load_tile(std::int64_t first, std::uint32_t any) {
        const std::uint32_t ahead = args_.plan.arrays.rows[row_of(item_.pairs - 1)].tile_mask(first + tile_keys);
        for (std::int64_t t = 0; t < tile_keys; ++t) {
            if ((ahead >> t & 1U) != 0) prefetch_key(first + tile_keys + t);
            if ((any >> t & 1U) == 0) {
                std::fill_n(buffers_.keys + t * q_pad_, q_pad_, 0.0F);
                if (!shared_) std::fill_n(buffers_.values + t * v_pad_, v_pad_, 0.0F);
                factors_.key[t] = factors_.value[t] = 0.0F;
                continue;
            }
            const std::int64_t slot = args_.plan.table.slot(item_.run->request, first + t);
            const std::int64_t page = args_.cache.page_of(slot);
            const std::int64_t token = args_.cache.token_of(slot);
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
        for (std::int64_t i = 0; i < item_.pairs; ++i)
            for (std::int64_t t = 0; t < tile_keys; ++t) {
                float& score = buffers_.p[i * tile_keys + t];
                score = cap * std::tanh(score * factors_.key[t] / cap);
            }
        std::fill_n(factors_.key, tile_keys, 1.0F);
    }

    void add_tile(std::int64_t first) {
        const std::uint32_t any = mask_tile(first);
        if (any == 0) return;
        load_tile(first, any);
        kernels_.score(buffers_.q, buffers_.keys, q_pad_, item_.pairs, buffers_.p);
        if (args_.score.soft_cap > 0.0F) cap_scores();
        float keep[pair_block];
        for (std::int64_t i = 0; i < item_.pairs; ++i)
            keep[i] = kernels_.weigh(buffers_.p + i * tile_keys, mask_[i], factors_, cell_[i]);
        float* const values = shared_ ? buffers_.keys : buffers_.values;
        const std::int64_t stride = shared_ ? q_pad_ : v_pad_;
        const std::uint32_t apart = take_out(values, stride, any);
        const tile_values tile{
            buffers_.p, values,        stride, std::countr_zero(any), tile_keys - std::countl_zero(any),
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
            const float weight = buffers_.p[i * tile_keys + t];
            for (std::int64_t d = 0; d < args_.out.width; ++d) buffers_.cell[i * v_pad_ + d] += weight * value[d];
        }
    }

    // Puts the cell's state into the split's.
    void fold_cell() {
        for (std::int64_t i = 0; i < item_.pairs; ++i) {
            const auto factor = total_[i].merge(cell_[i]);
            float* sum = buffers_.total + i * v_pad_;
            const float* add = buffers_.cell + i * v_pad_;
            for (std::int64_t d = 0; d < v_pad_; ++d) sum[d] = sum[d] * factor.own + add[d] * factor.other;
            cell_[i] = {};
        }
        std::fill_n(buffers_.cell, item_.pairs * v_pad_, 0.0F);
    }

    // The pair's O and LSE, to the output or, where the segment has several splits, to the split's partials.
    void write(std::int64_t i) {
        const std::int64_t row = row_of(i);
        const std::int64_t head = head_of(i);
        const natural_lse lse_value = total_[i].finish();
        const bool nothing = is_minus_infinity(lse_value.value);
        const float* sum = buffers_.total + i * v_pad_;
        if (item_.run->splits() > 1) {
            const std::int64_t at = (item_.split * args_.out.rows + row) * args_.out.heads + head;
            args_.scratch.split_lse[at] = lse_value;
            float* to = args_.scratch.split_out + at * args_.out.width;
            for (std::int64_t d = 0; d < args_.out.width; ++d) to[d] = nothing ? 0.0F : sum[d] / total_[i].sum;
            return;
        }
        using element = std::remove_reference_t<decltype(*args_.out.base)>;
        element* to = args_.out.at(row, head);
        for (std::int64_t d = 0; d < args_.out.width; ++d)
            to[d] = static_cast<element>(nothing ? 0.0F : sum[d] / total_[i].sum);
        args_.lse_out.at(row, head)->value = lse_value.value;
    }

    const Args& args_;
    const attend_item& item_;
    tile_kernels kernels_;
    widen_function<query> widen_query_;
    widen_function<stored> widen_stored_;
    std::int64_t group_; // query heads of a KV head
    std::int64_t q_pad_;
    std::int64_t v_pad_;
    attend_buffers buffers_;
    bool shared_; // values are the first elements of the key rows
    tile_factors factors_{};
    std::uint32_t mask_[pair_block] = {};
    running_softmax cell_[pair_block];
    running_softmax total_[pair_block];
};

// Does one item with the kernels of an instruction set.
template <class Args>
void attend_one(isa set, const Args& args, const attend_item& item, float* scratch) {
    attend_walk<Args>(set, args, item, scratch).run();
}

// Items of one segment: (KV head, block of pairs, split), splits fastest. A segment without keys has one split, which
// writes the empty state.
struct segment_items {
    std::int64_t kv_heads;
    std::int64_t pairs;
    std::int64_t splits;

    template <class Args>
    segment_items(const Args& args, const segment& run)
        : kv_heads(args.cache.kv_heads), pairs(run.rows * (args.q.heads / args.cache.kv_heads)),
          splits(std::max<std::int64_t>(run.splits(), 1)) {}

    std::int64_t blocks() const { return (pairs + pair_block - 1) / pair_block; }
    std::int64_t count() const { return kv_heads * blocks() * splits; }
    attend_item item(const segment& run, std::int64_t index) const {
        attend_item one;
        one.run = &run;
        one.split = index % splits;
        one.first_pair = index / splits % blocks() * pair_block;
        one.pairs = std::min(pair_block, pairs - one.first_pair);
        one.kv_head = index / splits / blocks();
        return one;
    }
};

// Merges the splits of one row, all heads.
template <class Args>
void combine_splits(const Args& args, std::int64_t row, std::int64_t splits) {
    using element = std::remove_reference_t<decltype(*args.out.base)>;
    const std::int64_t step = args.out.rows * args.out.heads;
    for (std::int64_t head = 0; head < args.out.heads; ++head) {
        const std::int64_t first = row * args.out.heads + head;
        const natural_lse* lses = args.scratch.split_lse + first;
        merge_weights<lse_base::natural> weights;
        for (std::int64_t s = 0; s < splits; ++s) weights.see(lses[s * step]);
        for (std::int64_t s = 0; s < splits; ++s) weights.add(lses[s * step]);
        element* to = args.out.at(row, head);
        for (std::int64_t d0 = 0; d0 < args.out.width; d0 += 64) {
            const std::int64_t columns = std::min<std::int64_t>(64, args.out.width - d0);
            float sum[64] = {};
            for (std::int64_t s = 0; s < splits; ++s) {
                if (!weights.has_weight(lses[s * step])) continue;
                const float weight = weights.weight(lses[s * step]);
                const float* from = args.scratch.split_out + (s * step + first) * args.out.width + d0;
                for (std::int64_t d = 0; d < columns; ++d) sum[d] += weight * from[d];
            }
            for (std::int64_t d = 0; d < columns; ++d) to[d0 + d] = static_cast<element>(sum[d]);
        }
        args.lse_out.at(row, head)->value = weights.result().value;
    }
}

} // namespace ctxpar::inline v0_1::cpu
