// Live migration: the KV of a running request goes from one layout to another, from (N1, I1) on some ranks of a domain
// to (N2, I2) on others, or on the same, while it is decoded in the source layout. A thin composer.
//
//   migrator<attention, backend, communicator> mover{domain, shape};
//   migration job{from, to};
//   auto plan = [&] { return mover.plan(job, length, layers, workspace, stream); }; // its length by now
//   for (auto step = plan(); !step.empty(); step = plan()) {
//       mover.move(step, stream);    // or layer by layer: move(step, layer, stream)
//       job.done = step.end;
//       ...                          // decode it where it is, and other requests
//   }                                // from here on it is in the target layout
//
// All ranks of the domain make the same calls in the same order, also those that are in neither layout. Bits are moved:
// keys, values and each token's own scales, packed rows in one exchange a layer and step; rows that stay on a rank are
// copied there. The source is only read. Where something fails, it is as it was: drop the target and decode on. An
// empty step is planned when all ranks have moved all, so that the source may be dropped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/core/workspace.hpp>
#include <ctxpar/layout/kv_view.hpp>
#include <ctxpar/layout/reshard_part.hpp>
#include <ctxpar/migrate/buffers.hpp>
#include <ctxpar/migrate/checks.hpp>
#include <ctxpar/migrate/step.hpp>

namespace ctxpar::inline v0_1 {

template <class Attention, class Backend, communicator Communicator>
class migrator {
    static_assert(attention_policy<Attention>,
                  "ctxpar::migrator: the first argument must be an attention policy, such as gqa or mla");
    static_assert(resharding_backend<Backend>,
                  "ctxpar::migrator: the second argument must be a backend with reshard_metadata, such as cpu_backend");
    static_assert(std::is_same_v<typename Backend::stream_type, typename Communicator::stream_type>,
                  "ctxpar::migrator: backend and communicator must have the same stream_type");

public:
    using stream_type = typename Backend::stream_type;
    using kv_element = typename Attention::kv_element;
    using layer = migrated_layer<kv_element>;
    using step = migration_step<kv_element>;

    // Local; talks to no one. The communicator is that of the domain, and outlives the migrator. config_error "chunk",
    // "kv_heads", "scales", "width", "size".
    migrator(Communicator& domain, const migration_shape& shape, const Attention& attention = {},
             Backend made = Backend{})
        : domain_(domain), shape_(shape), backend_(std::move(made)), row_(row_of(shape, attention)) {
        detail::check_migration_shape(shape_, row_, sizeof(kv_element));
        facts_.add(static_cast<std::uint64_t>(scalar_type_of<kv_element>)).add(row_.values_in_keys ? 1U : 0U);
        facts_.add_signed(row_.kv_heads).add_signed(row_.key_width).add_signed(row_.value_width);
        facts_.add_signed(shape_.scales_per_token).add_signed(shape_.chunk_tokens).add_signed(domain_.size());
    }

    // Bytes of the workspace of a step: exact, and the same for every step of this migrator.
    std::size_t workspace_bytes() const { return carve(nullptr).bytes; }

    // Bytes of a token on its way, for each layer.
    std::int64_t row_bytes() const { return row_.bytes(sizeof(kv_element)); }

    // Plans the next tokens of a migration, chunk_tokens at most, of a request that has `length` by now: they are
    // written, or will be by work that the stream has. Tables are where the backend reads them, and must have room for
    // all of `length`. Collective; sends one status to each rank and waits for the stream, so that all ranks refuse
    // where one does, and the communicator lives on. config_error before anything is moved, on every rank with the code
    // of the first rank that refuses (its own first):
    //   "ranks", "interleave"      a layout that the domain does not have
    //   "range"                    first or done negative or past the length
    //   "block_size", "request"    of a table
    //   "table_too_short"          a table without room for the length
    //   "table"                    a block that the pool does not have
    //   "overlap"                  a block that this step would write, and that is a block of the source in the same
    //                              pool: caches whose keys have one base, or one array of pages
    //   "layers", "cache", "null", "size", "stride"   no layers, or a view that is not what the migrator moves
    //   "facts"                    ranks that were called for different steps
    // and "workspace" on this rank alone. comm_error as the communicator.
    step plan(const migration& job, std::int64_t length, std::span<const layer> layers, const workspace& lent,
              stream_type stream) {
        check_workspace(lent, workspace_bytes(), "a migration step");
        const buffers memory = carve(lent.data);
        step next;
        reshard_args args;
        const auto refused = detail::found_refusal([&] {
            detail::check_migration(job, length, domain_.size());
            const auto pools = detail::check_layers(job, layers, row_, shape_.scales_per_token, domain_.rank());
            args.from_blocks = pools.from_blocks;
            args.to_blocks = pools.to_blocks;
            args.one_pool = pools.one_pool;
            next = step_of(job, length, layers);
        });
        next.arrays = memory.arrays;
        next.scratch = lent.data;
        fill(args, job, length, next);
        if (refused.has_value()) std::strncpy(args.known.code, refused->code().c_str(), sizeof(args.known.code) - 1);
        backend_.reshard_metadata(args, stream);
        if (domain_.size() > 1)
            domain_.all_gather(memory.arrays.status, memory.statuses, sizeof(reshard_status), stream, {"migration"});
        domain_.wait(stream);
        std::vector<reshard_status> all;
        for (int rank = 0; rank < domain_.size(); ++rank) all.push_back(backend_.read_status(memory.statuses + rank));
        detail::check_statuses(all, args, refused);
        return next;
    }

