// One rank: its groups, its decoder, and the calls that an engine makes.
#pragma once

#include <chrono>
#include <cstring>
#include <utility>

#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/decode.hpp>
#include <ctxpar/merge/policy.hpp>

#include "cache.hpp"
#include "common/groups.hpp"
#include "engine.hpp"
#include "faulty_merge.hpp"

namespace demo {

template <class Attention, class Communicator>
class decode_rank {
public:
    using policy_type = ctxpar::policy<Attention, ctxpar::interleave<>, faulty_merge>;
    using decoder_type = ctxpar::decoder<policy_type, ctxpar::cpu_backend, Communicator>;
    using element = typename Attention::element;

    decode_rank(const problem& all, const kv_data& data, const Attention& attention, rank_cache<Attention>& cache,
                const std::vector<std::int32_t>& blocks, Communicator& world)
        : all_(all), data_(data), attention_(attention), cache_(cache), world_(world), mesh_(all.ranks()),
          groups_(world, mesh_),
          backend_(ctxpar::cpu_options{all.threads_per_rank}), part_{all.law.ranks, groups_.kv->rank(),
                                                                     all.law.interleave},
          table_(ctxpar::table_2d(blocks.data(), all.requests, all.blocks_per_request(), all.block_size)),
          first_kv_head_(mesh_.kv_heads(world.rank()).first) {}

    decoder_type make_decoder(const std::string& merge) {
        ctxpar::decode_shape shape;
        shape.sizes = all_.sizes;
        shape.q_heads = all_.q_heads;
        shape.kv_heads = all_.kv_heads;
        shape.rank = world_.rank();
        shape.max_requests = all_.requests;
        shape.max_rows = all_.requests * all_.query_rows;
        shape.longest = all_.room();
        shape.pool_blocks = all_.requests * all_.blocks_per_request();
        shape.placement = all_.placement;
        shape.output = ctxpar::scalar_type::f32;
        const policy_type chosen{attention_, {all_.law.interleave}, {{ctxpar::merge_named(merge)}, all_.injected}};
        return {groups_.view(), shape, chosen, backend_};
    }

    // Writes this rank's tokens of all layers and requests, a chunk at a time, to the slots that the table says.
    void fill(decoder_type& decoder, progress& bar) {
        constexpr std::int64_t chunk = 256;
        new_rows<Attention> rows(all_, chunk);
        std::vector<std::int64_t> positions(chunk), slots(chunk);
        for (std::int64_t layer = 0; layer < all_.layers; ++layer)
            for (std::int64_t request = 0; request < all_.requests; ++request) {
                const std::int64_t own = part_.local_len(all_.filled(request));
                for (std::int64_t first = 0; first < own; first += chunk) {
                    const std::int64_t count = std::min(chunk, own - first);
                    for (std::int64_t i = 0; i < count; ++i) {
                        const std::int64_t position = part_.global(first + i);
                        positions[static_cast<std::size_t>(i)] = position;
                        rows.make(data_, i, layer, request, position, value_position(position), first_kv_head_);
                    }
                    const auto size = static_cast<std::size_t>(count);
                    ctxpar::map_slots(part_, table_, request, std::span(positions).first(size), std::span(slots));
                    decoder.append(ctxpar::index_of(slots.data()), rows.first_part(count), rows.second_part(count),
                                   cache_.view(all_, layer), {});
                    bar.add(count);
                }
            }
    }

    void decode(record& to) {
        decoder_type decoder = make_decoder(to.merge);
        const ctxpar::host_workspace memory(decoder.workspace_bytes());
        forget_new_tokens();
        const std::uint64_t launches = backend_.launches();
        std::int64_t appended = 0;
        for (std::int64_t step = 0; step < all_.steps; ++step) appended += one_step(decoder, memory, step, to);
        const auto at = static_cast<std::size_t>(world_.rank());
        to.sent[at] = groups_.bytes_sent();
        if (at == 0) {
            const auto done = static_cast<std::int64_t>(backend_.launches() - launches);
            to.launches = (done - all_.steps - appended) / (all_.steps * all_.layers);
        }
    }

private:
    // The injected swap: the values of the rank's first two interleave groups change places, their keys do not.
    std::int64_t value_position(std::int64_t position) const {
        if (all_.injected != fault::swap_group || part_.rank != 0) return position;
        const std::int64_t local = part_.local(position);
        if (local >= 2 * part_.interleave) return position;
        return part_.global(local < part_.interleave ? local + part_.interleave : local - part_.interleave);
    }

    // Makes NaN of the slots that the steps will write, so that nothing is found there that was not written.
    void forget_new_tokens() {
        for (std::int64_t layer = 0; layer < all_.layers; ++layer) {
            const auto cache = cache_.view(all_, layer);
            const auto bytes = [](std::int64_t width) {
                return static_cast<std::size_t>(width) * sizeof(typename Attention::kv_element);
            };
            for (std::int64_t request = 0; request < all_.requests; ++request)
                for (std::int64_t p = all_.filled(request); p < all_.length(request, all_.steps - 1); ++p) {
                    const std::int64_t slot = ctxpar::slot_of(part_, table_, request, p);
                    for (std::int64_t head = 0; slot >= 0 && head < cache.kv_heads; ++head) {
                        std::memset(static_cast<void*>(cache.value(slot, head)), 0xff, bytes(all_.value_width));
                        std::memset(static_cast<void*>(cache.key(slot, head)), 0xff, bytes(all_.query_width));
                    }
                }
        }
    }

    struct step_inputs;
    std::int64_t one_step(decoder_type& decoder, const ctxpar::workspace& lent, std::int64_t step, record& to);

    const problem& all_;
    const kv_data& data_;
    Attention attention_;
    rank_cache<Attention>& cache_;
    Communicator& world_;
    ctxpar::mesh mesh_;
    rank_groups<Communicator> groups_;
    ctxpar::cpu_backend backend_;
    ctxpar::shard part_;
    ctxpar::block_table table_;
    std::int64_t first_kv_head_;
};

} // namespace demo
