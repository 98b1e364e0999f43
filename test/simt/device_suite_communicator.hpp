// A communicator of an emulated device whose kind is chosen when it is made: over NCCL, or of ranks that share the
// process, reading each other's memory or not. So the exactness suites run over all of them and are compiled once.
//
// What kind of communicator it has, a merge asks its type, and only in the functions of merge/reduce.hpp. Those have an
// overload here, found by the type of their argument, which calls them with the communicator that is behind this one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include <ctxpar/comm/local_cuda.hpp>
#include <ctxpar/comm/nccl.hpp>
#include <ctxpar/merge/reduce.hpp>

namespace ctxpar_test {

using namespace ctxpar;

struct handle_end {
    void operator()(ncclComm_t handle) const { ncclCommDestroy(handle); }
};

// A communicator that destroys its handle, as the groups of a test do.
class owning_nccl_communicator : public nccl_communicator {
public:
    owning_nccl_communicator(ncclComm_t handle, const nccl_options& options)
        : nccl_communicator(handle, options), handle_(handle) {}

    std::optional<owning_nccl_communicator> split_off(int color, int key) {
        const ncclComm_t part = split(color, key);
        if (part == nullptr) return std::nullopt;
        return std::optional<owning_nccl_communicator>(std::in_place, part, nccl_options{.checks = checks()});
    }

private:
    std::unique_ptr<ncclComm, handle_end> handle_;
};

// How parts reach the rank that merges them: in messages of NCCL, which adds them where it can; read where they lie in
// the memory of a peer of this process; copied from there.
enum class transport : std::uint8_t { nccl, in_place, copied };
inline constexpr int num_transports = 3;

class any_communicator {
public:
    using stream_type = cudaStream_t;

    explicit any_communicator(owning_nccl_communicator of);
    any_communicator(local_cuda_communicator of, bool reads_in_place);
    any_communicator(any_communicator&& other) noexcept;
    any_communicator& operator=(any_communicator&& other) noexcept;
    ~any_communicator();

    int rank() const;
    int size() const;
    check_level checks() const;
    std::uint64_t bytes_sent() const;
    void all_gather(const void* send, void* recv, std::size_t bytes, cudaStream_t stream, collective_note note = {});
    void all_to_all(const void* send, void* recv, std::size_t bytes, cudaStream_t stream, collective_note note = {});
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, cudaStream_t stream, collective_note note = {});
    void agree(std::uint64_t digest, const char* what, cudaStream_t stream);
    void check();
    void wait(cudaStream_t stream);
    std::optional<any_communicator> split(int color, int key);

    // What is behind it; null where it is something else.
    nccl_communicator* nccl() { return std::get_if<owning_nccl_communicator>(&of_); }
    local_cuda_communicator* in_place() {
        return reads_in_place_ ? std::get_if<local_cuda_communicator>(&of_) : nullptr;
    }

private:
    std::variant<owning_nccl_communicator, local_cuda_communicator> of_;
    bool reads_in_place_ = false;
};

static_assert(communicator<any_communicator>);
static_assert(!peer_communicator<any_communicator> && !reducing_communicator<any_communicator>);

part_pointers exchange_parts(any_communicator& kv, const void* send, void* recv, std::size_t bytes_per_peer,
                             cudaStream_t stream, const collective_note& note);
part_pointers gather_parts(any_communicator& kv, void* recv, std::size_t bytes, cudaStream_t stream,
                           const collective_note& note);
void end_parts(any_communicator& kv, cudaStream_t stream);

// By NCCL's sums; else by the three above.
template <class Backend, class P, class Out>
void reduce_scatter(any_communicator& kv, Backend& backend, const reduction<P>& data, head_view<const P> shape,
                    const head_view<Out>& out, cudaStream_t stream) {
    if (nccl_communicator* const of = kv.nccl()) {
        ctxpar::reduce_scatter(*of, backend, data, shape, out, stream);
    } else {
        ctxpar::reduce_scatter(kv, backend, data, shape, out, stream);
    }
}

template <class Backend, class P>
void all_reduce(any_communicator& kv, Backend& backend, const reduction<P>& data, P* sums, std::int64_t total,
                cudaStream_t stream) {
    if (nccl_communicator* const of = kv.nccl()) {
        ctxpar::all_reduce(*of, backend, data, sums, total, stream);
    } else {
        ctxpar::all_reduce(kv, backend, data, sums, total, stream);
    }
}

} // namespace ctxpar_test
