// One thread's walk over the keys of an item on the matrix unit, 64 keys at a time.
//
// Queries are laid out once. Keys are read where they lie if that serves one group of pairs, and are copied together if
// it serves several; values are transposed once for all groups of their KV head. An item with few pairs takes several
// KV heads together, so that memory is read as it lies.
//
// Sums have three levels, to stay exact at a million keys: tiles over a step, a cell of 1,024 keys, and the split.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cpu/amx_group.hpp>
#include <ctxpar/backend/cpu/amx_kernels.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/item.hpp>
#include <ctxpar/backend/cpu/rows_ahead.hpp>
#include <ctxpar/backend/cpu/stream_walk.hpp>
#include <ctxpar/backend/cpu/tiles.hpp>

namespace ctxpar::inline v0_1::cpu {

// Whether the matrix unit has kernels for the types: bf16 queries, and keys that bf16 holds exactly.
template <class Args>
constexpr bool amx_types() {
    using query = typename item_view<Args>::query;
    using stored = typename item_view<Args>::stored;
    return std::is_same_v<query, bf16> && (std::is_same_v<stored, bf16> || sizeof(stored) == 1);
}
// Whether it serves an item. Very few pairs would leave most of it idle, and to convert keys for few pairs costs more
// than it saves.
template <class Args>
bool amx_serves(const attend_item& item) {
    using stored = typename item_view<Args>::stored;
    return !item.streams || (std::is_same_v<stored, bf16> && padded_pairs(item.pairs) >= stream_pairs);
}

template <class Args>
class amx_walk {
    using stored = typename item_view<Args>::stored;

public:
    amx_walk(const Args& args, const attend_item& item, float* scratch)
        : args_(args), item_(item), view_{args, item}, few_(item.streams), kernels_(amx_kernels_of<stored>(few_)),
          depth_(padded_depth(args.q.width)), v_pad_(padded(args.out.width)),
          buffers_(amx_buffers::carve(scratch, depth_, v_pad_)), shared_(values_in_keys(args.cache)),
          factors_are_uniform_(args.cache.k_scale.data == nullptr && args.cache.v_scale.data == nullptr) {
        std::fill_n(buffers_.zeros, v_pad_, bf16(0.0F));
        std::fill_n(buffers_.terms, few_weights, bf16(0.0F)); // some rows of few pairs stay so
        if (factors_are_uniform_) load_uniform_factors();
        float* memory = buffers_.groups;
        for (std::int64_t head = 0; head < item.kv_heads; ++head)
            for (std::int64_t first = 0; first < item.pairs; first += most_pairs())
                start(groups_[count_++], head, first, memory);
        each_head_ = count_ / item.kv_heads;
    }

    void run() {
        kernels_.open();
        const std::int64_t end = view_.last_key();
        step now;
        step next;
        find(view_.first_tile() / amx_keys * amx_keys, end, now);
        for (; now.first < end; std::swap(now, next)) {
            find(now.first + amx_keys, end, next);
            if (now.any != 0) add_step(now, next);
            if (next.first % split_grain == 0 || next.first >= end) fold_cells();
        }
        kernels_.close();
        for (std::int64_t g = 0; g < count_; ++g) write(groups_[g]);
    }

private:
    // The keys of a step that some row sees, and where they lie.
    struct step {
        std::int64_t first;
        std::uint64_t any;
        std::uint64_t follows; // keys that lie right behind the one before
        std::int64_t page[amx_keys];
        std::int64_t token[amx_keys];
    };

    std::int64_t most_pairs() const { return few_ ? few_pairs : amx_pairs; } // of a group

