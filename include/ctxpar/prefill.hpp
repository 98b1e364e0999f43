// Prefill over ranks: the query tokens of every prefill are split head-and-tail over the PCP ranks, decode rows of the
// same batch are on all of them, and attention is exact over any cached context that is sharded over the KV group.
//
//   prefiller<policy, backend, communicator> prefiller{{&kv, nullptr, nullptr, &rows}, shape};
//   auto step = prefiller.plan(batch, workspace, stream);      once a step, however many layers
//   prefiller.scatter(step, tokens, own, stream);              this rank's rows of the batch
//   prefiller.append(step, k, v, cache, stream);               per layer: new keys reach their owners
//   prefiller.attend(step, q, cache, out, {}, stream);         per layer
//   prefiller.restore(step, own, all, stream);                 rows of any width, back in batch order
//
// A rank's rows are those of zigzag.hpp: requests in order, head before tail, filled up to step.rows(). All ranks of
// the groups make the same calls in the same order with the same batch; tables, pools and pointers are each rank's own.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include <ctxpar/attention/prefill_batch.hpp>
#include <ctxpar/attention/prefill_pieces.hpp>
#include <ctxpar/attention/prefill_rows.hpp>
#include <ctxpar/core/workspace.hpp>
#include <ctxpar/decode.hpp>
#include <ctxpar/decode/pass.hpp>
#include <ctxpar/prefill/buffers.hpp>
#include <ctxpar/prefill/checks.hpp>
#include <ctxpar/prefill/gather_lane.hpp>
#include <ctxpar/prefill/keys.hpp>
#include <ctxpar/prefill/rows.hpp>
#include <ctxpar/prefill/shape.hpp>
#include <ctxpar/prefill/step.hpp>

namespace ctxpar::inline v0_1 {

// MLA prefill rows that attend up-projected keys: queries and outputs of their own widths, [rows()][Hl][width]. Rows of
// decode requests in them are not looked at; those are in q and out, absorbed.
template <class E, class Out>
struct projected_rows {
    head_view<const E> q;
    head_view<Out> out;
};

template <class Policy, class Backend, communicator Communicator>
class prefiller {
    static_assert(backend<Backend>, "ctxpar::prefiller: the second argument must be a backend, such as cpu_backend");
    static_assert(std::is_same_v<typename Backend::stream_type, typename Communicator::stream_type>,
                  "ctxpar::prefiller: backend and communicator must have the same stream_type");

public:
    using policy_type = Policy;
    using stream_type = typename Backend::stream_type;
    using attention = typename Policy::attention_type;
    using element = typename attention::element;
    using kv_element = typename attention::kv_element;

    // Local; talks to no one. config_error for a topology, group, shape or merge that is not legal.
    prefiller(const groups<Communicator>& ranks, const prefill_shape& shape, const Policy& chosen = {},
              Backend made = Backend{})
        : policy_(chosen), backend_(std::move(made)),
          limits_(detail::limits_of(policy_, shape, Backend::dense_partials)), mesh_(detail::mesh_of<attention>(shape)),
          groups_(detail::resolve_prefill_groups(ranks, mesh_, shape)),
          law_(detail::law_of(policy_, limits_, mesh_, groups_)),
          digest_(detail::prefiller_facts(policy_, shape, mesh_).digest_of_all()) {
        if (detail::decodes(shape)) decoder_.emplace(ranks, detail::decode_part(shape), policy_, backend_);
    }

    // The same with a second stream, of the current device, for backends whose streams run beside each other: chunks of
    // context are brought here on it, the next one while one is attended; all else, projections too, is on the stream
    // that a call is given. The streams wait for events made here, no host does, and attend leaves nothing on the
    // second one that the first has not waited for: it may be captured. Bits and the order of collectives are the same,
    // so it is each rank's own choice; the workspace has room for two chunks.
    prefiller(const groups<Communicator>& ranks, const prefill_shape& shape, const Policy& chosen, Backend made,
              stream_type gather_stream) requires event_backend<Backend>
        : prefiller(ranks, shape, chosen, std::move(made)) {
        limits_.overlaps = true;
        lane_ = detail::gather_lane<Backend>(gather_stream);
    }

    // Bytes of the workspace a step lives in: exact, the same for every step, and the same for every context.
    std::size_t workspace_bytes() const { return carve(nullptr).bytes; }

