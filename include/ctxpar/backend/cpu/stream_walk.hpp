// One thread's walk over the keys of an item with few pairs, which are read where they lie.
//
// It takes several KV heads together, tile by tile, so that memory is read as it lies: pages hold all heads of their
// tokens. While a tile is worked on, the next one is asked for, a line at a time.
//
// Sums have three levels, to stay exact at a million keys: registers over a tile, a cell of 1,024 keys, and the split.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/item.hpp>
#include <ctxpar/backend/cpu/rows_ahead.hpp>
#include <ctxpar/backend/cpu/streaming.hpp>
#include <ctxpar/backend/cpu/tiles.hpp>

namespace ctxpar::inline v0_1::cpu {

// Most pairs of a KV head that are worth it, and of all KV heads of an item, both after padding.
inline constexpr std::int64_t most_streamed_pairs = 16;
inline constexpr std::int64_t most_streamed_states = 64;

// Most rows of a tile that are asked for: those of 32 KV heads of 2 pairs, and some to make places equal.
inline constexpr std::int64_t most_ahead = tile_keys * (most_streamed_states / 2) + stream_ahead::places;

// The pairs of a KV head that the kernels work on: 2, 4, or a multiple of 8.
constexpr std::int64_t padded_pairs(std::int64_t pairs) {
    if (pairs <= 2) return 2;
    return pairs <= 4 ? 4 : (pairs + stream_pairs - 1) / stream_pairs * stream_pairs;
}

// Whether attention of so many pairs a KV head streams.
template <class Args>
bool streams_keys(const Args& args, std::int64_t pairs) {
    return padded_pairs(pairs) <= most_streamed_pairs && args.q.width % stream_width == 0 &&
           args.out.width % stream_width == 0;
}

// How many KV heads are best taken together.
template <class Args>
std::int64_t heads_together(const Args& args, std::int64_t pairs) {
    return std::min(args.cache.kv_heads, most_streamed_states / padded_pairs(pairs));
}

// fp32 numbers of scratch memory of a thread.
constexpr std::int64_t stream_floats(std::int64_t query_width, std::int64_t value_width) {
    return most_streamed_states * (query_width + 2 * value_width) + tile_keys * stream_pairs + 2 * value_width;
}

template <class Args>
class stream_walk {
    using stored = typename item_view<Args>::stored;
    using query = typename item_view<Args>::query;

public:
    stream_walk(isa set, const Args& args, const attend_item& item, float* scratch)
        : args_(args), item_(item), view_{args, item}, kernels_(stream_kernels_of<stored>(set)),
          padded_(padded_pairs(item.pairs)), together_(std::min(padded_, stream_pairs)), q_width_(args.q.width),
          v_width_(args.out.width), shared_(values_in_keys(args.cache)) {
        q_ = scratch;
        cell_ = q_ + most_streamed_states * q_width_;
        total_ = cell_ + most_streamed_states * v_width_;
        p_ = total_ + most_streamed_states * v_width_;
        row_ = p_ + tile_keys * stream_pairs;
        zeros_ = row_ + v_width_;
    }

    void run() {
        start();
        const std::int64_t end = view_.last_key();
        tile now;
        tile next;
        find(view_.first_tile(), end, now);
        for (; now.first < end; now = next) {
            find(now.first + tile_keys, end, next);
            if (now.count > 0) add_tile(now, next);
            if (next.first % split_grain == 0 || next.first >= end) fold_cell();
        }
        for (std::int64_t h = 0; h < item_.kv_heads; ++h)
            for (std::int64_t i = 0; i < item_.pairs; ++i) write(h, i);
    }

private:
    // The keys of a tile that some row sees, and where the rows of the item's first KV head lie.
    struct tile {
        std::int64_t first = 0;
        std::int64_t count = 0;
        std::uint32_t any = 0;                   // keys that some row sees
        std::uint32_t mask[most_streamed_pairs]; // [pair] keys that it sees
        bool is_full = true;                     // all pairs see the same keys
        const stored* k[tile_keys];
        const stored* v[tile_keys];
        std::int64_t page[tile_keys];
        std::int64_t token[tile_keys];
    };

