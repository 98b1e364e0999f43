// Decode over a KV cache that is sharded over ranks: every rank attends to its own tokens, and the partial results are
// merged exactly. A thin composer: gather queries, attend, merge, restore heads.
//
//   decoder<policy, backend, communicator> decoder{{&kv}, shape};
//   auto step = decoder.plan(batch, workspace, stream);      once a step, however many layers
//   decoder.append(step, k, v, cache, stream);               per layer: owners write, the others skip
//   decoder.decode(step, q, cache, out, {}, stream);         per layer
//
// All ranks of the groups make the same calls in the same order, with the same lengths and counts; block tables, pools
// and pointers are each rank's own. New tokens are appended before they are decoded, and a row sees itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ctxpar/attention/batch.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/core/workspace.hpp>
#include <ctxpar/decode/buffers.hpp>
#include <ctxpar/decode/checks.hpp>
#include <ctxpar/decode/maps.hpp>
#include <ctxpar/decode/pass.hpp>
#include <ctxpar/decode/place.hpp>
#include <ctxpar/decode/shape.hpp>
#include <ctxpar/decode/step.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/merge/exchange.hpp>
#include <ctxpar/merge/policy.hpp>

namespace ctxpar::inline v0_1 {

template <class Policy, class Backend, communicator Communicator>
class decoder {
    static_assert(backend<Backend>, "ctxpar::decoder: the second argument must be a backend, such as cpu_backend");
    static_assert(std::is_same_v<typename Backend::stream_type, typename Communicator::stream_type>,
                  "ctxpar::decoder: backend and communicator must have the same stream_type");

public:
    using policy_type = Policy;
    using stream_type = typename Backend::stream_type;
    using attention = typename Policy::attention_type;
    using element = typename attention::element;
    using kv_element = typename attention::kv_element;

    // Local; talks to no one. config_error for a topology, group, shape or merge that is not legal.
    decoder(const groups<Communicator>& ranks, const decode_shape& shape, const Policy& chosen = {},
            Backend made = Backend{})
        : policy_(chosen), backend_(std::move(made)), shape_(shape),
          mesh_(shape.sizes, {attention::kind, shape.q_heads, shape.kv_heads}, shape.rules),
          law_(make_ownership(shape.sizes.dcp, policy_.interleaving.size())) {
        detail::check_decode_shape(shape_);
        detail::check_policy(policy_, shape_, mesh_);
        splits_ = detail::split_rule_of(backend_, split_work_of_shape(), shape_.max_splits);
        shape_.max_splits = splits_.most;
        groups_ =
            detail::resolve_groups(ranks, mesh_, shape_, restore().group == group_role::heads && restore().size > 1);
        digest_ = detail::decoder_facts(policy_, shape_, mesh_).digest_of_all();
    }

    // Bytes of the workspace a step lives in: exact, and the same for every step of this decoder.
    std::size_t workspace_bytes() const { return carve(nullptr).bytes; }

    // Plans one step from lengths and tables that the host can read, all of which it validates. Where checks are on it
    // is collective, and the ranks agree on policy, shapes, lengths and schedule. config_error before anything is
    // written.
    decode_step plan(const decode_batch& batch, const workspace& lent, stream_type stream) {
        check_workspace(lent, workspace_bytes(), "a decode step");
        return finish_plan(batch, detail::check_batch(batch, shape_, part()), shape_.longest, lent, stream);
    }

    // Plans one step whose lengths and tables may lie on the device: the host reads none of them. Bad entries become
    // empty rows that write nothing; check() tells. The bounds are the same on every rank.
    decode_step plan(const decode_batch& batch, const step_bounds& bounds, const workspace& lent, stream_type stream) {
        check_workspace(lent, workspace_bytes(), "a decode step");
        return finish_plan(batch, detail::check_bounds(batch, bounds, shape_), bounds.longest, lent, stream);
    }

    // The same for a caller that has validated the batch itself, such as a prefiller for its decode rows; the arrays of
    // the batch may lie on the device.
    decode_step plan_validated(const decode_batch& batch, const detail::batch_facts& facts, const workspace& lent,
                               stream_type stream) {
        check_workspace(lent, workspace_bytes(), "a decode step");
        return finish_plan(batch, facts, shape_.longest, lent, stream);
    }

