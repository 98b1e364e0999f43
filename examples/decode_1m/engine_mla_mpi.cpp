#include "engine_mla.hpp"
#include "engine_processes.hpp"

namespace demo {

std::unique_ptr<process_engine> make_mla_process_engine(const problem& all, const kv_data& data) {
    return mla_engine_over<ctxpar::mpi_communicator>(all, data);
}

} // namespace demo
