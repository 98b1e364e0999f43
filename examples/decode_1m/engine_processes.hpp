// The engine of one rank that is an MPI process.
#pragma once

#include <memory>

#include <ctxpar/comm/mpi.hpp>

#include "engine.hpp"

namespace demo {

using process_engine = engine_over<ctxpar::mpi_communicator>;

// One for each kind of attention, so that they are compiled apart.
std::unique_ptr<process_engine> make_gqa_process_engine(const problem& all, const kv_data& data);
std::unique_ptr<process_engine> make_mla_process_engine(const problem& all, const kv_data& data);

inline std::unique_ptr<process_engine> make_process_engine(const problem& all, const kv_data& data) {
    return all.is_mla() ? make_mla_process_engine(all, data) : make_gqa_process_engine(all, data);
}

} // namespace demo