    void start() {
        const std::int64_t states = item_.kv_heads * padded_;
        std::fill_n(cell_, states * v_width_, 0.0F);
        std::fill_n(total_, states * v_width_, 0.0F);
        std::fill_n(zeros_, v_width_, 0.0F);
        std::fill_n(states_, states / together_, stream_state::none());
        std::fill_n(totals_, states, running_softmax{});
        std::fill_n(q_, states * q_width_, 0.0F);
        for (std::int64_t h = 0; h < item_.kv_heads; ++h) {
            for (std::int64_t i = 0; i < item_.pairs; ++i) {
                const query* const from = args_.q.at(view_.row_of(i), view_.head_of(item_.kv_head + h, i));
                each_column(q_, q_width_, h * padded_ + i, kernels_.query_lanes,
                            [&](float& to, std::int64_t d) { to = static_cast<float>(from[d]); });
            }
        }
    }

    // Keys that no row sees, whose blocks may be gone, are left out.
    void find(std::int64_t first, std::int64_t end, tile& found) const {
        found.first = first;
        found.count = 0;
        found.any = 0;
        if (first >= end) return;
        std::uint32_t all = ~0U;
        for (std::int64_t i = 0; i < item_.pairs; ++i) {
            const bool same_row = i > 0 && view_.row_of(i) == view_.row_of(i - 1);
            found.mask[i] = same_row ? found.mask[i - 1] : view_.seen_by(i).tile_mask(first);
            found.any |= found.mask[i];
            all &= found.mask[i];
        }
        found.is_full = all == found.any;
        const std::int64_t block_size = args_.plan.table.block_size;
        std::int64_t page = 0, token = 0;
        std::int64_t left = 0; // keys from here on that lie one after the other
        for (std::int64_t t = 0; t < tile_keys && found.any >> t != 0; ++t, ++token, --left) {
            if (left == 0) {
                const std::int64_t slot = args_.plan.table.slot(item_.run->request, first + t);
                page = args_.cache.page_of(slot);
                token = args_.cache.token_of(slot);
                left = std::min(block_size - (first + t) % block_size, args_.cache.page_size - token);
            }
            if ((found.any >> t & 1U) != 0) add_key(page, token, found);
        }
        fill_up(found);
    }
    // From the last key on, rows are its own.
    static void fill_up(tile& found) {
        for (std::int64_t t = found.count; t < tile_keys && found.count > 0; ++t) {
            found.k[t] = found.k[found.count - 1];
            found.v[t] = found.v[found.count - 1];
        }
    }
    void add_key(std::int64_t page, std::int64_t token, tile& found) const {
        found.page[found.count] = page;
        found.token[found.count] = token;
        found.k[found.count] = args_.cache.k.at(page, token, item_.kv_head);
        found.v[found.count] = shared_ ? found.k[found.count] : args_.cache.v.at(page, token, item_.kv_head);
        ++found.count;
    }

    // --- One tile ----------------------------------------------------------------------------------------------------

    void add_tile(const tile& now, const tile& next) {
        stream_ahead ahead(
            rows_ahead(args_.cache.k, next.k, next.count, item_.kv_heads, q_width_, keys_ahead_),
            shared_ ? stream_ahead::pieces{}
                    : rows_ahead(args_.cache.v, next.v, next.count, item_.kv_heads, v_width_, values_ahead_));
        const std::int64_t k_stride = args_.cache.k.head_stride;
        const std::int64_t v_stride = shared_ ? k_stride : args_.cache.v.head_stride;
        for (std::int64_t h = 0; h < item_.kv_heads; ++h)
            add_head(now, h, {now.k, h * k_stride, now.count, q_width_}, {now.v, h * v_stride, now.count, v_width_},
                     ahead);
    }