    // Plans one step from lengths and tables that the host can read, all of which it validates. Where checks are on it
    // is collective over the KV and the PCP group. config_error before anything is written.
    prefill_step plan(const prefill_batch& batch, const workspace& lent, stream_type stream) {
        check_workspace(lent, workspace_bytes(), "a prefill step");
        prefill_law law = law_;
        law.mask = batch.mask;
        const detail::prefill_facts facts = detail::check_prefill_batch(batch, shape(), law);
        require(Backend::takes_intervals || (batch.mask == mask_rule{} && batch.tree_bits == nullptr), "mask",
                "the attention callable takes lengths only; windows, chunks and draft trees need one that takes "
                "intervals");
        prefill_step step;
        step.batch = batch;
        step.law = law;
        step.counts = facts.counts;
        step.slots_needed = facts.slots;
        step.prefill_rows = facts.prefill_rows;
        step.decode_rows = facts.decode_rows;
        step.prefill_rows.reason = reason(shape().prefill_rows, false);
        step.decode_rows.reason = reason(shape().decode_rows, true);
        step.prefiller = digest_;
        step.scratch = lent.data;
        step.spread = detail::spread_exchange(policy_, detail::decode_part(shape()), mesh_, facts.counts.spread_rows,
                                              Backend::dense_partials);
        step.schedule = detail::prefill_schedule(policy_, limits_, mesh_, step, Backend::dense_partials);
        step.digest =
            detail::digest().add(digest_).add(facts.digest).add(detail::digest_of(step.schedule)).value() | 1U;
        agree(step, stream);
        write_arrays(step, facts, stream);
        return step;
    }

    // Throws a known failure of the communicators.
    void check(const prefill_step&) {
        Communicator* const both[] = {groups_.kv, groups_.rows};
        for (Communicator* const group : both)
            if (group != nullptr) group->check();
    }

    // own = this rank's rows of a batch: all is [batch rows][heads][width], own [rows()] of the same; filling becomes
    // T{}. Local.
    template <class T>
    void scatter(const prefill_step& step, const head_view<const T>& all, const head_view<T>& own, stream_type stream) {
        detail::check_prefill_step(step, digest_);
        detail::check_vectors("all", all, step.counts.batch_rows, own.heads, own.width);
        detail::check_vectors("own", own, step.counts.rows, all.heads, all.width);
        backend_.copy_rows(all, index_of(step.arrays.batch_rows), own, stream);
    }

    // Brings the new K and V of all PCP ranks to the ranks that own them in their KV group; decode rows are written by
    // their owners and do not travel; pads go nowhere. GQA: k and v are [rows()][KV heads of the rank][width]. MLA: k
    // is [rows()][1][latent], v is [rows()][1][rope]. One all_gather over the PCP group where the batch has prefill
    // rows. Before attend of the same layer, on the same stream.
    void append(const prefill_step& step, const head_view<const element>& k, const head_view<const element>& v,
                const kv_view<kv_element>& cache, stream_type stream) {
        detail::check_prefill_step(step, digest_);
        detail::check_new_rows(k, v, policy_.attention, step.counts.rows, limits_.row.kv_heads);
        check_cache(step, kv_view<const kv_element>(cache));
        const buffers memory = carve(step.scratch);
        const kv_view<kv_element> staged = keys(step, memory, {}).staged_rows(cache);
        const detail::new_key_writer<Backend, element, kv_element> writer{
            backend_, cache, staged, step.counts.staged_rows > 0, attention::values_in_keys};
        writer.write(k, v, step.arrays.slots, step.arrays.stage, stream);
        if (limits_.pcp == 1 || step.counts.prefill_rows == 0) return;

        const detail::new_key_rows<element> rows(memory.new_keys, k, v, limits_.pcp, step.counts.prefill_rows);
        const index_view chosen = index_of(step.arrays.prefill_rows);
        backend_.copy_rows(k, chosen, rows.keys_of(group_rank(groups_.rows)), stream);
        backend_.copy_rows(v, chosen, rows.values_of(group_rank(groups_.rows)), stream);
        groups_.rows->all_gather(rows.part(group_rank(groups_.rows)), memory.new_keys, rows.part_bytes(), stream,
                                 {"new keys and values", scalar_type_of<element>, step.digest});
        writer.write(rows.all_keys(), rows.all_values(), step.arrays.new_slots, step.arrays.new_stage, stream);
    }

    // Exact attention of the rank's rows over their whole sequences, new tokens included. q is [rows()][Hl][dq], out
    // and options.lse_out [rows()][Hl]; sinks are [Hg] as for a decoder. Filling becomes 0 with LSE -inf. Collective:
    // the calls of step.schedule behind that of append. Allocates nothing and does not wait for the device.
    template <class Out, lse_base LseBase = lse_base::natural>
    void attend(const prefill_step& step, const head_view<const element>& q, const kv_view<const kv_element>& cache,
                const head_view<Out>& out, const layer_options<LseBase>& options, stream_type stream) {
        require(!shape().projects(), "projection",
                "this prefiller's prefill rows are up-projected; give attend their rows and a projection");
        check_tensors(step, q, cache, out, options);
        const buffers memory = carve(step.scratch);
        attend_spread(step, memory, q, cache, out, options, stream);
        attend_decode(step, memory, q, cache, out, options, stream);
        attend_keys(step, memory, detail::stored_keys{}, q, cache, out, options, stream);
        detail::clear_filling(backend_, step.counts, out, options.lse_out, stream);
    }

