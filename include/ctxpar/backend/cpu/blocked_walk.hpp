// One thread's walk over the keys of an item with many pairs, a tile of keys at a time.
//
// K and V rows of a tile are widened to fp32 once for all pairs, which take turns in blocks of 32: what the registers
// and the first cache hold. A block's queries and sums come from the second cache then, which is why an item has more
// pairs the narrower its vectors are.
//
// Sums have three levels, to stay exact at a million keys: registers over a tile, a cell of 1,024 keys, and the split.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/item.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>
#include <ctxpar/backend/cpu/rows_ahead.hpp>
#include <ctxpar/backend/cpu/tiles.hpp>

namespace ctxpar::inline v0_1::cpu {

inline constexpr std::int64_t pair_block = tile_pairs;
inline constexpr std::int64_t most_blocks = 8;

// How many pairs an item may have: as many blocks as have their queries and sums in a part of the second cache.
constexpr std::int64_t most_item_pairs(std::int64_t query_width, std::int64_t value_width) {
    constexpr std::int64_t cache_floats = std::int64_t(1) << 18;
    const std::int64_t blocks = cache_floats / (pair_block * (padded(query_width) + 2 * padded(value_width)));
    return pair_block * std::clamp(blocks, std::int64_t(1), most_blocks);
}

// A thread's scratch memory, carved from floats.
struct blocked_buffers {
    float* keys;   // [tile_keys][dq padded]
    float* values; // [tile_keys][dv padded]; the keys themselves where values are in the keys
    float* p;      // [tile_keys][pair_block] scores, then weights
    float* blocks; // [blocks][block_floats()]

    static constexpr std::int64_t block_floats(std::int64_t q_pad, std::int64_t v_pad) {
        return pair_block * (q_pad + 2 * v_pad);
    }
    static constexpr std::int64_t floats(std::int64_t query_width, std::int64_t value_width) {
        const std::int64_t q_pad = padded(query_width);
        const std::int64_t v_pad = padded(value_width);
        return tile_keys * (q_pad + v_pad + pair_block) +
               most_item_pairs(query_width, value_width) / pair_block * block_floats(q_pad, v_pad);
    }
    static blocked_buffers carve(float* memory, std::int64_t q_pad, std::int64_t v_pad) {
        blocked_buffers b{};
        b.keys = memory;
        b.values = b.keys + tile_keys * q_pad;
        b.p = b.values + tile_keys * v_pad;
        b.blocks = b.p + tile_keys * pair_block;
        return b;
    }
};

// Up to 32 pairs: what they see of a tile, and their sums so far.
struct pair_group {
    std::int64_t first; // pair of the item
    std::int64_t pairs;
    std::int64_t lanes;             // pairs, padded
    std::uint32_t any;              // keys of the tile that some pair sees
    std::uint32_t all;              // that all pairs see
    bool cell_is_empty;             // no key came since the last fold
    float* q;                       // [dq padded][lanes]
    float* cell;                    // [lanes][dv padded] unnormalised output of the cell
    float* total;                   // [lanes][dv padded] of the split
    tile_softmax cell_softmax;      // of the cell
    std::int64_t row[pair_block];   // of the call
    std::uint32_t mask[pair_block]; // keys of the tile that the pair sees
    running_softmax softmax[pair_block];
};

template <class Args>
class blocked_walk {
    using query = typename item_view<Args>::query;
    using stored = typename item_view<Args>::stored;

public:
    blocked_walk(isa set, const Args& args, const attend_item& item, float* scratch)
        : args_(args), item_(item), view_{args, item}, kernels_(kernels_of(set)), widen_query_(widen_of<query>(set)),
          widen_stored_(widen_of<stored>(set)), q_pad_(padded(args.q.width)), v_pad_(padded(args.out.width)),
          buffers_(blocked_buffers::carve(scratch, q_pad_, v_pad_)), shared_(values_in_keys(args.cache)) {
        for (std::int64_t first = 0; first < item.pairs; first += pair_block, ++count_) start(groups_[count_], first);
    }

    void run() {
        const std::int64_t end = view_.last_key();
        for (std::int64_t first = view_.first_tile(); first < end; first += tile_keys) {
            add_tile(first);
            if ((first + tile_keys) % split_grain == 0 || first + tile_keys >= end) fold_cells();
        }
        for (std::int64_t g = 0; g < count_; ++g)
            for (std::int64_t i = 0; i < groups_[g].pairs; ++i)
                view_.write(item_.kv_head, groups_[g].first + i, groups_[g].softmax[i], groups_[g].total + i * v_pad_);
    }

private:
    // Of a key.
    struct place {
        std::int64_t page;
        std::int64_t token;
    };

