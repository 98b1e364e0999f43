// The engine of one rank that is an MPI process.
#pragma once

#include <memory>

#include <ctxpar/comm/mpi.hpp>

#include "engine.hpp"
#include "engine_cuda.hpp"

namespace demo {

using process_engine = engine_over<ctxpar::mpi_communicator>;

// One for each kind of attention, so that they are compiled apart.
std::unique_ptr<process_engine> make_gqa_process_engine(const problem& all, const kv_data& data);
std::unique_ptr<process_engine> make_mla_process_engine(const problem& all, const kv_data& data);

// With the caches on GPUs and NCCL between them, one for each rank; where the program has CUDA.
std::unique_ptr<process_engine> make_cuda_gqa_process_engine(const problem& all, const kv_data& data);
std::unique_ptr<process_engine> make_cuda_mla_process_engine(const problem& all, const kv_data& data);

inline std::unique_ptr<process_engine> make_process_engine(const problem& all, const kv_data& data) {
#if defined(DEMO_WITH_CUDA)
    if (all.on_gpus) {
        check_cuda(all);
        return all.is_mla() ? make_cuda_mla_process_engine(all, data) : make_cuda_gqa_process_engine(all, data);
    }
#endif
    return all.is_mla() ? make_mla_process_engine(all, data) : make_gqa_process_engine(all, data);
}

} // namespace demo