    // The same for MLA prefill rows that attend up-projected keys. For each piece of cached rows, dequantised,
    //   project(latent [n][1][latent], rope [n][1][rope], keys [n][Hl][dq'], values [n][Hl][dv'], stream)
    // is called, in the order in which pieces arrive; it writes all n rows of keys and values.
    template <class Project, class Out, lse_base LseBase = lse_base::natural>
    void attend(const prefill_step& step, const head_view<const element>& q, const projected_rows<element, Out>& rows,
                Project&& project, const kv_view<const kv_element>& cache, const head_view<Out>& out,
                const layer_options<LseBase>& options, stream_type stream) {
        require(shape().projects(), "projection",
                "this prefiller's rows are absorbed; set projected_query_width and projected_value_width of its shape");
        check_tensors(step, q, cache, out, options);
        detail::check_vectors("projected q", rows.q, step.counts.rows, limits_.heads, limits_.key_query_width());
        detail::check_vectors("projected out", rows.out, step.counts.rows, limits_.heads, limits_.key_value_width());
        const buffers memory = carve(step.scratch);
        attend_decode(step, memory, q, cache, out, options, stream);
        const detail::projected_keys<std::remove_reference_t<Project>> source{project};
        attend_keys(step, memory, source, rows.q, cache, rows.out, options, stream);
        detail::clear_filling(backend_, step.counts, out, options.lse_out, stream);
        detail::clear_filling(backend_, step.counts, rows.out, options.lse_out, stream);
    }

    // all = rows of any width and type, in batch order: own is [rows()][heads][width], all [batch rows] of the same.
    // One all_gather over the PCP group where the batch has prefill rows; decode rows do not travel. config_error
    // "hidden" where a row has more bytes than the shape says.
    template <class T>
    void restore(const prefill_step& step, const head_view<const T>& own, const head_view<T>& all, stream_type stream) {
        put_back(
            step, own, all, step.counts.batch_rows,
            {step.counts.prefill_rows, step.arrays.prefill_rows, step.arrays.batch_rows, step.arrays.new_batch_rows},
            stream);
    }

    // The same for the last new token of every request only, what sampling needs: last is [requests]. The row of a
    // request without new tokens is left as it is.
    template <class T>
    void restore_last(const prefill_step& step, const head_view<const T>& own, const head_view<T>& last,
                      stream_type stream) {
        put_back(step, own, last, step.counts.requests,
                 {step.counts.last_rows, step.arrays.last_rows, step.arrays.last_of, step.arrays.last_requests},
                 stream);
    }

    const mesh& ranks() const { return mesh_; }
    const prefill_shape& shape() const { return limits_.shape; }
    Backend& used_backend() { return backend_; }

private:
    using buffers = detail::prefill_buffers<Policy, Backend>;

    // On what the prefillers are, before the first plan, and on the plan; in both groups.
    void agree(const prefill_step& step, stream_type stream) {
        bool agreed = true;
        Communicator* const both[] = {groups_.kv, groups_.rows};
        for (Communicator* const group : both) {
            if (group_size(group) <= 1 || group->checks() == check_level::off) continue;
            if (!has_agreed_) agreed &= detail::prefiller_facts(policy_, shape(), mesh_).agree(group, stream);
            group->agree(step.digest, "prefill plan", stream);
        }
        has_agreed_ = agreed;
    }

    buffers carve(void* base) const { return detail::carve_prefill(policy_, backend_, limits_, decode_bytes(), base); }
    std::size_t decode_bytes() const { return decoder_ ? decoder_->workspace_bytes() : 0; }
    const char* reason(prefill_path asked, bool decodes) const {
        return detail::path_reason(asked, law_.part.ranks, shape().projects() && !decodes, decodes);
    }
    std::int64_t first_head() const {
        return detail::placed_heads(mesh_, output_placement::own_heads, law_.part.rank).first;
    }
    detail::key_pass<Policy, Backend, Communicator> keys(const prefill_step& step, const buffers& memory,
                                                         const score_options& score) {
        return {groups_, backend_, limits_, step, memory, lane_, score};
    }