    void start(pair_group& group, std::int64_t first) {
        group.first = first;
        group.pairs = std::min(pair_block, item_.pairs - first);
        group.lanes = padded(group.pairs);
        group.q = buffers_.blocks + count_ * blocked_buffers::block_floats(q_pad_, v_pad_);
        group.cell = group.q + pair_block * q_pad_;
        group.total = group.cell + pair_block * v_pad_;
        group.cell_is_empty = true;
        group.cell_softmax = tile_softmax::none();
        std::fill_n(group.softmax, pair_block, running_softmax{});
        std::fill_n(group.mask, pair_block, 0U);
        std::fill_n(group.q, q_pad_ * group.lanes, 0.0F);
        std::fill_n(group.cell, group.lanes * v_pad_, 0.0F);
        std::fill_n(group.total, group.lanes * v_pad_, 0.0F);
        // Queries lie with the pairs side by side, [column][pair].
        static_assert(pair_block <= tile_keys);
        float* const rows = buffers_.keys; // they have room there
        for (std::int64_t i = 0; i < group.pairs; ++i) {
            group.row[i] = view_.row_of(first + i);
            widen_query_(args_.q.at(group.row[i], view_.head_of(item_.kv_head, first + i)), args_.q.width,
                         rows + i * q_pad_);
        }
        for (std::int64_t d = 0; d < args_.q.width; ++d)
            for (std::int64_t i = 0; i < group.pairs; ++i) group.q[d * group.lanes + i] = rows[i * q_pad_ + d];
    }

    // --- The keys of a tile ------------------------------------------------------------------------------------------

