#include "engine_gqa.hpp"

namespace demo {

std::unique_ptr<engine> make_gqa_engine(const problem& all, const kv_data& data) {
    return gqa_engine_over<ctxpar::local_communicator>(all, data);
}

} // namespace demo