    void start(amx_group& group, std::int64_t head, std::int64_t first, float*& memory) {
        group.head = head;
        group.first = first;
        group.few = few_;
        group.pairs = std::min(most_pairs(), item_.pairs - first);
        group.lanes = group.pairs <= amx_side ? amx_side : amx_pairs;
        group.q = reinterpret_cast<bf16*>(memory);
        group.cell = memory + depth_ / 2 * group.lanes;
        group.total = group.cell + v_pad_ * group.lanes;
        memory = group.total + v_pad_ * group.lanes;
        group.cell_is_empty = true;
        group.cell_softmax = tile_softmax::none();
        std::fill_n(group.softmax, amx_pairs, running_softmax{});
        for (auto& half : group.mask) std::fill_n(half, tile_pairs, 0U);
        std::fill_n(group.q, depth_ * group.lanes, bf16(0.0F));
        std::fill_n(group.cell, v_pad_ * group.lanes, 0.0F);
        std::fill_n(group.total, v_pad_ * group.lanes, 0.0F);
        for (std::int64_t i = 0; i < group.pairs; ++i) {
            group.row[i] = view_.row_of(first + i);
            const auto* const q = args_.q.at(group.row[i], view_.head_of(item_.kv_head + head, first + i));
            if constexpr (amx_types<Args>())
                for (std::int64_t d = 0; d < args_.q.width; ++d) group.q[(d / 2 * group.lanes + i) * 2 + d % 2] = q[d];
        }
    }

    // --- The keys of a step ------------------------------------------------------------------------------------------

    // What each pair sees of the step.
    void mask_step(amx_group& group, std::int64_t first) const {
        group.any = 0;
        group.all = ~std::uint64_t(0);
        for (std::int64_t i = 0; i < group.pairs; ++i) {
            const bool same_row = i > 0 && group.row[i] == group.row[i - 1];
            const visible_keys& row = args_.plan.arrays.rows[group.row[i]];
            for (std::int64_t half = 0; half < amx_keys / tile_keys; ++half)
                group.mask[half][i] = same_row ? group.mask[half][i - 1] : row.tile_mask(first + half * tile_keys);
            group.any |= group.sees(i);
            group.all &= group.sees(i);
        }
    }

    // Keys that no row sees, whose blocks may be gone, are left out.
    void find(std::int64_t first, std::int64_t end, step& found) const {
        found.first = first;
        found.any = 0;
        found.follows = 0;
        if (first >= end) return;
        std::int64_t row = -1;
        for (std::int64_t i = 0; i < item_.pairs; ++i) {
            if (std::exchange(row, view_.row_of(i)) == view_.row_of(i)) continue;
            for (std::int64_t half = 0; half < amx_keys / tile_keys; ++half)
                found.any |= std::uint64_t(view_.seen_by(i).tile_mask(first + half * tile_keys)) << half * tile_keys;
        }
        const std::int64_t block_size = args_.plan.table.block_size;
        std::int64_t left = 0; // keys from here on that lie one after the other
        for (std::int64_t t = 0; t < amx_keys; ++t, --left) {
            if ((found.any >> t & 1U) == 0) {
                left = 1;
            } else if (left > 0) {
                found.page[t] = found.page[t - 1];
                found.token[t] = found.token[t - 1] + 1;
                found.follows |= std::uint64_t(1) << t;
            } else {
                const std::int64_t slot = args_.plan.table.slot(item_.run->request, first + t);
                found.page[t] = args_.cache.page_of(slot);
                found.token[t] = args_.cache.token_of(slot);
                left = std::min(block_size - (first + t) % block_size, args_.cache.page_size - found.token[t]);
            }
        }
    }

    const stored* key_row(const step& at, std::int64_t t, std::int64_t head) const {
        return args_.cache.k.at(at.page[t], at.token[t], item_.kv_head + head);
    }
    const stored* value_row(const step& at, std::int64_t t, std::int64_t head) const {
        return shared_ ? key_row(at, t, head) : args_.cache.v.at(at.page[t], at.token[t], item_.kv_head + head);
    }

    // The rows of a step, of all KV heads, to be asked for during the one before.
    stream_ahead ask_ahead(const step& next) {
        const stored* keys[amx_keys];
        const stored* values[amx_keys];
        std::int64_t count = 0;
        for (std::uint64_t rest = next.any; rest != 0; rest &= rest - 1, ++count) {
            keys[count] = key_row(next, std::countr_zero(rest), 0);
            values[count] = value_row(next, std::countr_zero(rest), 0);
        }
        return {rows_ahead(args_.cache.k, keys, count, item_.kv_heads, args_.q.width, keys_ahead_),
                rows_ahead(args_.cache.v, values, shared_ ? 0 : count, item_.kv_heads, args_.out.width, values_ahead_)};
    }