    // Throws a known failure of the communicator; returns what the metadata of the step found wrong. Wait for the
    // step's stream first.
    step_status check(const decode_step& step) {
        if (groups_.kv != nullptr) groups_.kv->check();
        return backend_.read_status(step.attention.arrays.status);
    }

    // Writes the step's new rows, one a query row, into this rank's cache where it owns them. GQA: k and v are
    // [R][KV heads of the rank][width]. MLA: k is [R][1][latent], v is [R][1][rope]. Local.
    void append(const decode_step& step, const head_view<const element>& k, const head_view<const element>& v,
                const kv_view<kv_element>& cache, stream_type stream) {
        detail::check_step(step, digest_);
        detail::check_new_rows(k, v, policy_.attention, step.rows, mesh_.kv_heads_per_rank());
        detail::check_cache(cache, policy_.attention, mesh_.kv_heads_per_rank(), step.slots_needed);
        write_rows(index_of(step.attention.arrays.slots), k, v, cache, stream);
    }

    // The same for rows that the engine maps to slots itself, any number of them: slots is [rows], int32 or int64, -1
    // skips. config_error "slot" for a slot past the cache, where the host can read them.
    void append(const index_view& slots, const head_view<const element>& k, const head_view<const element>& v,
                const kv_view<kv_element>& cache, stream_type stream) {
        detail::check_new_rows(k, v, policy_.attention, k.rows, mesh_.kv_heads_per_rank());
        detail::check_cache(cache, policy_.attention, mesh_.kv_heads_per_rank(), 0);
        if constexpr (Backend::host_memory) detail::check_slots(slots, k.rows, cache.slots());
        write_rows(slots, k, v, cache, stream);
    }

    // Exact attention of the step's rows. q is [R][Hl][dq], or [R][Hg][dq] with replicated Q; out is [R][heads][dv]
    // with the heads of the shape's placement, in fp32 or the policy's element as the shape says. Collective: the calls
    // of step.schedule. Allocates nothing and does not wait for the device.
    template <class Out, lse_base LseBase = lse_base::natural>
    void decode(const decode_step& step, const head_view<const element>& q, const kv_view<const kv_element>& cache,
                const head_view<Out>& out, const layer_options<LseBase>& options, stream_type stream) {
        decode(step, q, cache, out, options, head_maps<>{}, stream);
    }

    // The same with linear maps of heads behind the gather of Q and before the exchange of outputs, see
    // decode/maps.hpp: q is as wide as the shape's unmapped_query_width and out as its mapped_width. config_error "map"
    // where the shape has no room for a map, or for one that is not given.
    template <class Out, lse_base LseBase = lse_base::natural, class Queries, class Values>
    void decode(const decode_step& step, const head_view<const element>& q, const kv_view<const kv_element>& cache,
                const head_view<Out>& out, const layer_options<LseBase>& options,
                const head_maps<Queries, Values>& maps, stream_type stream) {
        detail::check_step(step, digest_);
        detail::check_maps(maps, shape_);
        detail::check_vectors("q", q, step.rows, query_heads(), detail::query_width_of(policy_, shape_));
        detail::check_cache(cache, policy_.attention, mesh_.kv_heads_per_rank(), step.slots_needed);
        detail::check_output(out, options.lse_out, step.rows, output_heads(), detail::value_width_of(policy_, shape_),
                             shape_, scalar_type_of<element>);
        const buffers memory = carve(step.scratch);
        detail::shard_pass<Policy, Backend, Communicator>{groups_,        backend_,    policy_,        step.shape,
                                                          step.attention, memory.pass, placed().first, step.digest}
            .run(q, cache, out, options, stream, maps);
    }

    const mesh& ranks() const { return mesh_; }
    const decode_shape& shape() const { return shape_; }
    Backend& used_backend() { return backend_; }

    // Heads of Q and of the output on this rank.
    std::int64_t query_heads() const { return shape_.replicated_q ? mesh_.gathered_heads() : mesh_.heads_per_rank(); }
    std::int64_t output_heads() const { return placed().count(); }

private:
    using buffers = detail::decode_buffers<Policy, Backend>;

