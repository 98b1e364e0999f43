// Stands in for the engine with GPUs where the program is built without CUDA.
#include <ctxpar/core/error.hpp>

#include "engine_cuda.hpp"

namespace demo {

void check_cuda(const problem&) {
    ctxpar::raise(ctxpar::config_error(
        "backend", "this prefill_zigzag was built without CUDA; --backend cpu is what it has, or build it where nvcc "
                   "and NCCL are found"));
}
std::vector<record> run_cuda_configurations(threads&, const problem& all, const prompt_data&,
                                            const std::vector<configuration>&) {
    check_cuda(all);
    return {};
}

} // namespace demo