    // Where the unit reads 16 keys at a time.
    void place_keys(const step& now, std::int64_t head, amx_scores& scores) const {
        for (std::int64_t tile = 0; tile < amx_keys / amx_side; ++tile) {
            const std::int64_t t = tile * amx_side;
            if (reads_in_place(now, t)) {
                scores.keys[tile] = {key_row(now, t, head),
                                     args_.cache.k.token_stride * static_cast<std::int64_t>(sizeof(stored))};
                continue;
            }
            for (std::int64_t i = t; i < t + amx_side; ++i) {
                bf16* const to = buffers_.keys + i * depth_;
                if ((now.any >> i & 1U) == 0) {
                    std::fill_n(to, depth_, bf16(0.0F));
                } else {
                    kernels_.row(key_row(now, i, head), args_.q.width, to);
                    std::fill_n(to + args_.q.width, depth_ - args_.q.width, bf16(0.0F));
                }
            }
            scores.keys[tile] = {buffers_.keys + t * depth_, depth_ * 2};
        }
    }
    bool reads_in_place(const step& now, std::int64_t t) const {
        constexpr std::uint64_t behind_first = 0xfffe;
        return std::is_same_v<stored, bf16> && (few_ || each_head_ == 1) && args_.q.width == depth_ &&
               (now.any >> t & 1U) != 0 && (now.follows >> t & behind_first) == behind_first;
    }

    // Arranges the values of a KV head; those of keys that no row sees are zero. A value that not all pairs see must
    // not reach those that don't, whatever it holds: 0 times NaN is NaN. Puts zeros in place of such values where they
    // are not finite, and returns their keys.
    std::uint64_t load_values(const step& now, std::int64_t head, std::uint64_t all, const amx_ahead& ahead) {
        const std::int64_t stride = shared_ ? args_.cache.k.token_stride : args_.cache.v.token_stride;
        std::uint64_t apart = 0;
        const stored* value = nullptr;
        for (std::int64_t t = 0; t < amx_keys; ++t) {
            value_rows_[t] = buffers_.zeros;
            if ((now.any >> t & 1U) == 0) continue;
            value = (now.follows >> t & 1U) != 0 ? value + stride : value_row(now, t, head);
            const bf16* const row = value_in_bf16(value, buffers_.rows + t * v_pad_);
            const auto finite = [](bf16 x) { return (std::bit_cast<std::uint16_t>(x) & 0x7f80U) != 0x7f80U; };
            if ((all >> t & 1U) != 0 || std::all_of(row, row + args_.out.width, finite)) {
                value_rows_[t] = row;
            } else {
                apart |= std::uint64_t(1) << t;
            }
        }
        values_lie_in_rows_ = few_;
        if (!few_) kernels_.arrange(value_rows_, v_pad_, buffers_.arranged, ahead);
        return apart;
    }
    const bf16* value_in_bf16(const stored* value, bf16* room) const {
        if constexpr (std::is_same_v<stored, bf16>) {
            if (args_.out.width == v_pad_) return value;
        }
        kernels_.row(value, args_.out.width, room);
        std::fill_n(room + args_.out.width, v_pad_ - args_.out.width, bf16(0.0F));
        return room;
    }

    // --- One step ----------------------------------------------------------------------------------------------------