    // What each pair sees of the tile; returns the union.
    std::uint32_t mask_tile(std::int64_t first) {
        std::uint32_t any = 0;
        for (std::int64_t g = 0; g < count_; ++g) {
            pair_group& group = groups_[g];
            group.any = 0;
            group.all = ~0U;
            for (std::int64_t i = 0; i < group.pairs; ++i) {
                const bool same_row = i > 0 && group.row[i] == group.row[i - 1];
                group.mask[i] = same_row ? group.mask[i - 1] : args_.plan.arrays.rows[group.row[i]].tile_mask(first);
                group.any |= group.mask[i];
                group.all &= group.mask[i];
            }
            any |= group.any;
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

    const stored* key_row(const place& at) const { return args_.cache.k.at(at.page, at.token, item_.kv_head); }
    const stored* value_row(const place& at) const { return args_.cache.v.at(at.page, at.token, item_.kv_head); }

    // Widens the keys that some row sees; the others, whose blocks may be gone, are zero and not touched.
    void load_tile(std::int64_t first, std::uint32_t any) {
        find(first, any, here_);
        for (std::int64_t t = 0; t < tile_keys; ++t) {
            if ((any >> t & 1U) == 0) {
                std::fill_n(buffers_.keys + t * q_pad_, q_pad_, 0.0F);
                if (!shared_) std::fill_n(buffers_.values + t * v_pad_, v_pad_, 0.0F);
                factors_.key[t] = factors_.value[t] = 0.0F;
                continue;
            }
            const auto [page, token] = here_[t];
            const kv_scale& value_scale = shared_ ? args_.cache.k_scale : args_.cache.v_scale;
            widen_stored_(key_row(here_[t]), args_.q.width, buffers_.keys + t * q_pad_);
            if (!shared_) widen_stored_(value_row(here_[t]), args_.out.width, buffers_.values + t * v_pad_);
            factors_.key[t] = args_.score.scale * args_.cache.k_scale.at(page, token, item_.kv_head);
            factors_.value[t] = value_scale.at(page, token, item_.kv_head);
        }
    }

    // The rows of the tile from `first` on that the last pair sees, to be asked for during the one before.
    stream_ahead ask_ahead(std::int64_t first) {
        const std::uint32_t mask = first < view_.last_key() ? view_.seen_by(item_.pairs - 1).tile_mask(first) : 0;
        place next[tile_keys];
        find(first, mask, next);
        const stored* keys[tile_keys];
        const stored* values[tile_keys];
        std::int64_t count = 0;
        for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1, ++count) {
            keys[count] = key_row(next[std::countr_zero(rest)]);
            values[count] = shared_ ? nullptr : value_row(next[std::countr_zero(rest)]);
        }
        return {rows_ahead(args_.cache.k, keys, count, 1, args_.q.width, keys_ahead_),
                rows_ahead(args_.cache.v, values, shared_ ? 0 : count, 1, args_.out.width, values_ahead_)};
    }

    // --- One tile ----------------------------------------------------------------------------------------------------

    void add_tile(std::int64_t first) {
        const std::uint32_t any = mask_tile(first);
        if (any == 0) return;
        load_tile(first, any);
        stream_ahead ahead = ask_ahead(first + tile_keys);
        const std::int64_t bytes =
            tile_keys * (args_.q.width + (shared_ ? 0 : args_.out.width)) * static_cast<std::int64_t>(sizeof(stored));
        for (std::int64_t g = 0; g < count_; ++g) {
            ahead.read((bytes + count_ - 1) / count_);
            if (groups_[g].any != 0) add_to(groups_[g], any);
        }
    }

    void add_to(pair_group& group, std::uint32_t loaded) {
        kernels_.score({group.q, buffers_.keys, q_pad_, group.lanes, buffers_.p});
        const bool capped = args_.score.soft_cap > 0.0F;
        if (capped) cap_scores(group);
        float keep[pair_block];
        kernels_.weigh({buffers_.p, group.mask, group.lanes, keep}, capped ? capped_factors_ : factors_,
                       group.cell_softmax);
        group.cell_is_empty = false;
        float* const values = shared_ ? buffers_.keys : buffers_.values;
        const std::int64_t stride = shared_ ? q_pad_ : v_pad_;
        const std::uint32_t apart = take_out(group, values, stride, loaded);
        const tile_values tile{buffers_.p,
                               group.lanes,
                               values,
                               stride,
                               std::countr_zero(group.any),
                               tile_keys - std::countl_zero(group.any),
                               keep,
                               group.cell,
                               v_pad_};
        kernels_.add(tile, group.pairs);
        for (std::uint32_t rest = apart; rest != 0; rest &= rest - 1)
            put_back(group, std::countr_zero(rest), values + std::countr_zero(rest) * stride);
    }

    // With a soft cap the factor of the key comes first, and is then done with.
    void cap_scores(const pair_group& group) {
        const float cap = args_.score.soft_cap;
        for (std::int64_t t = 0; t < tile_keys; ++t)
            for (std::int64_t i = 0; i < group.pairs; ++i) {
                float& score = buffers_.p[t * group.lanes + i];
                score = cap * std::tanh(score * factors_.key[t] / cap);
            }
        capped_factors_ = factors_;
        std::fill_n(capped_factors_.key, tile_keys, 1.0F);
    }

    // A value that not all pairs see must not reach those that don't, whatever it holds: 0 times NaN is NaN. Zeroes
    // such values where they are not finite, and returns their keys.
    std::uint32_t take_out(const pair_group& group, float* values, std::int64_t stride, std::uint32_t loaded) const {
        std::uint32_t apart = 0;
        for (std::uint32_t rest = loaded & ~group.all; rest != 0; rest &= rest - 1) {
            float* const value = values + std::countr_zero(rest) * stride;
            const auto finite = [](float x) { return (std::bit_cast<std::uint32_t>(x) & 0x7f800000U) != 0x7f800000U; };
            if (std::all_of(value, value + args_.out.width, finite)) continue;
            std::fill_n(value, args_.out.width, 0.0F);
            apart |= rest & -rest;
        }
        return apart;
    }

    // Widens a key's value that was taken out again, and adds it to the pairs that see it.
    void put_back(const pair_group& group, std::int64_t t, float* value) const {
        widen_stored_(shared_ ? key_row(here_[t]) : value_row(here_[t]), shared_ ? args_.q.width : args_.out.width,
                      value);
        for (std::int64_t i = 0; i < group.pairs; ++i) {
            if ((group.mask[i] >> t & 1U) == 0) continue;
            const float weight = buffers_.p[t * group.lanes + i];
            for (std::int64_t d = 0; d < args_.out.width; ++d) group.cell[i * v_pad_ + d] += weight * value[d];
        }
    }

    // Puts the cells' states into the split's.
    void fold_cells() {
        for (std::int64_t g = 0; g < count_; ++g) {
            pair_group& group = groups_[g];
            if (group.cell_is_empty) continue;
            for (std::int64_t i = 0; i < group.pairs; ++i) {
                const auto factor = group.softmax[i].merge(group.cell_softmax.of(i));
                float* const sum = group.total + i * v_pad_;
                const float* const add = group.cell + i * v_pad_;
                for (std::int64_t d = 0; d < v_pad_; ++d) sum[d] = sum[d] * factor.own + add[d] * factor.other;
            }
            group.cell_is_empty = true;
            group.cell_softmax = tile_softmax::none();
            std::fill_n(group.cell, group.lanes * v_pad_, 0.0F);
        }
    }

    const Args& args_;
    const attend_item& item_;
    item_view<Args> view_;
    tile_kernels kernels_;
    widen_function<query> widen_query_;
    widen_function<stored> widen_stored_;
    std::int64_t q_pad_;
    std::int64_t v_pad_;
    blocked_buffers buffers_;
    bool shared_; // values are the first elements of the key rows
    std::int64_t count_ = 0;
    pair_group groups_[most_blocks];
    place here_[tile_keys];
    tile_factors factors_{};
    tile_factors capped_factors_{};
    const char* keys_ahead_[tile_keys + stream_ahead::places];
    const char* values_ahead_[tile_keys + stream_ahead::places];
};

} // namespace ctxpar::inline v0_1::cpu