    // Moves the rows of a step, of one layer. Collective where step.exchanges: one all_to_all. Allocates nothing and
    // does not wait for the device. config_error "step", "layer", on this rank alone.
    void move(const step& planned, std::size_t layer_index, stream_type stream) {
        require(planned.scratch != nullptr && planned.migrator == facts_.value(), "step",
                "this step was not planned by this migrator, or by one of its shape");
        require(layer_index < planned.layers.size(), "layer", "layer ", layer_index, " was named; the step has ",
                planned.layers.size(), " layers, counted from 0");
        const layer& caches = planned.layers[layer_index];
        const buffers memory = carve(planned.scratch);
        const index_view leaving = index_of(memory.arrays.from_slots), arriving = index_of(memory.arrays.to_slots);
        copy(caches.from, leaving, packed(memory.sent, planned.sent_rows), {}, planned.sent_rows, stream);
        if (planned.exchanges)
            domain_.all_to_all(memory.sent, planned.send_bytes, memory.received, planned.receive_bytes, stream,
                               {"migrated KV", scalar_type_of<kv_element>, planned.digest});
        copy(kv_view<const kv_element>(packed(memory.received, planned.received_rows)), {}, caches.to, arriving,
             planned.received_rows, stream);
        const index_view staying = index_of(memory.arrays.from_slots + planned.sent_rows);
        copy(caches.from, staying, caches.to, index_of(memory.arrays.to_slots + planned.received_rows),
             planned.kept_rows, stream);
    }

    // All layers, one after another.
    void move(const step& planned, stream_type stream) {
        for (std::size_t i = 0; i < planned.layers.size(); ++i) move(planned, i, stream);
    }

    const migration_shape& shape() const { return shape_; }
    Backend& used_backend() { return backend_; }

private:
    using buffers = detail::migration_buffers<kv_element>;

    buffers carve(void* base) const {
        return detail::carve_migration<kv_element>(row_, shape_.chunk_tokens, domain_.size(), domain_.rank(), base);
    }

    static packed_row row_of(const migration_shape& shape, const Attention& attention) {
        return {shape.kv_heads, attention.query_width(), attention.value_width(), Attention::values_in_keys,
                shape.scales_per_token > 0};
    }

    // What the step is, and what this rank does for it, from facts that all ranks share.
    step step_of(const migration& job, std::int64_t length, std::span<const layer> layers) const {
        const std::int64_t rank = domain_.rank();
        step next;
        next.first = job.next();
        next.end = next.first + std::min(shape_.chunk_tokens, length - next.first);
        next.layers = layers;
        next.send_bytes.resize(static_cast<std::size_t>(domain_.size()));
        next.receive_bytes.resize(next.send_bytes.size());
        const auto count_rows = [&](std::int64_t from, std::int64_t to, std::int64_t, std::int64_t, std::int64_t rows) {
            next.exchanges = next.exchanges || from != to;
            const auto bytes = static_cast<std::size_t>(rows * row_bytes());
            if (from == rank && to == rank) {
                next.kept_rows += rows;
            } else if (from == rank) {
                next.sent_rows += rows;
                next.send_bytes[static_cast<std::size_t>(to)] += bytes;
            } else if (to == rank) {
                next.received_rows += rows;
                next.receive_bytes[static_cast<std::size_t>(from)] += bytes;
            }
        };
        for_each_domain_run(job.from, job.to, next.first, next.end, count_rows);
        return next;
    }

    void fill(reshard_args& args, const migration& job, std::int64_t length, step& next) const {
        next.migrator = facts_.value();
        detail::digest sum = facts_;
        for (const domain_request* side : {&job.from, &job.to})
            sum.add_signed(side->law.ranks).add_signed(side->law.interleave).add_signed(side->first_rank);
        sum.add_signed(job.first).add_signed(job.done).add_signed(length).add(next.layers.size());
        next.digest = sum.value() | 1U;
        args.from = job.from;
        args.to = job.to;
        args.rank = domain_.rank();
        args.ranks = domain_.size();
        args.kept = job.first;
        args.first = next.first;
        args.end = next.end;
        args.length = length;
        args.known.facts = next.digest;
        args.out = next.arrays;
    }

    // Packed rows, each with the scales of its token.
    kv_view<kv_element> packed(kv_element* base, std::int64_t rows) const { return packed_kv(base, row_, rows, 1); }

    void copy(const kv_view<const kv_element>& from, const index_view& slots, const kv_view<kv_element>& to,
              const index_view& to_slots, std::int64_t rows, stream_type stream) {
        if (rows == 0) return;
        copy_kv_args<kv_element, kv_element> args;
        args.from = from;
        args.slots = slots;
        args.to = to;
        args.to_slots = to_slots;
        args.rows = rows;
        args.values_in_keys = row_.values_in_keys;
        backend_.copy_kv(args, stream);
    }

    Communicator& domain_;
    migration_shape shape_;
    Backend backend_;
    packed_row row_;
    detail::digest facts_;
};

} // namespace ctxpar::inline v0_1
