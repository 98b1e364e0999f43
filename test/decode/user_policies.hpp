// Policies as a user would write them, in every slot: an attention, an interleave and a merge; and faults that can be
// put into the merge and into the metadata of a step.
#pragma once

#include "../support/decode_ranks.hpp"

namespace ctxpar_test {

// Attention with a softmax scale of its own.
struct thin_attention {
    using element = bf16;
    using kv_element = bf16;
    static constexpr attention_kind kind = attention_kind::gqa;
    static constexpr bool values_in_keys = false;
    static constexpr float scale = 0.3F;
    static constexpr std::int64_t query_width() { return 12; }
    static constexpr std::int64_t value_width() { return 10; }
    static constexpr float default_scale() { return scale; }
};

static_assert(attention_policy<thin_attention>);

// Ranks take turns after half a block.
struct half_a_block {
    std::int64_t block_size = 2;
    constexpr std::int64_t size() const { return block_size / 2; }
};

static_assert(interleave_policy<half_a_block>);

enum class merge_fault {
    none,
    mean,           // every shard counts the same
    wrong_base,     // natural LSEs read as base 2
    shard_dropped,  // the last one
    sink_per_shard, // the sink joins once for every shard
    empty_counts,   // a shard without keys counts as if its LSE were 0
    nothing_scaled, // shards are added
};

// Gathers all partial states on every rank, where they are merged: simple, and fine for two ranks.
struct gather_all {
    merge_fault fault = merge_fault::none;

    template <class P, lse_base Base>
    struct buffers {
        P* outs = nullptr;         // [N][R][Hg][dv]
        lse<Base>* lses = nullptr; // [N][R][Hg]
    };

    static constexpr const char* name() { return "gather_all"; }
    static constexpr bool scatters_heads() { return false; }
    static constexpr bool knows_all_lse() { return true; }

    static constexpr std::int64_t states(const exchange_shape& shape) { return shape.rows * shape.gathered_heads; }

    static constexpr void schedule(const exchange_shape& shape, collective_schedule& list) {
        const auto ranks = static_cast<std::int32_t>(shape.ranks);
        const auto bytes = static_cast<std::uint64_t>(states(shape) * shape.value_width * shape.partial_bytes);
        list.add({collective_op::all_gather, group_role::kv, shape.partial_type, ranks, bytes, "outputs"});
        list.add({collective_op::all_gather, group_role::kv, scalar_type::f32, ranks,
                  static_cast<std::uint64_t>(states(shape)) * sizeof(float), "LSE"});
    }

    template <class P, lse_base Base>
    static buffers<P, Base> carve(carver& memory, const exchange_shape& shape) {
        buffers<P, Base> all;
        all.outs = memory.take<P>(shape.ranks * states(shape) * shape.value_width);
        all.lses = memory.take<lse<Base>>(shape.ranks * states(shape));
        return all;
    }

    template <class P, lse_base Base>
    static partial_views<P, Base> partials(const exchange_shape& shape, std::int64_t rank,
                                           const buffers<P, Base>& all) {
        const std::int64_t first = all.outs == nullptr ? 0 : rank * states(shape);
        return {dense_view(all.outs + first * shape.value_width, shape.rows, shape.gathered_heads, shape.value_width),
                dense_view(all.lses + first, shape.rows, shape.gathered_heads, 1)};
    }

    template <communicator C, class Backend, class P, lse_base Base, class Out, lse_base OutBase>
    void run(C& kv, Backend& backend, const merge_call<Out, OutBase>& call, const buffers<P, Base>& all,
             typename C::stream_type stream) const {
        const exchange_shape& shape = call.shape;
        const auto own = partials(shape, call.rank, all);
        const auto count = static_cast<std::size_t>(states(shape));
        kv.all_gather(own.out.base, all.outs, count * static_cast<std::size_t>(shape.value_width) * sizeof(P), stream,
                      {"outputs", scalar_type_of<P>, call.digest});
        kv.all_gather(own.lse_out.base, all.lses, count * sizeof(float), stream,
                      {"LSE", scalar_type::f32, call.digest});
        if (fault == merge_fault::none) {
            merge_right(backend, call, all, stream);
        } else {
            suite_ranks::finish(stream);
            merge_wrongly(call, all);
        }
    }

private:
    template <class Backend, class P, lse_base Base, class Out, lse_base OutBase>
    static void merge_right(Backend& backend, const merge_call<Out, OutBase>& call, const buffers<P, Base>& all,
                            typename Backend::stream_type stream) {
        const exchange_shape& shape = call.shape;
        const void* outs[max_merge_parts];
        const void* lses[max_merge_parts];
        for (std::int64_t i = 0; i < shape.ranks; ++i) {
            lses[i] = all.lses + i * states(shape) + call.first_head;
            outs[i] = all.outs + (i * states(shape) + call.first_head) * shape.value_width;
        }
        const P* none = nullptr;
        const lse<Base>* no_lse = nullptr;
        merge_parts<P, Base> parts;
        parts.out_parts = outs;
        parts.lse_parts = lses;
        parts.count = shape.ranks;
        parts.out = dense_view(none, shape.rows, shape.gathered_heads, shape.value_width);
        parts.lse_in = dense_view(no_lse, shape.rows, shape.gathered_heads, 1);
        parts.live = call.live;
        parts.live_stride = call.live_stride;
        parts.sinks = call.sinks == nullptr ? nullptr : call.sinks + call.first_head;
        backend.merge(parts, call.out, call.lse_out, stream);
    }

