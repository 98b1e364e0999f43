// A decoder and a prefiller on the CUDA backend compile for a device, without a warning.
#include <cstddef>
#include <cstdint>
#include <span>

#include <ctxpar/cuda.cuh>

using namespace ctxpar;

// A group of one rank: there is no one to talk to.
struct alone {
    using stream_type = cudaStream_t;
    int rank() const { return 0; }
    int size() const { return 1; }
    void all_gather(const void*, void*, std::size_t, cudaStream_t, collective_note = {}) {}
    void all_to_all(const void*, void*, std::size_t, cudaStream_t, collective_note = {}) {}
    void all_to_all(const void*, std::span<const std::size_t>, void*, std::span<const std::size_t>, cudaStream_t,
                    collective_note = {}) {}
    void agree(std::uint64_t, const char*, cudaStream_t) {}
    void check() {}
    void wait(cudaStream_t) {}
    std::uint64_t bytes_sent() const { return 0; }
    check_level checks() const { return check_level::off; }
};

using chosen = policy<gqa<bf16, 128, 128, fp8_e4m3>, interleave<16>, merge::a2a>;
template class ctxpar::decoder<chosen, cuda_backend, alone>;
template class ctxpar::prefiller<chosen, cuda_backend, alone>;

void decode(decoder<chosen, cuda_backend, alone>& used, const decode_step& step, const head_view<const bf16>& q,
            const kv_view<const fp8_e4m3>& cache, const head_view<bf16>& out) {
    used.decode(step, q, cache, out, layer_options<>{}, nullptr);
}
void attend(prefiller<chosen, cuda_backend, alone>& used, const prefill_step& step, const head_view<const bf16>& q,
            const kv_view<const fp8_e4m3>& cache, const head_view<bf16>& out) {
    used.attend(step, q, cache, out, layer_options<>{}, nullptr);
}