    void add_head(const tile& now, std::int64_t h, const stream_rows<stored>& keys, stream_rows<stored> values,
                  stream_ahead& ahead) {
        const std::uint32_t apart = now.is_full ? 0 : take_out(now, values);
        for (std::int64_t first = 0; first < padded_; first += together_) {
            const std::int64_t state = h * padded_ + first;
            const std::int64_t pairs = std::min(together_, item_.pairs - first);
            kernels_.score(together_)(keys, q_ + state * q_width_, p_, ahead);
            const float factor = refine_scores(now, h, first, pairs);
            float keep[stream_pairs];
            kernels_.weigh(together_)(p_, padded_keys(now.count), factor, states_[state / together_], keep);
            scale_values(now, h);
            kernels_.add(together_)(values, p_, keep, cell_ + state * v_width_, ahead);
            for (std::uint32_t rest = apart; rest != 0; rest &= rest - 1)
                add_apart(now, std::countr_zero(rest), h, first, pairs);
        }
    }

    std::int64_t padded_keys(std::int64_t count) const {
        const std::int64_t unit = kernels_.sums / together_;
        return (count + unit - 1) / unit * unit;
    }

    // Everything about scores that is not the same for all: scales of tokens, caps, masks. Returns the factor that all
    // scores still lack.
    float refine_scores(const tile& now, std::int64_t h, std::int64_t first_pair, std::int64_t pairs) {
        const kv_scale& scale = args_.cache.k_scale;
        const bool uniform = is_uniform(scale);
        const bool capped = args_.score.soft_cap > 0.0F;
        const bool masked = !now.is_full || padded_keys(now.count) != now.count;
        const float factor = args_.score.scale * (uniform ? scale.at(0, 0, item_.kv_head + h) : 1.0F);
        if (uniform && !capped && !masked) return factor;
        for (std::int64_t t = 0; t < now.count; ++t) {
            const float own = uniform ? factor : factor * scale.at(now.page[t], now.token[t], item_.kv_head + h);
            for (std::int64_t i = 0; i < together_; ++i) p_[t * together_ + i] *= own;
        }
        if (capped) cap_scores(now.count);
        for (std::int64_t i = 0; i < pairs && !now.is_full; ++i) hide(now, first_pair + i, i);
        for (std::int64_t at = now.count * together_; at < padded_keys(now.count) * together_; ++at)
            p_[at] = -std::numeric_limits<float>::infinity();
        return 1.0F;
    }
    void cap_scores(std::int64_t count) {
        const float cap = args_.score.soft_cap;
        for (std::int64_t at = 0; at < count * together_; ++at) p_[at] = cap * std::tanh(p_[at] / cap);
    }
    void hide(const tile& now, std::int64_t pair, std::int64_t i) {
        std::int64_t t = 0;
        for (std::uint32_t rest = now.any; rest != 0; rest &= rest - 1, ++t)
            if ((now.mask[pair] >> std::countr_zero(rest) & 1U) == 0)
                p_[t * together_ + i] = -std::numeric_limits<float>::infinity();
    }
    static bool is_uniform(const kv_scale& scale) {
        return scale.data == nullptr || (scale.page_stride == 0 && scale.token_stride == 0);
    }

    void scale_values(const tile& now, std::int64_t h) {
        const kv_scale& scale = shared_ ? args_.cache.k_scale : args_.cache.v_scale;
        if (scale.data == nullptr && scale.uniform == 1.0F) return;
        for (std::int64_t t = 0; t < now.count; ++t) {
            const float own = scale.at(now.page[t], now.token[t], item_.kv_head + h);
            for (std::int64_t i = 0; i < together_; ++i) p_[t * together_ + i] *= own;
        }
    }

    // A value that not all pairs see must not reach those that don't, whatever it holds: 0 times NaN is NaN. Puts zeros
    // in place of such values where they are not finite, and returns which of the tile's keys that are.
    std::uint32_t take_out(const tile& now, stream_rows<stored>& values) {
        for (std::int64_t t = 0; t < tile_keys; ++t) kept_[t] = taken_[t] = values.row(t);
        std::uint32_t all = now.any;
        for (std::int64_t i = 0; i < item_.pairs; ++i) all &= now.mask[i];
        std::uint32_t apart = 0;
        std::int64_t t = 0;
        for (std::uint32_t rest = now.any; rest != 0; rest &= rest - 1, ++t) {
            if ((all >> std::countr_zero(rest) & 1U) != 0) continue;
            const auto finite = [](stored x) {
                return (std::bit_cast<std::uint32_t>(static_cast<float>(x)) & 0x7f800000U) != 0x7f800000U;
            };
            if (std::all_of(taken_[t], taken_[t] + v_width_, finite)) continue;
            kept_[t] = reinterpret_cast<const stored*>(zeros_);
            apart |= 1U << t;
        }
        values.rows = kept_;
        values.offset = 0;
        return apart;
    }

