// Attention of query rows over paged local keys on the CPU.
//
// Work is cut into items (item.hpp). One with few (row, head) pairs reads its keys where they lie (stream_walk.hpp),
// any other a tile at a time, widened to fp32 for all its pairs (blocked_walk.hpp); a processor with a matrix unit does
// both on it, where types and the number of pairs allow (amx_walk.hpp). In all the softmax is online and P stays fp32;
// cells and tiles lie at multiples of their size from key 0, wherever a row's interval starts.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/backend/cpu/amx_walk.hpp>
#include <ctxpar/backend/cpu/blocked_walk.hpp>
#include <ctxpar/backend/cpu/combine.hpp>
#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/item.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>
#include <ctxpar/backend/cpu/stream_walk.hpp>
#include <ctxpar/backend/cpu/tiles.hpp>

namespace ctxpar::inline v0_1::cpu {

// fp32 numbers of scratch memory that one thread needs.
constexpr std::int64_t attend_floats(std::int64_t query_width, std::int64_t value_width) {
    return padded(std::max({blocked_buffers::floats(query_width, value_width), stream_floats(query_width, value_width),
                            amx_buffers::floats(query_width, value_width)}));
}

// Does one item with the kernels of an instruction set.
template <class Args>
void attend_one(isa set, const Args& args, const attend_item& item, float* scratch) {
    if constexpr (amx_types<Args>()) {
        if (set == isa::amx && amx_serves<Args>(item)) return amx_walk<Args>(args, item, scratch).run();
    }
    if (item.streams) {
        stream_walk<Args>(set, args, item, scratch).run();
    } else {
        blocked_walk<Args>(set, args, item, scratch).run();
    }
}

// Items of one segment: (KV heads, block of pairs, split), splits fastest. A segment without keys has one split, which
// writes the empty state.
struct segment_items {
    std::int64_t kv_heads;
    std::int64_t pairs; // of a KV head
    std::int64_t splits;
    bool streams;
    std::int64_t heads_of_item = 1;
    std::int64_t pairs_of_item;

    // Items take fewer KV heads or pairs where there would be fewer than `wanted`; that changes no result.
    template <class Args>
    segment_items(const Args& args, const segment& run, std::int64_t wanted = 1)
        : kv_heads(args.cache.kv_heads), pairs(run.rows * (args.q.heads / args.cache.kv_heads)),
          splits(std::max<std::int64_t>(run.splits(), 1)), streams(streams_keys(args, pairs)),
          pairs_of_item(most_item_pairs(args.q.width, args.out.width)) {
        if (streams) {
            heads_of_item = heads_together(args, pairs);
            while (heads_of_item > 1 && count() < wanted) heads_of_item = (heads_of_item + 1) / 2;
        } else {
            const std::int64_t all = std::max<std::int64_t>(1, (pairs + pair_block - 1) / pair_block) * pair_block;
            pairs_of_item = std::min(pairs_of_item, all);
            while (pairs_of_item > pair_block && count() < wanted)
                pairs_of_item = (pairs_of_item / pair_block + 1) / 2 * pair_block;
        }
    }

    std::int64_t blocks() const { return (pairs + pairs_of_item - 1) / pairs_of_item; }
    std::int64_t groups() const { return (kv_heads + heads_of_item - 1) / heads_of_item; }
    std::int64_t count() const { return groups() * blocks() * splits; }
    attend_item item(const segment& run, std::int64_t index) const {
        attend_item one;
        one.run = &run;
        one.streams = streams;
        one.split = index % splits;
        one.first_pair = index / splits % blocks() * pairs_of_item;
        one.pairs = std::min(pairs_of_item, pairs - one.first_pair);
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
