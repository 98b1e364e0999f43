// Layers of ranks that are threads of one process.
#include "host_rank.hpp"
#include "layers_of.hpp"

namespace demo {

template <>
std::unique_ptr<rank_layers> make_layers(const model_dims& model, const requests& all, ctxpar::merge_kind merge,
                                         const memory_in_turn& pool, ctxpar::local_communicator* kv,
                                         ctxpar::host_stream stream) {
    return make_layers_of<host_kind<ctxpar::local_communicator>>(model, all, merge, pool, kv, stream);
}

} // namespace demo