    // Adds the tile's t-th key, whose value was taken out, to the pairs that see it.
    void add_apart(const tile& now, std::int64_t t, std::int64_t h, std::int64_t first_pair, std::int64_t pairs) {
        std::uint32_t key = now.any;
        for (std::int64_t skip = t; skip > 0; --skip) key &= key - 1;
        for (std::int64_t i = 0; i < pairs; ++i) {
            if ((now.mask[first_pair + i] >> std::countr_zero(key) & 1U) == 0) continue;
            const float weight = p_[t * together_ + i];
            each_column(cell_, v_width_, h * padded_ + first_pair + i, kernels_.lanes,
                        [&](float& sum, std::int64_t d) { sum += weight * static_cast<float>(taken_[t][d]); });
        }
    }

    // --- Results -----------------------------------------------------------------------------------------------------

    // Puts the cells' states into the split's.
    void fold_cell() {
        const std::int64_t states = item_.kv_heads * padded_;
        for (std::int64_t i = 0; i < states; ++i) {
            stream_state& group = states_[i / together_];
            const running_softmax cell{group.max[i % together_], group.sum[i % together_]};
            const auto factor = totals_[i].merge(cell);
            const std::int64_t chunk = 2 * kernels_.lanes;
            const std::int64_t first = i / together_ * together_ * v_width_ + i % together_ * chunk;
            for (std::int64_t d = 0; d < v_width_; d += chunk) {
                float* const sum = total_ + first + d * together_;
                float* const add = cell_ + first + d * together_;
                for (std::int64_t x = 0; x < chunk; ++x) {
                    sum[x] = sum[x] * factor.own + add[x] * factor.other;
                    add[x] = 0.0F;
                }
            }
        }
        std::fill_n(states_, states / together_, stream_state::none());
    }

    void write(std::int64_t h, std::int64_t i) {
        each_column(total_, v_width_, h * padded_ + i, kernels_.lanes,
                    [&](float sum, std::int64_t d) { row_[d] = sum; });
        view_.write(item_.kv_head + h, i, totals_[h * padded_ + i], row_);
    }

    // Calls fn(element of the state, column) for all columns of a state, in an array of all states in which those of a
    // kernel lie together, in chunks of 2 x lanes.
    template <class Fn>
    void each_column(float* all, std::int64_t width, std::int64_t state, std::int64_t lanes, const Fn& fn) const {
        const std::int64_t chunk = 2 * lanes;
        float* at = all + state / together_ * together_ * width + state % together_ * chunk;
        for (std::int64_t d = 0; d < width; d += chunk, at += together_ * chunk)
            for (std::int64_t x = 0; x < chunk; ++x) fn(at[chunk_place<stored>(lanes, x)], d + x);
    }

    const Args& args_;
    const attend_item& item_;
    item_view<Args> view_;
    stream_kernels<stored> kernels_;
    std::int64_t padded_;   // pairs of a KV head
    std::int64_t together_; // pairs that a kernel takes
    std::int64_t q_width_;
    std::int64_t v_width_;
    bool shared_;                    // values are the first elements of the key rows
    float* q_;                       // of all states, as each_column() says
    float* cell_;                    // the same: unnormalised output of the cell
    float* total_;                   // of the split
    float* p_;                       // [key][pair] scores, then weights
    float* row_;                     // [v_width]
    float* zeros_;                   // [v_width]
    const stored* taken_[tile_keys]; // a head's value rows as they are, and as the kernels see them
    const stored* kept_[tile_keys];
    const char* keys_ahead_[most_ahead];
    const char* values_ahead_[most_ahead];
    stream_state states_[most_streamed_states / 2]; // [KV head][kernel's pairs] of the cell
    running_softmax totals_[most_streamed_states];  // [KV head][pair] of the split
};

} // namespace ctxpar::inline v0_1::cpu
