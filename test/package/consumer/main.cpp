// A user's first program: asks the library a question, and hands it a mistake. Where it was built with components it
// also asks the libraries that they bring.
#include <cstdio>

#include <ctxpar/ctxpar.hpp>

#ifdef CONSUMER_USES_cuda
#include <ctxpar/backend/cuda.hpp>
#endif
#ifdef CONSUMER_USES_nccl
#include <ctxpar/comm/nccl.hpp>
#endif
#ifdef CONSUMER_USES_mpi
#include <ctxpar/comm/mpi.hpp>
#endif

namespace {

bool components_answer() {
#ifdef CONSUMER_USES_cuda
    int runtime = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) return false;
    std::printf("component cuda: CUDA runtime %d, %llu launches\n", runtime,
                static_cast<unsigned long long>(ctxpar::cuda_backend{}.launches()));
#endif
#ifdef CONSUMER_USES_nccl
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) return false;
    std::printf("component nccl: NCCL %d, communicators of %zu bytes\n", version, sizeof(ctxpar::nccl_communicator));
#endif
#ifdef CONSUMER_USES_mpi
    int standard = 0, of_standard = 0;
    if (MPI_Get_version(&standard, &of_standard) != MPI_SUCCESS) return false;
    std::printf("component mpi: MPI %d.%d, communicators of %zu bytes\n", standard, of_standard,
                sizeof(ctxpar::mpi_communicator));
#endif
    return true;
}

} // namespace

int main() {
    const ctxpar::ownership law = ctxpar::make_ownership(4, 16);
    std::printf("ctxpar %d.%d.%d: rank 1 of 4 holds %lld of 100 tokens\n", CTXPAR_VERSION_MAJOR, CTXPAR_VERSION_MINOR,
                CTXPAR_VERSION_PATCH, static_cast<long long>(law.local_len(100, 1)));
    if (law.local_len(100, 1) != 32 || !components_answer()) return 1;
    try {
        ctxpar::make_ownership(4, 0);
    } catch (const ctxpar::config_error& refused) {
        std::printf("%s\n", refused.what());
        return refused.code() == "interleave" ? 0 : 1;
    }
    return 1;
}
