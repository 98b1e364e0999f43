// The CUDA backend, declared: what a C++ file that holds and calls a decoder needs. Its operations are defined in
// backend/cuda/operations.cuh; a CUDA file includes that (cuda.cuh) and instantiates the decoder, and other files say
// `extern template class ctxpar::decoder<...>`.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include <cuda_runtime_api.h>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/core/numeric.hpp>

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

// What decides how many blocks are launched.
struct device_facts {
    int capability = 0; // 10 * major + minor; 0: nothing is known
    int processors = 0;
};

template <class Q, class Kv>
struct attend_call;
struct move_args;

// A point in the work of a stream, without a time, of the device that is current when it is made.
class event {
public:
    event() { check(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
    event(const event&) = delete;
    event& operator=(const event&) = delete;
    ~event() { cudaEventDestroy(handle_); }
    cudaEvent_t get() const { return handle_; }

private:
    cudaEvent_t handle_ = nullptr;
};

} // namespace cuda

// How attention keeps probabilities on their way to the values. The LSE is always that of unrounded ones.
//   exact    as fp32 numbers: for matrix units each is the sum of two or three 16-bit ones. Costs nothing where reading
//            keys and values takes the time (decode of GQA), and up to twice the time where multiplying does.
//   rounded  to 16 bits, bf16 for bf16 and 8-bit caches, f16 for f16 ones, as most attention kernels do.
enum class probabilities : std::uint8_t { exact, rounded };

// A handle: copies share a counter. Every operation is one launch on the caller's stream (attend two, where keys are
// split); none waits or allocates. LSE is natural.
//
// Attention uses matrix units and asynchronous copies where queries are bf16 or f16, the cache has the same type or an
// 8-bit one, and every row of queries, keys and values begins at a multiple of 16 bytes and is one long (pages that are
// given by pointers: the pointers too are such multiples); values up to 256 elements, or MLA with up to 576 and 512.
// Everything else is right too, but slower by far.
template <probabilities Kept>
class basic_cuda_backend {
public:
    using stream_type = cudaStream_t;
    using event_type = cuda::event;
    using p_type = std::conditional_t<Kept == probabilities::exact, float, bf16>; // or better, for f16
    static constexpr lse_base attend_lse_base = lse_base::natural;
    static constexpr bool dense_partials = false;
    static constexpr bool writes_empty_rows = true;
    static constexpr bool host_memory = false;
    static constexpr bool takes_intervals = true;
    static constexpr bool splits_keys = true;

    basic_cuda_backend() : state_(std::make_shared<state>()) {}

    std::int64_t threads() const { return 0; }
    std::int64_t attend_thread_floats(std::int64_t, std::int64_t) const { return 0; }
    // How to split the keys of requests on the device of the calling thread. The first call of this or of attend asks
    // which device that is; the backend stays with it. Where there is none it is the host's rule.
    split_rule splits(const split_work& work);
    std::uint64_t launches() const { return state_->launches.load(std::memory_order_relaxed); }

    void record(event_type& event, stream_type stream) {
        cuda::check(cudaEventRecord(event.get(), stream), "cudaEventRecord");
    }
    void wait(const event_type& event, stream_type stream) {
        cuda::check(cudaStreamWaitEvent(stream, event.get(), 0), "cudaStreamWaitEvent");
    }

    void metadata(const metadata_args& args, stream_type stream);
    // Templates, so that only a program that prefills compiles their kernels.
    template <std::same_as<prefill_metadata_args> Args = prefill_metadata_args>
    void prefill_metadata(const Args& args, stream_type stream);
    template <std::same_as<piece_metadata_args> Args = piece_metadata_args>
    void piece_metadata(const Args& args, stream_type stream);
    template <std::same_as<reshard_args> Args = reshard_args> // of a program that moves caches between layouts
    void reshard_metadata(const Args& args, stream_type stream);

    // Reads a status behind the work of its stream, for which the caller has waited.
    step_status read_status(const step_status* status) const {
        step_status found;
        cuda::check(cudaMemcpy(&found, status, sizeof(found), cudaMemcpyDeviceToHost), "cudaMemcpy");
        return found;
    }
    reshard_status read_status(const reshard_status* status) const {
        reshard_status found;
        cuda::check(cudaMemcpy(&found, status, sizeof(found), cudaMemcpyDeviceToHost), "cudaMemcpy");
        return found;
    }

    template <class E, class Kv>
    void append(const append_args<E, Kv>& args, stream_type stream);
    // config_error "width" for values of more than 512 elements.
    template <class Q, class Kv, class O>
    void attend(const attend_args<Q, Kv, O, lse_base::natural>& args, stream_type stream);
    template <class Q, class Kv, class O, std::int64_t QueryWidth, std::int64_t ValueWidth>
    void attend(const sized_attend_args<Q, Kv, O, lse_base::natural, QueryWidth, ValueWidth>& args, stream_type stream);
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
    template <class... Arguments>
    void run(const cuda::launch_size& size, stream_type stream, void (*kernel)(Arguments...),
             const std::type_identity_t<Arguments>&... arguments);
    void move(const cuda::move_args& args, stream_type stream);

    // Of an attention that writes any type: widths that are known when the program is compiled, or 0.
    template <std::int64_t QueryWidth, std::int64_t ValueWidth, class Q, class Kv>
    void attend(const cuda::attend_call<Q, Kv>& call, stream_type stream);
    // Whether matrix units did it.
    template <int KeyWidth, int ValueWidth, bool SharedValues, class Q, class Kv>
    bool attend_tiles(const cuda::attend_call<Q, Kv>& call, stream_type stream);
    template <class Tiles, class Q, class Kv>
    bool launch_tiles(const cuda::attend_call<Q, Kv>& call, stream_type stream);
    template <int Columns, class Q, class Kv>
    void attend_plain(const cuda::attend_call<Q, Kv>& call, stream_type stream);
    cuda::device_facts device();

    struct state {
        std::atomic<std::uint64_t> launches{0};
        std::atomic<cuda::device_facts> device; // what the first that asked was told
    };
    std::shared_ptr<state> state_;
};

using cuda_backend = basic_cuda_backend<probabilities::exact>;
using rounding_cuda_backend = basic_cuda_backend<probabilities::rounded>;

static_assert(event_backend<cuda_backend> && event_backend<rounding_cuda_backend>);
static_assert(resharding_backend<cuda_backend> && resharding_backend<rounding_cuda_backend>);

} // namespace ctxpar::inline v0_1