    // The weight of a part, wrongly; `lse` is natural.
    double weight_of(double lse, std::int64_t part, std::int64_t ranks) const {
        if (fault == merge_fault::empty_counts && lse == minus_infinity) lse = 0.0;
        if (lse == minus_infinity || (fault == merge_fault::shard_dropped && part == ranks - 1)) return 0.0;
        if (fault == merge_fault::mean || fault == merge_fault::nothing_scaled) return 1.0;
        return fault == merge_fault::wrong_base ? std::exp2(lse) : std::exp(lse);
    }

    template <class P, lse_base Base, class Out, lse_base OutBase>
    void merge_wrongly(const merge_call<Out, OutBase>& call, const buffers<P, Base>& all) const {
        const exchange_shape& shape = call.shape;
        for (std::int64_t row = 0; row < shape.rows; ++row) {
            for (std::int64_t head = 0; head < call.out.heads; ++head) {
                const std::int64_t at = row * shape.gathered_heads + call.first_head + head;
                std::vector<double> sum(static_cast<std::size_t>(shape.value_width), 0.0);
                const double sink =
                    call.sinks == nullptr ? 0.0 : std::exp(static_cast<double>(call.sinks[call.first_head + head]));
                double total = sink * static_cast<double>(fault == merge_fault::sink_per_shard ? shape.ranks : 1);
                for (std::int64_t i = 0; i < shape.ranks; ++i) {
                    const std::int64_t state = i * states(shape) + at;
                    const double weight = weight_of(all.lses[state].value, i, shape.ranks);
                    total += weight;
                    for (std::int64_t x = 0; x < shape.value_width; ++x)
                        sum[static_cast<std::size_t>(x)] +=
                            weight * static_cast<double>(all.outs[state * shape.value_width + x]);
                }
                if (fault == merge_fault::nothing_scaled || total == 0.0) total = 1.0;
                for (std::int64_t x = 0; x < shape.value_width; ++x)
                    call.out.at(row, head)[x] = static_cast<Out>(sum[static_cast<std::size_t>(x)] / total);
                if (call.lse_out.base != nullptr)
                    call.lse_out.at(row, head)->value = static_cast<float>(std::log(total));
            }
        }
    }
};

static_assert(merge_policy<gather_all>);

enum class step_fault {
    none,
    newest_dropped, // a row does not see its own token
    end_aligned,    // the last local keys are taken for the last rows, whoever owns those tokens
    window_off,     // a row sees one local key less of its window
    next_seen,      // a row sees one local key more
};

// The plain backend with metadata that has a fault.
class faulty_backend : public suite_ranks::backend {
public:
    explicit faulty_backend(step_fault fault) : fault_(fault) {}

    void metadata(const metadata_args& args, stream_type stream) {
        suite_ranks::backend::metadata(args, stream);
        suite_ranks::finish(stream);
        for (std::int64_t request = 0; request < args.batch.requests; ++request) {
            segment& run = args.out.segments[request];
            for (std::int64_t i = 0; i < run.rows; ++i) {
                visible_keys& row = args.out.rows[run.first_row + i];
                const std::int64_t position = args.batch.lengths.at(request) - run.rows + i;
                if (fault_ == step_fault::newest_dropped && position >= 0 && args.part.owns(position)) --row.hi;
                if (fault_ == step_fault::end_aligned)
                    row.hi = std::max<std::int64_t>(0, args.out.local_lengths[request] - (run.rows - 1 - i));
                if (fault_ == step_fault::window_off && row.lo > 0) row.lo = std::min(row.lo + 1, row.hi);
                if (fault_ == step_fault::next_seen) row.hi = std::min(row.hi + 1, args.out.local_lengths[request]);
                row.hi = std::max(row.hi, row.lo);
                row.tail = row.hi;
                run.end = std::max(run.end, row.hi);
            }
        }
    }

private:
    step_fault fault_;
};

} // namespace ctxpar_test
