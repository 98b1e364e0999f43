#include "engine_cuda.hpp"

#include "common/device_groups.hpp"

namespace demo {
namespace {

void require_device() {
    ctxpar::require(device_count() > 0, "backend", "there is no GPU here; --backend cpu needs none");
}

} // namespace

double free_device_memory(const problem& all) {
    require_device();
    const auto ranks = static_cast<int>(all.ranks().world_size());
    double bytes = 0.0;
    for (int device = 0; device < device_count() && device < ranks; ++device) {
        std::size_t free = 0;
        std::size_t total = 0;
        ctxpar::cuda::check(cudaSetDevice(device), "cudaSetDevice");
        ctxpar::cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
        bytes += static_cast<double>(free);
    }
    return bytes;
}

void check_cuda(const problem& all) {
    require_device();
    ctxpar::require(all.kv_type == ctxpar::scalar_type::bf16, "backend", "on GPUs this example has a bf16 cache, not ",
                    name_of(all.kv_type));
    ctxpar::require(all.is_mla() || (all.query_width == 128 && all.value_width == 128), "backend",
                    "on GPUs this example has heads of 128 elements, not ", all.query_width);
    ctxpar::require(all.injected == fault::none, "backend", "faults are injected with --backend cpu");
}

std::unique_ptr<engine> make_cuda_engine(const problem& all, const kv_data& data) {
    check_cuda(all);
    return all.is_mla() ? make_cuda_mla_engine(all, data) : make_cuda_gqa_engine(all, data);
}

} // namespace demo
