// The CUDA backend, declared: what a C++ file that holds and calls a decoder needs. Its operations are defined in
// backend/cuda/operations.cuh; a CUDA file includes that (cuda.cuh) and instantiates the decoder, and other files say
// `extern template class ctxpar::decoder<...>`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/error.hpp>

namespace ctxpar::inline v0_1 {

// A call of the CUDA runtime failed. code() is the runtime's name of the error.
class CTXPAR_VISIBLE cuda_error : public error {
public:
    using error::error;
};

namespace cuda {

inline void check(cudaError_t result, const char* call) {
    if (result == cudaSuccess) return;
    raise(cuda_error(cudaGetErrorName(result), std::string(call) + " failed: " + cudaGetErrorString(result)));
}

struct launch_size {
    unsigned grid_x = 1;
    unsigned grid_y = 1;
    unsigned threads = 128;
    std::size_t shared_bytes = 0;
};

} // namespace cuda

// A handle: copies share a counter. Every operation is one launch on the caller's stream (attend two, where keys are
// split); none waits or allocates. P stays in fp32 (p_type), LSE is natural.
class cuda_backend {
public:
    using stream_type = cudaStream_t;
    using p_type = float;
    static constexpr lse_base attend_lse_base = lse_base::natural;
    static constexpr bool dense_partials = false;
    static constexpr bool writes_empty_rows = true;
    static constexpr bool host_memory = false;
    static constexpr bool takes_intervals = true;
    static constexpr bool splits_keys = true;

    cuda_backend() : launches_(std::make_shared<std::atomic<std::uint64_t>>(0)) {}

    std::int64_t threads() const { return 0; }
    std::int64_t attend_thread_floats(std::int64_t, std::int64_t) const { return 0; }
    std::uint64_t launches() const { return launches_->load(std::memory_order_relaxed); }

    void metadata(const metadata_args& args, stream_type stream);
    void prefill_metadata(const prefill_metadata_args& args, stream_type stream);
    void piece_metadata(const piece_metadata_args& args, stream_type stream);

    // Reads a status behind the work of its stream, for which the caller has waited.
    step_status read_status(const step_status* status) const {
        step_status found;
        cuda::check(cudaMemcpy(&found, status, sizeof(found), cudaMemcpyDeviceToHost), "cudaMemcpy");
        return found;
    }

    template <class E, class Kv>
    void append(const append_args<E, Kv>& args, stream_type stream);
    // config_error "width" for values of more than 512 elements.
    template <class Q, class Kv, class O>
    void attend(const attend_args<Q, Kv, O, lse_base::natural>& args, stream_type stream);
    template <class P, lse_base Base, lse_base OutBase>
    void scale(const merge_parts<P, Base>& lses, std::int64_t own_part, const head_view<const P>& own,
               const head_view<P>& scaled, const state_origin& lse_first, const head_view<lse<OutBase>>& lse_out,
               stream_type stream);
    // config_error "parts" for more parts than a launch can name, 64.
    template <class P, class Out, lse_base Base, lse_base OutBase>
    void merge(const merge_parts<P, Base>& parts, const head_view<Out>& out, const head_view<lse<OutBase>>& lse_out,
               stream_type stream);
    template <lse_base Base>
    void accumulate(const accumulate_args<Base>& args, stream_type stream);
    template <class Out, lse_base Base, lse_base OutBase>
    void finish(const finish_args<Out, Base, OutBase>& args, stream_type stream);
    template <class P, class Out>
    void sum_parts(const void* const* parts, std::int64_t part_count, const head_view<const P>& shape,
                   const head_view<Out>& out, stream_type stream);
    template <class P, lse_base Base>
    void pack(const head_view<const P>& out, const head_view<const lse<Base>>& lse_in, const head_view<P>& packed,
              stream_type stream);
    template <class From, class To>
    void copy(const head_view<const From>& from, std::int64_t first_head, const head_view<To>& to, stream_type stream);
    template <class T>
    void copy_rows(const head_view<const T>& from, const index_view& rows, const head_view<T>& to, stream_type stream);
    template <class T>
    void place_rows(const head_view<const T>& from, const index_view& rows, const head_view<T>& to, stream_type stream);
    template <class T>
    void clear_rows(const head_view<T>& to, stream_type stream);
    template <class From, class To>
    void copy_kv(const copy_kv_args<From, To>& args, stream_type stream);

private:
    template <class... Parameters, class... Arguments>
    void run(const cuda::launch_size& size, stream_type stream, void (*kernel)(Parameters...),
             const Arguments&... arguments);
    template <class T>
    void move(const head_view<const T>& from, std::int64_t first_head, const index_view& rows, bool places,
              std::int64_t count, const head_view<T>& to, stream_type stream);

    std::shared_ptr<std::atomic<std::uint64_t>> launches_;
};

static_assert(backend<cuda_backend>);

} // namespace ctxpar::inline v0_1
