// Stands in for the engine with GPUs where the program is built without CUDA.
#include <ctxpar/core/error.hpp>

#include "engine_cuda.hpp"

namespace demo {
namespace {

[[noreturn]] void refuse() {
    ctxpar::raise(ctxpar::config_error(
        "backend", "this decode_1m was built without CUDA; --backend cpu is what it has, or build it where nvcc and "
                   "NCCL are found"));
}

} // namespace

double free_device_memory(const problem&) {
    refuse();
}
void check_cuda(const problem&) {
    refuse();
}
std::unique_ptr<engine> make_cuda_engine(const problem&, const kv_data&) {
    refuse();
}

} // namespace demo
