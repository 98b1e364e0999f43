// What one rank does in each of its calls: the rows of a step, then plan, append and attend, timed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/blocks.hpp"
#include "rank.hpp"

namespace demo {

// A step's rows on this rank, as a model would make them from its tokens. Rows that are not tokens hold what an engine
// may have left there.
template <ctxpar::communicator Communicator>
struct prefill_rank<Communicator>::rows {
    std::int64_t count;
    std::vector<ctxpar::bf16> q, k, v;
    std::vector<float> out;
    std::vector<ctxpar::natural_lse> lses;

    rows(const problem& all, const prompt_data& data, const ctxpar::prefill_step& step, bool attended)
        : count(step.rows()) {
        const auto size = [&](std::int64_t heads) { return static_cast<std::size_t>(count * heads * all.head_dim); };
        const ctxpar::bf16 left_over{2.0F};
        k.assign(size(all.kv_heads), left_over);
        v.assign(size(all.kv_heads), left_over);
        q.assign(attended ? size(all.q_heads) : 0, left_over);
        out.assign(q.size(), 0.0F);
        lses.resize(attended ? static_cast<std::size_t>(count * all.q_heads) : 0);
        std::vector<float> numbers(static_cast<std::size_t>(all.head_dim));
        for (std::int64_t row = 0; row < count; ++row) {
            if (step.arrays.batch_rows[row] < 0) continue;
            const std::int64_t position = step.positions()[row];
            for (std::int64_t head = 0; head < all.kv_heads; ++head) {
                const std::int64_t at = (row * all.kv_heads + head) * all.head_dim;
                data.key(position, head, numbers.data());
                store_exact(numbers, k.data() + at);
                data.value(position, head, numbers.data());
                store_exact(numbers, v.data() + at);
            }
            for (std::int64_t head = 0; attended && head < all.q_heads; ++head) {
                data.query(position, head, numbers.data());
                store_exact(numbers, q.data() + (row * all.q_heads + head) * all.head_dim);
            }
        }
    }
};

template <ctxpar::communicator Communicator>
prefill_rank<Communicator>::prefill_rank(const problem& all, const prompt_data& data, std::int64_t dcp,
                                         const std::vector<std::int32_t>& blocks, const pool& memory,
                                         Communicator& world)
    : all_(all), data_(data), dcp_(dcp), memory_(memory), world_(world), groups_(world, all.ranks(dcp)),
      table_(ctxpar::table_2d(blocks.data(), 1, all.blocks(dcp), all.block_size)) {}

template <ctxpar::communicator Communicator>
typename prefill_rank<Communicator>::prefiller prefill_rank<Communicator>::make(ctxpar::prefill_path path,
                                                                                fault injected, progress* bar) {
    ctxpar::prefill_shape shape;
    shape.sizes = all_.ranks(dcp_).sizes();
    shape.q_heads = all_.q_heads;
    shape.kv_heads = all_.kv_heads;
    shape.rank = world_.rank();
    shape.max_rows = all_.split().most_rows(all_.chunk);
    shape.max_decode_rows = 0;
    shape.longest = all_.tokens;
    shape.pool_blocks = all_.blocks(dcp_);
    shape.prefill_rows = path;
    shape.context_rows = std::max(all_.workspace_rows, all_.law(dcp_).unit());
    shape.merged_lse = true;
    shape.output = ctxpar::scalar_type::f32;
    shape.hidden_bytes = all_.q_heads * all_.head_dim * static_cast<std::int64_t>(sizeof(float));
    const ctxpar::cpu_options options{all_.threads_per_rank, all_.instructions};
    return {groups_.view(),
            shape,
            {attention(all_.head_dim, all_.head_dim), {all_.interleave}, {}},
            faulty_backend(options, injected, bar)};
}

template <ctxpar::communicator Communicator>
ctxpar::prefill_batch prefill_rank<Communicator>::batch(const std::int64_t& computed,
                                                        const std::int64_t& tokens) const {
    ctxpar::prefill_batch one;
    one.requests = 1;
    one.computed = ctxpar::index_of(&computed);
    one.tokens = ctxpar::index_of(&tokens);
    one.table = table_;
    return one;
}

template <ctxpar::communicator Communicator>
ctxpar::kv_view<ctxpar::bf16> prefill_rank<Communicator>::cache() const {
    return ctxpar::joint_kv(reinterpret_cast<ctxpar::bf16*>(memory_.data()), all_.blocks(dcp_), all_.block_size,
                            all_.kv_heads, all_.head_dim, all_.head_dim, ctxpar::page_order::hnd);
}

template <ctxpar::communicator Communicator>
void prefill_rank<Communicator>::fill(progress& bar) {
    std::memset(memory_.data(), 0xff, memory_.bytes()); // NaN, so that nothing is found that was not written
    prefiller with = make(ctxpar::prefill_path::automatic, fault::none, nullptr);
    const ctxpar::host_workspace memory(with.workspace_bytes());
    for (std::int64_t computed = 0; computed < all_.computed(); computed += all_.chunk) {
        const std::int64_t tokens = std::min(all_.chunk, all_.computed() - computed);
        const ctxpar::prefill_step step = with.plan(batch(computed, tokens), memory, {});
        const rows own(all_, data_, step, false);
        with.append(step, ctxpar::dense_view(own.k.data(), own.count, all_.kv_heads, all_.head_dim),
                    ctxpar::dense_view(own.v.data(), own.count, all_.kv_heads, all_.head_dim), cache(), {});
        bar.add(tokens);
    }
}

// What an earlier configuration appended becomes NaN again.
template <ctxpar::communicator Communicator>
void prefill_rank<Communicator>::forget_new_tokens() const {
    const ctxpar::shard part{dcp_, groups_.kv->rank(), all_.interleave};
    const ctxpar::kv_view<ctxpar::bf16> all = cache();
    const auto bytes = static_cast<std::size_t>(all_.head_dim) * sizeof(ctxpar::bf16);
    for (std::int64_t position = all_.computed(); position < all_.tokens; ++position) {
        const std::int64_t slot = ctxpar::slot_of(part, table_, 0, position);
        for (std::int64_t head = 0; slot >= 0 && head < all_.kv_heads; ++head) {
            std::memset(static_cast<void*>(all.key(slot, head)), 0xff, bytes);
            std::memset(static_cast<void*>(all.value(slot, head)), 0xff, bytes);
        }
    }
}

template <ctxpar::communicator Communicator>
ctxpar::path_choice prefill_rank<Communicator>::automatic_choice() {
    prefiller with = make(ctxpar::prefill_path::automatic, fault::none, nullptr);
    const ctxpar::host_workspace memory(with.workspace_bytes());
    const std::int64_t computed = all_.computed();
    return with.plan(batch(computed, all_.chunk), memory, {}).prefill_rows;
}

// Where ranks are threads of one process they share a clock.
template <ctxpar::communicator Communicator>
void prefill_rank<Communicator>::start_together() {
    std::vector<std::byte> ready(static_cast<std::size_t>(world_.size()));
    world_.all_gather(&ready[static_cast<std::size_t>(world_.rank())], ready.data(), 1, {}, {"start of a step"});
}

template <ctxpar::communicator Communicator>
void prefill_rank<Communicator>::attend(record& to, progress& bar) {
    forget_new_tokens();
    prefiller with = make(to.run.path, all_.injected, &bar);
    const ctxpar::host_workspace memory(with.workspace_bytes());
    const std::int64_t computed = all_.computed();
    const ctxpar::prefill_step step = with.plan(batch(computed, all_.chunk), memory, {});
    rows own(all_, data_, step, true);
    ctxpar::layer_options<> options;
    options.softmax_scale = all_.softmax_scale;
    options.lse_out = ctxpar::dense_view(own.lses.data(), own.count, all_.q_heads, 1);
    const ctxpar::kv_view<ctxpar::bf16> layer = cache();

    start_together();
    rank_record& mine = to.ranks[static_cast<std::size_t>(world_.rank())];
    const std::uint64_t before = groups_.bytes_sent();
    const auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()); };
    mine.begin = now().count();
    with.append(step, ctxpar::dense_view(std::as_const(own.k).data(), own.count, all_.kv_heads, all_.head_dim),
                ctxpar::dense_view(std::as_const(own.v).data(), own.count, all_.kv_heads, all_.head_dim), layer, {});
    with.attend(step, ctxpar::dense_view(std::as_const(own.q).data(), own.count, all_.q_heads, all_.head_dim), layer,
                ctxpar::dense_view(own.out.data(), own.count, all_.q_heads, all_.head_dim), options, {});
    mine.end = now().count();
    mine.sent = groups_.bytes_sent() - before;

    restore(with, step, own, mine);
    if (world_.rank() != 0) return;
    to.choice = step.prefill_rows;
    to.planned = step.schedule.bytes_sent();
    to.workspace_bytes = with.workspace_bytes();
    for (std::int32_t i = 0; i < step.schedule.count; ++i) {
        const ctxpar::collective_call& call = step.schedule.calls[static_cast<std::size_t>(i)];
        to.collectives.push_back(fmt::format("{}{} of {}", call.calls > 1 ? fmt::format("{} x ", call.calls) : "",
                                             ctxpar::name_of(call.op), call.what));
    }
}

// Puts the rows of all ranks back into the order of the prompt, on every rank.
template <ctxpar::communicator Communicator>
void prefill_rank<Communicator>::restore(prefiller& with, const ctxpar::prefill_step& step, const rows& own,
                                         rank_record& to) const {
    to.outputs.resize(static_cast<std::size_t>(all_.chunk * all_.q_heads * all_.head_dim));
    to.lses.resize(static_cast<std::size_t>(all_.chunk * all_.q_heads));
    with.restore(step, ctxpar::dense_view(own.out.data(), own.count, all_.q_heads, all_.head_dim),
                 ctxpar::dense_view(to.outputs.data(), all_.chunk, all_.q_heads, all_.head_dim), {});
    with.restore(step, ctxpar::dense_view(own.lses.data(), own.count, all_.q_heads, 1),
                 ctxpar::dense_view(to.lses.data(), all_.chunk, all_.q_heads, 1), {});
}

} // namespace demo
