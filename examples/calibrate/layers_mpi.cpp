// Layers of ranks that are MPI processes.
#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/attention/mla.hpp>
#include <ctxpar/comm/mpi.hpp>

#include "layers_of.hpp"

namespace demo {

template <>
std::unique_ptr<rank_layers> make_layers(const model_dims& model, const requests& all, ctxpar::merge_kind merge,
                                         const number_pool& pool, ctxpar::mpi_communicator* kv) {
    using C = ctxpar::mpi_communicator;
    if (model.latent)
        return std::make_unique<layers_of<ctxpar::mla<ctxpar::bf16, 512, 64>, C>>(model, all, merge, pool, kv);
    return std::make_unique<layers_of<ctxpar::gqa<ctxpar::bf16, 128>, C>>(model, all, merge, pool, kv);
}

} // namespace demo