    void add_step(const step& now, const step& next) {
        stream_ahead rows = ask_ahead(next);
        const std::int64_t bytes = // of a KV head
            amx_keys * (args_.q.width + (shared_ ? 0 : args_.out.width)) * static_cast<std::int64_t>(sizeof(stored));
        const std::int64_t units =
            few_ ? amx_ahead::units_of_few(each_head_, depth_, v_pad_) : amx_ahead::units(each_head_, depth_, v_pad_);
        const amx_ahead ahead{rows, (bytes + units - 1) / units};
        amx_scores scores{};
        for (std::int64_t g = 0; g < count_; g += each_head_) {
            std::uint64_t all = ~std::uint64_t(0);
            for (std::int64_t i = g; i < g + each_head_; ++i) {
                mask_step(groups_[i], now.first);
                all &= groups_[i].all;
            }
            const std::int64_t head = groups_[g].head;
            place_keys(now, head, scores);
            load_factors(now, head);
            const std::uint64_t apart = load_values(now, head, all, ahead);
            for (std::int64_t i = g; i < g + each_head_; ++i)
                if (groups_[i].any != 0) add_to(groups_[i], now, scores, apart, ahead);
        }
    }

    // Factors of hidden keys don't count.
    void load_factors(const step& now, std::int64_t head) {
        if (factors_are_uniform_) return;
        const kv_scale& value_scale = shared_ ? args_.cache.k_scale : args_.cache.v_scale;
        for (std::int64_t t = 0; t < amx_keys; ++t) {
            tile_factors& half = factors_[t / tile_keys];
            const bool seen = (now.any >> t & 1U) != 0;
            const auto of = [&](const kv_scale& scale) {
                return seen ? scale.at(now.page[t], now.token[t], item_.kv_head + head) : 0.0F;
            };
            half.key[t % tile_keys] = args_.score.scale * of(args_.cache.k_scale);
            half.value[t % tile_keys] = of(value_scale);
        }
        if (few_) spread_factors();
    }
    void load_uniform_factors() {
        for (tile_factors& half : factors_) {
            std::fill_n(half.key, tile_keys, args_.score.scale * args_.cache.k_scale.uniform);
            std::fill_n(half.value, tile_keys, (shared_ ? args_.cache.k_scale : args_.cache.v_scale).uniform);
        }
        if (few_) spread_factors();
    }
    // With a soft cap the factor of the key comes first, and is then done with.
    void spread_factors() {
        const bool capped = args_.score.soft_cap > 0.0F;
        for (std::int64_t t = 0; t < amx_keys; ++t) {
            const tile_factors& half = factors_[t / tile_keys];
            std::fill_n(key_factors_ + t * few_pairs, few_pairs, capped ? 1.0F : half.key[t % tile_keys]);
            std::fill_n(value_factors_ + t * few_pairs, few_pairs, half.value[t % tile_keys]);
        }
    }

    void add_to(amx_group& group, const step& now, amx_scores& scores, std::uint64_t apart, const amx_ahead& ahead) {
        scores.q = group.q;
        scores.depth = depth_;
        scores.lanes = group.lanes;
        scores.scores = buffers_.scores;
        kernels_.score(scores, ahead);
        const bool capped = args_.score.soft_cap > 0.0F;
        if (capped) cap_scores(group.lanes);
        float keep[amx_pairs];
        kernels_.weigh({buffers_.scores, group.mask[0], capped ? capped_factors_ : factors_, group.lanes,
                        buffers_.terms, keep, key_factors_, value_factors_},
                       group.cell_softmax, ahead);
        group.cell_is_empty = false;
        kernels_.rescale(group.cell, v_pad_, group.lanes, keep);
        kernels_.add({buffers_.arranged, buffers_.terms, group.lanes, v_pad_, group.cell,
                      std::exchange(values_lie_in_rows_, false) ? value_rows_ : nullptr},
                     ahead);
        for (std::uint64_t rest = apart; rest != 0; rest &= rest - 1) put_back(group, now, std::countr_zero(rest));
    }

    // With a soft cap the factor of the key comes first, and is then done with.
    void cap_scores(std::int64_t lanes) {
        const float cap = args_.score.soft_cap;
        for (std::int64_t t = 0; t < amx_keys; ++t)
            for (std::int64_t i = 0; i < lanes; ++i) {
                float& score = buffers_.scores[t * lanes + i];
                score = cap * std::tanh(score * factors_[t / tile_keys].key[t % tile_keys] / cap);
            }
        for (std::int64_t half = 0; half < amx_keys / tile_keys; ++half) {
            capped_factors_[half] = factors_[half];
            std::fill_n(capped_factors_[half].key, tile_keys, 1.0F);
        }
    }

