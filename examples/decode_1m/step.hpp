// One decode step of one rank: the new tokens and queries of every layer, then plan, append and decode, timed.
#pragma once

#include "rank.hpp"

namespace demo {

// What the model would hand over in a step, made before the clock starts.
template <class Attention, class Communicator>
struct decode_rank<Attention, Communicator>::step_inputs {
    std::vector<std::int64_t> lengths;         // [requests] as the plan is told
    std::vector<std::int64_t> row_counts;      // [requests]
    std::vector<std::int64_t> slots;           // [rows] where new tokens belong
    std::vector<new_rows<Attention>> tokens;   // [layers]
    std::vector<std::vector<element>> queries; // [layers] of [rows][Hl][dq]

    step_inputs(const decode_rank& own, std::int64_t step) {
        const problem& all = own.all_;
        const std::int64_t rows = all.requests * all.query_rows;
        const std::int64_t wrong =
            all.injected == fault::double_newest ? 1 : (all.injected == fault::drop_newest ? -1 : 0);
        for (std::int64_t request = 0; request < all.requests; ++request) {
            lengths.push_back(all.length(request, step) + wrong);
            row_counts.push_back(all.query_rows);
            for (std::int64_t i = 0; i < all.query_rows; ++i)
                slots.push_back(
                    ctxpar::slot_of(own.part_, own.table_, request, all.length(request, step) - all.query_rows + i));
        }
        const ctxpar::head_range heads = own.mesh_.q_heads(own.world_.rank());
        std::vector<float> query(static_cast<std::size_t>(all.query_width));
        for (std::int64_t layer = 0; layer < all.layers; ++layer) {
            tokens.emplace_back(all, rows);
            queries.emplace_back(static_cast<std::size_t>(rows * heads.count() * all.query_width));
            element* to = queries.back().data();
            for (std::int64_t row = 0; row < rows; ++row) {
                const std::int64_t request = row / all.query_rows;
                const std::int64_t new_row = step * all.query_rows + row % all.query_rows;
                const std::int64_t position = all.filled(request) + new_row;
                tokens.back().make(own.data_, row, layer, request, position, position, own.first_kv_head_);
                for (std::int64_t head = heads.first; head < heads.last; ++head, to += all.query_width) {
                    own.data_.query(layer, request, new_row, head, query.data());
                    store_exact(query, to);
                }
            }
        }
    }
};

// All ranks call it. Returns how many appends an injected fault added.
template <class Attention, class Communicator>
std::int64_t decode_rank<Attention, Communicator>::one_step(decoder_type& decoder, const ctxpar::workspace& lent,
                                                            std::int64_t step_idx, record& to) {
    const step_inputs in(*this, step_idx);
    const std::int64_t rows = all_.requests * all_.query_rows;
    const std::int64_t heads = mesh_.heads_per_rank();
    const std::int64_t heads_out = decoder.output_heads();
    for (std::int64_t layer = 0; layer < all_.layers; ++layer)
        to.output(all_, step_idx, layer, world_.rank())
            .assign(static_cast<std::size_t>(rows * heads_out * all_.value_width), 0.0F);

    ctxpar::decode_batch batch;
    batch.requests = all_.requests;
    batch.lengths = ctxpar::index_of(in.lengths.data());
    batch.query_rows = ctxpar::index_of(in.row_counts.data());
    batch.table = table_;
    ctxpar::layer_options<> options;
    options.softmax_scale = all_.softmax_scale;
    const bool at_own_slots = all_.injected == fault::drop_newest || all_.injected == fault::double_newest;

    // Ranks start together. Where they are threads of one process they share a clock.
    std::vector<std::byte> ready(static_cast<std::size_t>(world_.size()));
    world_.all_gather(&ready[static_cast<std::size_t>(world_.rank())], ready.data(), 1, {}, {"start of a step"});
    const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()); };
    const auto at = static_cast<std::size_t>(step_idx * world_.size() + world_.rank());
    to.begin[at] = now().count();
    const ctxpar::decode_step step = decoder.plan(batch, lent, {});
    for (std::int64_t i = 0; i < all_.layers; ++i) {
        const auto layer = static_cast<std::size_t>(i);
        const ctxpar::kv_view<typename Attention::kv_element> cache = cache_.view(all_, i);
        const auto first = in.tokens[layer].first_part(rows);
        const auto second = in.tokens[layer].second_part(rows);
        // With a wrong length the step's slots are one token off: the tokens also go where they belong.
        if (all_.injected != fault::drop_newest) decoder.append(step, first, second, cache, {});
        if (at_own_slots) decoder.append(ctxpar::index_of(in.slots.data()), first, second, cache, {});
        const element* const queries = in.queries[layer].data();
        float* const out = to.output(all_, step_idx, i, world_.rank()).data();
        decoder.decode(step, ctxpar::dense_view(queries, rows, heads, all_.query_width), cache,
                       ctxpar::dense_view(out, rows, heads_out, all_.value_width), options, {});
    }
    to.end[at] = now().count();

    if (world_.rank() == 0) {
        const faulty_merge merge{{ctxpar::merge_named(to.merge)}, all_.injected};
        const ctxpar::exchange_bytes bytes = ctxpar::exchange(merge, step.shape);
        to.planned += bytes.total * static_cast<std::uint64_t>(all_.layers);
        to.collectives = bytes.collectives;
    }
    return all_.injected == fault::double_newest ? all_.layers : 0;
}

} // namespace demo