    buffers carve(void* base) const { return detail::carve_decode(policy_, backend_, shape_, mesh_, base); }
    std::int64_t place() const { return group_rank(groups_.kv); }
    shard part() const { return {law_.ranks, place(), law_.interleave}; }
    head_restore restore() const {
        return restore_of(policy_.merging.scatters_heads(),
                          detail::exchange_of(policy_, shape_, mesh_, shape_.max_rows, Backend::dense_partials));
    }

    std::int64_t rows_per_request() const { return (shape_.max_rows + shape_.max_requests - 1) / shape_.max_requests; }
    split_work split_work_of_shape() const {
        return {shape_.max_rows, rows_per_request(), mesh_.gathered_heads(), mesh_.kv_heads_per_rank(),
                policy_.attention.value_width()};
    }
    head_range placed() const { return detail::placed_heads(mesh_, shape_.placement, place()); }

    decode_step finish_plan(const decode_batch& batch, const detail::batch_facts& facts, std::int64_t longest,
                            const workspace& lent, stream_type stream) {
        require(
            Backend::takes_intervals || (batch.mask == mask_rule{} && batch.tree_bits == nullptr), "mask",
            "the attention callable takes lengths only; windows, chunks and draft trees need one that takes intervals");
        decode_step step;
        step.batch = batch;
        step.rows = facts.rows;
        step.part = part();
        step.slots_needed = facts.slots;
        step.scratch = lent.data;
        step.decoder = digest_;
        step.shape = detail::exchange_of(policy_, shape_, mesh_, facts.rows, Backend::dense_partials);
        step.schedule = layer_schedule(policy_.merging, step.shape);
        step.digest =
            detail::digest().add(digest_).add(facts.digest).add(detail::digest_of(step.schedule)).value() | 1U;
        agree(step, stream);
        const buffers memory = carve(lent.data);
        step.attention = attention_of(step, memory);
        backend_.metadata({batch, step.rows, longest, shape_.pool_blocks, splits_.most, step.part, memory.arrays,
                           splits_.least, splits_.grain},
                          stream);
        if constexpr (detail::brings_attention<Backend>) backend_.prepare(step.attention, stream);
        return step;
    }

    // On what the decoders are, before the first plan, and on the plan.
    void agree(const decode_step& step, stream_type stream) {
        if (group_size(groups_.kv) <= 1 || groups_.kv->checks() == check_level::off) return;
        if (!has_agreed_) has_agreed_ = detail::decoder_facts(policy_, shape_, mesh_).agree(groups_.kv, stream);
        groups_.kv->agree(step.digest, "decode plan", stream);
    }

    // The part of a step that the attention may look at.
    attention_plan attention_of(const decode_step& step, const buffers& memory) const {
        attention_plan plan;
        plan.arrays = memory.arrays;
        plan.table = step.batch.table;
        plan.rows = step.rows;
        plan.requests = step.batch.requests;
        plan.segments = step.batch.requests + 1;
        plan.heads = step.shape.gathered_heads;
        plan.kv_heads = mesh_.kv_heads_per_rank();
        plan.query_width = policy_.attention.query_width();
        plan.value_width = policy_.attention.value_width();
        plan.rows_per_request = rows_per_request();
        plan.memory = memory.callable;
        return plan;
    }

    void write_rows(const index_view& slots, const head_view<const element>& k, const head_view<const element>& v,
                    const kv_view<kv_element>& cache, stream_type stream) {
        append_args<element, kv_element> args;
        args.k = k;
        args.v = v;
        args.slots = slots;
        args.cache = cache;
        args.values_in_keys = attention::values_in_keys;
        backend_.append(args, stream);
    }

    [[no_unique_address]] Policy policy_;
    Backend backend_;
    decode_shape shape_;
    mesh mesh_;
    ownership law_;
    split_rule splits_;
    groups<Communicator> groups_;
    std::uint64_t digest_ = 0;
    bool has_agreed_ = false;
};

} // namespace ctxpar::inline v0_1