    void write_arrays(prefill_step& step, const detail::prefill_facts& facts, stream_type stream) {
        const buffers memory = carve(step.scratch);
        step.arrays = memory.arrays;
        backend_.prefill_metadata({step.batch, step.law, step.counts, memory.arrays}, stream);
        step.spread_plan = detail::spread_plan(step, limits_, memory.callable);
        if constexpr (detail::brings_attention<Backend>) {
            if (step.counts.spread_rows > 0) backend_.prepare(step.spread_plan, stream);
        }
        if (step.counts.decode_rows > 0) {
            step.decode = decoder_->plan_validated(
                detail::decode_part_of(step), detail::batch_facts{step.counts.decode_rows, facts.slots, facts.digest},
                workspace{memory.decode, decode_bytes()}, stream);
        }
    }

    // Rows whose queries travel, or whose keys are all here.
    template <class Out, lse_base LseBase>
    void attend_spread(const prefill_step& step, const buffers& memory, const head_view<const element>& q,
                       const kv_view<const kv_element>& cache, const head_view<Out>& out,
                       const layer_options<LseBase>& options, stream_type stream) {
        if (step.counts.spread_rows == 0) return;
        const detail::shard_pass<Policy, Backend, Communicator> pass{
            groups_, backend_, policy_, step.spread, step.spread_plan, memory.spread, first_head(), step.digest};
        detail::attend_rows(backend_, memory, detail::spread_rows_of(step), q, out, options, stream,
                            [&](const auto& own) { pass.run(own.q, cache, own.out, own.with(options), stream); });
    }

    template <class Out, lse_base LseBase>
    void attend_decode(const prefill_step& step, const buffers& memory, const head_view<const element>& q,
                       const kv_view<const kv_element>& cache, const head_view<Out>& out,
                       const layer_options<LseBase>& options, stream_type stream) {
        if (step.counts.decode_rows == 0) return;
        detail::attend_rows(
            backend_, memory, detail::decode_rows_of(step), q, out, options, stream,
            [&](const auto& own) { decoder_->decode(step.decode, own.q, cache, own.out, own.with(options), stream); });
    }

    // Rows to which keys are brought.
    template <class Source, class Out, lse_base LseBase>
    void attend_keys(const prefill_step& step, const buffers& memory, const Source& source,
                     const head_view<const element>& q, const kv_view<const kv_element>& cache,
                     const head_view<Out>& out, const layer_options<LseBase>& options, stream_type stream) {
        if (step.counts.staged_rows == 0) return;
        const float* const sinks = options.sinks == nullptr ? nullptr : options.sinks + first_head();
        const auto pass = keys(step, memory, detail::score_of(policy_.attention, options));
        detail::attend_rows(backend_, memory, detail::kv_rows_of(step), q, out, options, stream, [&](const auto& own) {
            pass.run(source, own.q, cache, own.out, own.lse_out, sinks, stream);
        });
    }

    void check_cache(const prefill_step& step, const kv_view<const kv_element>& cache) const {
        detail::check_cache(cache, policy_.attention, limits_.row.kv_heads, step.slots_needed);
        detail::check_travelling_scales(cache, limits_);
    }

    template <class Out, lse_base LseBase>
    void check_tensors(const prefill_step& step, const head_view<const element>& q,
                       const kv_view<const kv_element>& cache, const head_view<Out>& out,
                       const layer_options<LseBase>& options) const {
        detail::check_prefill_step(step, digest_);
        check_cache(step, cache);
        detail::check_vectors("q", q, step.counts.rows, limits_.heads, limits_.query_width);
        detail::check_output(out, options.lse_out, step.counts.rows, limits_.heads, limits_.value_width,
                             detail::decode_part(shape()), scalar_type_of<element>);
    }

    template <class T>
    void put_back(const prefill_step& step, const head_view<const T>& own, const head_view<T>& all, std::int64_t rows,
                  const detail::row_places& places, stream_type stream) {
        detail::check_prefill_step(step, digest_);
        detail::check_vectors("own", own, step.counts.rows, all.heads, all.width);
        detail::check_vectors("the restored rows", all, rows, own.heads, own.width);
        const bool travels = limits_.pcp > 1 && places.travelling > 0;
        if (travels) detail::check_hidden(own, shape());
        backend_.place_rows(own, index_of(places.of_own), all, stream);
        if (travels)
            detail::place_arriving(*groups_.rows, backend_, carve(step.scratch).hidden, own, all, places, step.digest,
                                   stream);
    }

    [[no_unique_address]] Policy policy_;
    Backend backend_;
    detail::prefill_limits limits_;
    mesh mesh_;
    std::optional<decoder<Policy, Backend, Communicator>> decoder_; // of the decode rows, where there may be any
    groups<Communicator> groups_;
    prefill_law law_;
    [[no_unique_address]] detail::gather_lane<Backend> lane_; // of chunks of context
    std::uint64_t digest_ = 0;
    bool has_agreed_ = false;
};

} // namespace ctxpar::inline v0_1
