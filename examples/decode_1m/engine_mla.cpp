#include "engine_mla.hpp"

namespace demo {

std::unique_ptr<engine> make_mla_engine(const problem& all, const kv_data& data) {
    return mla_engine_over<ctxpar::local_communicator>(all, data);
}

} // namespace demo
