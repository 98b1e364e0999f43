// One thread's walk over the keys of an item on the matrix unit, 64 keys at a time.
//
// Queries are laid out once. Keys are read where they lie, and copied together only where they lie apart and several
// groups of pairs read them; values are transposed once for all groups of their KV head. An item with few pairs takes
// several KV heads together, so that memory is read as it lies.
//
// A group's scores come before the values of the group before it are added, so that the exponentials of the one are
// worked out while the unit multiplies for the other: the groups follow each other in a chain, through heads and steps.
//
// Sums have three levels, to stay exact at a million keys: tiles over a step, a cell of 4,096 keys, and the split.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
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
        for (bf16* terms : buffers_.terms) std::fill_n(terms, few_weights, bf16(0.0F)); // some rows of few stay so
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
            if (next.first % amx_cell == 0 || next.first >= end) fold_cells();
        }
        kernels_.close();
        for (std::int64_t g = 0; g < count_; ++g) write(groups_[g]);
    }

private:
    // The keys of a step that some row sees, and where they lie.
    struct step {
        std::int64_t first;
        std::uint64_t any;
        std::uint64_t all;     // keys that every row sees
        std::uint64_t follows; // keys that lie right behind the one before
        std::int64_t page[amx_keys];
        std::int64_t token[amx_keys];
    };

    // A group that has been weighed and whose values are yet to be added.
    struct link {
        amx_group* group; // null: none
        int turn;         // where its weights are
        int place;        // where its values are
        bool rescales;    // its cell holds something
        bool arranges;    // its values are yet to be arranged
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
        group.sees_all = false;
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

    // What each pair sees of the step: the same for all KV heads. Lanes without a pair see what does not matter.
    void mask_step(amx_group& group, const step& now) const {
        constexpr std::uint64_t everything = ~std::uint64_t(0);
        if (now.all == everything) {
            if (!group.sees_all) std::memset(group.mask, 0xff, sizeof(group.mask));
            group.sees_all = true;
            group.any = group.all = everything;
            return;
        }
        group.sees_all = false;
        if (group.head > 0) {
            const amx_group& same = groups_[group.first / most_pairs()];
            std::memcpy(group.mask, same.mask, sizeof(group.mask));
            group.any = same.any;
            group.all = same.all;
            return;
        }
        group.any = 0;
        group.all = everything;
        for (std::int64_t i = 0; i < group.pairs; ++i) {
            const bool same_row = i > 0 && group.row[i] == group.row[i - 1];
            const visible_keys& row = args_.plan.arrays.rows[group.row[i]];
            for (std::int64_t half = 0; half < amx_keys / tile_keys; ++half)
                group.mask[half][i] = same_row ? group.mask[half][i - 1] : row.tile_mask(now.first + half * tile_keys);
            group.any |= group.sees(i);
            group.all &= group.sees(i);
        }
    }

    // Keys that no row sees, whose blocks may be gone, are left out.
    void find(std::int64_t first, std::int64_t end, step& found) const {
        found.first = first;
        found.any = 0;
        found.all = 0;
        found.follows = 0;
        if (first >= end) return;
        found.all = ~std::uint64_t(0);
        const std::int64_t last_row = view_.row_of(item_.pairs - 1);
        for (std::int64_t r = view_.row_of(0); r <= last_row; ++r) {
            std::uint64_t seen = 0;
            for (std::int64_t half = 0; half < amx_keys / tile_keys; ++half)
                seen |= std::uint64_t(args_.plan.arrays.rows[r].tile_mask(first + half * tile_keys))
                        << half * tile_keys;
            found.any |= seen;
            found.all &= seen;
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

    // Where values may be put. Those of few pairs are small enough to be there twice.
    void take_place() {
        if (few_) {
            place_ ^= 1;
        } else {
            end_chain();
        }
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
        const bool near = few_ || each_head_ == 1 || args_.cache.k.token_stride == depth_;
        return std::is_same_v<stored, bf16> && near && args_.q.width == depth_ && (now.any >> t & 1U) != 0 &&
               (now.follows >> t & behind_first) == behind_first;
    }

    // Arranges the values of a KV head; those of keys that no row sees are zero. A value that not all pairs see must
    // not reach those that don't, whatever it holds: 0 times NaN is NaN. Puts zeros in place of such values where they
    // are not finite, and returns their keys.
    std::uint64_t load_values(const step& now, std::int64_t head, std::uint64_t all, const amx_ahead& ahead) {
        const std::int64_t stride = shared_ ? args_.cache.k.token_stride : args_.cache.v.token_stride;
        const bool as_they_lie = std::is_same_v<stored, bf16> && args_.out.width == v_pad_;
        bf16* const room = buffers_.rows[place_];
        const bf16** const rows = value_rows_[place_];
        std::uint64_t apart = 0;
        for (std::int64_t t = 0; t < amx_keys;) {
            if ((now.any >> t & 1U) == 0) {
                rows[t++] = buffers_.zeros;
                continue;
            }
            const stored* value = value_row(now, t, head);
            const std::int64_t run = 1 + (t + 1 < amx_keys ? std::countr_one(now.follows >> (t + 1)) : 0);
            for (const std::int64_t end = t + run; t < end; ++t, value += stride) {
                if (as_they_lie) {
                    rows[t] = reinterpret_cast<const bf16*>(value);
                } else {
                    rows[t] = room + t * v_pad_;
                    kernels_.row(value, args_.out.width, room + t * v_pad_);
                    std::fill_n(room + t * v_pad_ + args_.out.width, v_pad_ - args_.out.width, bf16(0.0F));
                }
            }
        }
        const auto finite = [](bf16 x) { return (std::bit_cast<std::uint16_t>(x) & 0x7f80U) != 0x7f80U; };
        for (std::uint64_t some = now.any & ~all; some != 0; some &= some - 1) {
            const std::int64_t t = std::countr_zero(some);
            if (std::all_of(rows[t], rows[t] + args_.out.width, finite)) continue;
            rows[t] = buffers_.zeros;
            apart |= std::uint64_t(1) << t;
        }
        values_lie_in_rows_ = few_;
        if (!few_) kernels_.arrange(rows, v_pad_, buffers_.arranged[place_], ahead);
        return apart;
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
                mask_step(groups_[i], now);
                all &= groups_[i].all;
            }
            const std::int64_t head = groups_[g].head;
            take_place();
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

    // Scores the group, and weighs it while the values of the one before are added.
    void add_to(amx_group& group, const step& now, amx_scores& scores, std::uint64_t apart, const amx_ahead& ahead) {
        scores.q = group.q;
        scores.depth = depth_;
        scores.lanes = group.lanes;
        scores.scores = buffers_.scores;
        kernels_.score(scores, ahead);
        const bool capped = args_.score.soft_cap > 0.0F;
        if (capped) cap_scores(group.lanes);
        link next{};
        next.group = &group;
        next.turn = chain_.turn ^ 1;
        next.rescales = !group.cell_is_empty;
        next.place = place_;
        next.arranges = std::exchange(values_lie_in_rows_, false);
        group.cell_is_empty = false;
        const amx_weights weights{buffers_.scores,
                                  group.mask[0],
                                  capped ? capped_factors_ : factors_,
                                  group.lanes,
                                  buffers_.terms[next.turn],
                                  keep_[next.turn],
                                  reference_,
                                  sums_,
                                  key_factors_,
                                  value_factors_};
        kernels_.scan(weights, group.cell_softmax);
        if (chain_.group == nullptr) {
            kernels_.weigh(weights, group.cell_softmax, ahead);
        } else {
            add_values(weights, group.cell_softmax, ahead);
        }
        chain_ = next;
        if (apart == 0) return;
        end_chain();
        for (std::uint64_t rest = apart; rest != 0; rest &= rest - 1) put_back(group, now, std::countr_zero(rest));
    }

    // Adds the values of the group that was weighed last, while the next one is weighed.
    void add_values(const amx_weights& next, tile_softmax& of_next, const amx_ahead& ahead) {
        const amx_group& group = *chain_.group;
        if (chain_.rescales) kernels_.rescale(group.cell, v_pad_, group.lanes, keep_[chain_.turn]);
        kernels_.add({buffers_.arranged[chain_.place], buffers_.terms[chain_.turn], group.lanes, v_pad_, group.cell,
                      chain_.arranges ? value_rows_[chain_.place] : nullptr, each_head_ > 1},
                     next, of_next, ahead);
    }
    void end_chain() {
        if (chain_.group == nullptr) return;
        stream_ahead nothing;
        add_values({}, chain_.group->cell_softmax, {nothing, 0});
        chain_.group = nullptr;
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
            const float weight = group.weight(buffers_.terms[chain_.turn], t, i);
            for (std::int64_t d = 0; d < args_.out.width; ++d)
                group.cell[group.place(i, d, v_pad_)] += weight * static_cast<float>(value[d]);
        }
    }

    // --- Results -----------------------------------------------------------------------------------------------------

    // Puts the cells' states into the split's.
    void fold_cells() {
        end_chain();
        for (std::int64_t g = 0; g < count_; ++g) {
            amx_group& group = groups_[g];
            if (group.cell_is_empty) continue;
            alignas(64) float own[amx_pairs] = {};
            alignas(64) float other[amx_pairs] = {};
            for (std::int64_t i = 0; i < group.pairs; ++i) {
                const auto factor = group.softmax[i].merge(group.cell_softmax.of(i));
                own[i] = factor.own;
                other[i] = factor.other;
            }
            kernels_.fold(group.total, group.cell, v_pad_, group.lanes, own, other);
            group.cell_is_empty = true;
            group.cell_softmax = tile_softmax::none();
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
    int place_ = 0;                       // of the values of the KV head at hand
    const bf16* value_rows_[2][amx_keys]; // of a KV head
    bool values_lie_in_rows_ = false;     // those at hand are yet to be arranged
    link chain_{};
    alignas(64) float keep_[2][amx_pairs];
    alignas(64) float reference_[amx_pairs];
    alignas(64) float sums_[amx_pairs];
    float key_factors_[amx_keys * few_pairs]; // the factors, for few pairs
    float value_factors_[amx_keys * few_pairs];
    const char* keys_ahead_[amx_keys * most_amx_groups + stream_ahead::places];
    const char* values_ahead_[amx_keys * most_amx_groups + stream_ahead::places];
};

} // namespace ctxpar::inline v0_1::cpu
