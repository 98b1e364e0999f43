// The decode of one rank over caches that lie in a pool of numbers, one layer after another. Cache is memory of the
// kind of the rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ctxpar/comm/local.hpp>
#ifdef DEMO_WITH_MPI
#include <ctxpar/comm/mpi.hpp>
#endif

#include "place.hpp"
#include "work.hpp"

namespace demo {

// Requests that all ranks of a communicator share, or one rank alone.
class rank_layers {
public:
    virtual ~rank_layers() = default;

    virtual std::size_t cache_bytes() const = 0; // of a layer
    // Writes the tokens of all requests but their newest rows to a cache. Always the same tokens.
    virtual void fill(std::byte* cache) = 0;
    virtual void plan() = 0;
    virtual void append(std::byte* cache) = 0;
    virtual void decode(std::byte* cache) = 0;
    // [rows][heads][value width], the requests in order.
    virtual std::vector<float> output() const = 0;
};

// A step: a plan, and for each layer the newest rows into a cache of its own and the attention.
inline void step(rank_layers& of, std::int64_t layers, memory_in_turn& pool) {
    of.plan();
    for (std::int64_t i = 0; i < layers; ++i) {
        std::byte* const cache = pool.next(of.cache_bytes());
        of.append(cache);
        of.decode(cache);
    }
}

// A step whose results are to be compared.
inline void first_step(rank_layers& of, memory_in_turn& pool) {
    of.fill(pool.data());
    of.plan();
    of.append(pool.data());
    of.decode(pool.data());
}

// kv: the ranks that share; null: this rank alone has the requests. The kind of rank follows from C; calls that give
// work to a device give it to the stream, and wait only where they return numbers. config_error "memory" where a layer
// has no room in the pool.
template <ctxpar::communicator C>
std::unique_ptr<rank_layers> make_layers(const model_dims& model, const requests& all, ctxpar::merge_kind merge,
                                         const memory_in_turn& pool, C* kv, typename C::stream_type stream = {});
template <>
std::unique_ptr<rank_layers> make_layers(const model_dims& model, const requests& all, ctxpar::merge_kind merge,
                                         const memory_in_turn& pool, ctxpar::local_communicator* kv,
                                         ctxpar::host_stream stream);
#ifdef DEMO_WITH_MPI
template <>
std::unique_ptr<rank_layers> make_layers(const model_dims& model, const requests& all, ctxpar::merge_kind merge,
                                         const memory_in_turn& pool, ctxpar::mpi_communicator* kv,
                                         ctxpar::host_stream stream);
#endif

} // namespace demo