    // Adds a key's value that was taken out to the pairs that see it.
    void put_back(amx_group& group, const step& now, std::int64_t t) const {
        const stored* const value = value_row(now, t, group.head);
        for (std::int64_t i = 0; i < group.pairs; ++i) {
            if ((group.sees(i) >> t & 1U) == 0) continue;
            const float weight = group.weight(buffers_.terms, t, i);
            for (std::int64_t d = 0; d < args_.out.width; ++d)
                group.cell[group.place(i, d, v_pad_)] += weight * static_cast<float>(value[d]);
        }
    }

    // --- Results -----------------------------------------------------------------------------------------------------

    // Puts the cells' states into the split's.
    void fold_cells() {
        for (std::int64_t g = 0; g < count_; ++g) {
            amx_group& group = groups_[g];
            if (group.cell_is_empty) continue;
            float own[amx_pairs] = {};
            float other[amx_pairs] = {};
            for (std::int64_t i = 0; i < group.pairs; ++i) {
                const auto factor = group.softmax[i].merge(group.cell_softmax.of(i));
                own[i] = factor.own;
                other[i] = factor.other;
            }
            if (group.few)
                fold_few(group, own, other);
            else
                fold(group, own, other);
            group.cell_is_empty = true;
            group.cell_softmax = tile_softmax::none();
        }
    }

    void fold(amx_group& group, const float* own, const float* other) const {
        for (std::int64_t d = 0; d < v_pad_; ++d) {
            float* const sum = group.total + d * group.lanes;
            float* const add = group.cell + d * group.lanes;
            for (std::int64_t i = 0; i < group.lanes; ++i) {
                sum[i] = sum[i] * own[i] + add[i] * other[i];
                add[i] = 0.0F;
            }
        }
    }
    void fold_few(amx_group& group, const float* own, const float* other) const {
        for (std::int64_t i = 0; i < few_pairs; ++i) {
            float* const sum = group.total + i * v_pad_;
            float* const add = group.cell + i * v_pad_;
            float* const more = add + few_pairs * v_pad_;
            for (std::int64_t d = 0; d < v_pad_; ++d) {
                sum[d] = sum[d] * own[i] + (add[d] + more[d]) * other[i];
                add[d] = more[d] = 0.0F;
            }
        }
    }

    void write(const amx_group& group) const {
        for (std::int64_t i = 0; i < group.pairs; ++i) {
            for (std::int64_t d = 0; d < args_.out.width; ++d) buffers_.row[d] = group.total[group.place(i, d, v_pad_)];
            view_.write(item_.kv_head + group.head, group.first + i, group.softmax[i], buffers_.row);
        }
    }

    const Args& args_;
    const attend_item& item_;
    item_view<Args> view_;
    bool few_; // pairs, in groups of 8
    amx_kernels<stored> kernels_;
    std::int64_t depth_;
    std::int64_t v_pad_;
    amx_buffers buffers_;
    bool shared_;                // values are the first elements of the key rows
    std::int64_t count_ = 0;     // groups
    std::int64_t each_head_ = 1; // of a KV head
    amx_group groups_[most_amx_groups];
    bool factors_are_uniform_; // no key has a scale of its own
    tile_factors factors_[amx_keys / tile_keys];
    tile_factors capped_factors_[amx_keys / tile_keys];
    const bf16* value_rows_[amx_keys];        // of a KV head
    bool values_lie_in_rows_ = false;         // and are yet to be arranged
    float key_factors_[amx_keys * few_pairs]; // the factors, for few pairs
    float value_factors_[amx_keys * few_pairs];
    const char* keys_ahead_[amx_keys * most_amx_groups + stream_ahead::places];
    const char* values_ahead_[amx_keys * most_amx_groups + stream_ahead::places];
};

} // namespace ctxpar::inline v0_1::cpu
