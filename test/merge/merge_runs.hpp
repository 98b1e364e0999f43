// Runs a merge policy on ranks that are threads, over each kind of transport, from partial states that are given.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include <backend/plain_partials.hpp>

#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/comm/local.hpp>
#include <ctxpar/merge/merge.hpp>

namespace ctxpar_test {

using namespace ctxpar;

// A communicator whose ranks can not read each other's memory: bytes are moved, by the one it stands on.
class bytes_only {
public:
    using stream_type = host_stream;

    explicit bytes_only(local_communicator& under) : under_(under) {}

    int rank() const { return under_.rank(); }
    int size() const { return under_.size(); }
    check_level checks() const { return under_.checks(); }
    std::uint64_t bytes_sent() const { return under_.bytes_sent(); }
    void all_gather(const void* send, void* recv, std::size_t bytes, host_stream stream, collective_note note = {}) {
        under_.all_gather(send, recv, bytes, stream, note);
    }
    void all_to_all(const void* send, void* recv, std::size_t bytes, host_stream stream, collective_note note = {}) {
        under_.all_to_all(send, recv, bytes, stream, note);
    }
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, host_stream stream, collective_note note = {}) {
        under_.all_to_all(send, send_bytes, recv, recv_bytes, stream, note);
    }
    void agree(std::uint64_t digest, const char* what, host_stream stream) { under_.agree(digest, what, stream); }
    void check() { under_.check(); }
    void wait(host_stream stream) { under_.wait(stream); }

private:
    local_communicator& under_;
};

// One whose transport can add, too: all parts are gathered, and added in rank order.
class adding : public bytes_only {
public:
    using bytes_only::bytes_only;
    static constexpr bool reproducible = true;

    void reduce_scatter(const void* send, void* recv, std::size_t count, scalar_type type, host_stream stream,
                        collective_note note = {}) {
        const auto ranks = static_cast<std::size_t>(size());
        add(send, recv, count * ranks, count * static_cast<std::size_t>(rank()), count, type, stream, note);
    }
    void all_reduce(const void* send, void* recv, std::size_t count, scalar_type type, host_stream stream,
                    collective_note note = {}) {
        add(send, recv, count, 0, count, type, stream, note);
    }
    int reductions() const { return reductions_; }

private:
    // Elements [first, first + count) of the sum of `total` elements.
    void add(const void* send, void* recv, std::size_t total, std::size_t first, std::size_t count, scalar_type type,
             host_stream stream, collective_note note) {
        ++reductions_;
        if (type == scalar_type::f32) add_as<float>(send, recv, total, first, count, stream, note);
        if (type == scalar_type::bf16) add_as<bf16>(send, recv, total, first, count, stream, note);
        if (type == scalar_type::f16) add_as<f16>(send, recv, total, first, count, stream, note);
    }
    template <class T>
    void add_as(const void* send, void* recv, std::size_t total, std::size_t first, std::size_t count,
                host_stream stream, collective_note note) {
        std::vector<T> all(total * static_cast<std::size_t>(size()));
        all_gather(send, all.data(), total * sizeof(T), stream, note);
        for (std::size_t i = 0; i < count; ++i) {
            float sum = 0;
            for (std::size_t r = 0; r < static_cast<std::size_t>(size()); ++r)
                sum += static_cast<float>(all[r * total + first + i]);
            static_cast<T*>(recv)[i] = static_cast<T>(sum);
        }
    }

    int reductions_ = 0;
};

static_assert(communicator<bytes_only> && !peer_communicator<bytes_only> && !reducing_communicator<bytes_only>);
static_assert(reducing_communicator<adding> && !peer_communicator<adding>);

enum class transport { peers, bytes, adding };

struct run_options {
    transport over = transport::peers;
    bool sinks = false;
    bool dense_partials = false;
    bool lengths = true; // false: no part is empty by its length
    bool shares = false; // partial sums as the ranks have them; else added, as the caller would
};

// What one rank has after a merge: its heads of the output, and the heads whose merged LSE it knows.
template <class Out, lse_base OutBase>
struct rank_result {
    head_range heads, lse_heads;
    std::vector<Out> out;           // [rows][heads][width]
    std::vector<lse<OutBase>> lses; // [rows][lse_heads]
    std::uint64_t bytes_sent = 0;

    bool same_bits(const rank_result& other) const {
        return heads == other.heads && lse_heads == other.lse_heads && out.size() == other.out.size() &&
               std::memcmp(out.data(), other.out.data(), out.size() * sizeof(Out)) == 0 &&
               std::memcmp(lses.data(), other.lses.data(), lses.size() * sizeof(float)) == 0;
    }
};

template <class Out, lse_base OutBase>
using results = std::vector<rank_result<Out, OutBase>>;

template <class Out, lse_base OutBase>
bool same_bits(const results<Out, OutBase>& a, const results<Out, OutBase>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const auto& x, const auto& y) { return x.same_bits(y); });
}

template <class P>
exchange_shape shape_of(const plain::partials<P>& from, bool dense_partials = false) {
    exchange_shape shape;
    shape.ranks = shape.distinct_tp = from.count;
    shape.rows = from.rows;
    shape.gathered_heads = from.heads;
    shape.value_width = from.width;
    shape.partial_bytes = sizeof(P);
    shape.partial_type = scalar_type_of<P>;
    shape.dense_partials = dense_partials;
    return shape;
}

// Memory on a workspace boundary, full of NaN.
class nan_workspace {
public:
    explicit nan_workspace(std::size_t bytes) : memory_(bytes + workspace_alignment, std::byte{0xff}) {}

    void* data() {
        const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
        return memory_.data() + (workspace_alignment - at % workspace_alignment) % workspace_alignment;
    }

private:
    std::vector<std::byte> memory_;
};

template <class P, lse_base Base, class Merge>
std::size_t carved_bytes(const Merge& merge, const exchange_shape& shape) {
    carver counting(nullptr);
    merge.template carve<P, Base>(counting, shape);
    return counting.bytes();
}

// Writes one rank's partial states where the policy wants them.
template <class P, lse_base Base>
void write_partials(const plain::partials<P>& from, std::size_t rank, const partial_views<P, Base>& to) {
    for (std::int64_t row = 0; row < from.rows; ++row)
        for (std::int64_t head = 0; head < from.heads; ++head) {
            const std::size_t at = from.at(row, head);
            std::copy_n(from.out[rank].data() + at * static_cast<std::size_t>(from.width), from.width,
                        to.out.at(row, head));
            to.lse_out.at(row, head)->value = from.lse[rank][at];
        }
}

// One rank's side of a merge.
template <class Out, lse_base OutBase, lse_base Base, class Merge, class Comm, class P>
rank_result<Out, OutBase> merge_on_rank(const Merge& merge, Comm& comm, const plain::partials<P>& from,
                                        const run_options& options) {
    exchange_shape shape = shape_of(from, options.dense_partials);
    if (leaves_partial_sums(merge)) shape.placement = output_placement::partial_sums;
    nan_workspace workspace(carved_bytes<P, Base>(merge, shape));
    carver memory(workspace.data());
    const auto buffers = merge.template carve<P, Base>(memory, shape);
    write_partials(from, static_cast<std::size_t>(comm.rank()), merge.partials(shape, comm.rank(), buffers));

    const float nothing = std::numeric_limits<float>::quiet_NaN();
    rank_result<Out, OutBase> result;
    result.heads = merge.scatters_heads() ? scattered_heads(shape, comm.rank()) : head_range{0, from.heads};
    result.lse_heads = merge.knows_all_lse() ? head_range{0, from.heads} : result.heads;
    result.out.assign(static_cast<std::size_t>(from.rows * result.heads.count() * from.width), Out(nothing));
    result.lses.assign(static_cast<std::size_t>(from.rows * result.lse_heads.count()), lse<OutBase>{nothing});
    merge_call<Out, OutBase> call;
    call.shape = shape;
    call.rank = comm.rank();
    call.live = options.lengths ? from.live.data() : nullptr;
    call.live_stride = from.rows;
    call.sinks = options.sinks ? from.sinks.data() : nullptr;
    call.first_head = result.heads.first;
    call.out = dense_view(result.out.data(), from.rows, result.heads.count(), from.width);
    call.lse_first_head = result.lse_heads.first;
    call.lse_out = dense_view(result.lses.data(), from.rows, result.lse_heads.count(), 1);
    cpu_backend backend;
    merge.run(comm, backend, call, buffers, {});
    result.bytes_sent = comm.bytes_sent();
    return result;
}

// Gives every rank the sum of all ranks' outputs.
template <class Out, lse_base OutBase>
void add_shares(results<Out, OutBase>& all) {
    for (std::size_t at = 0; at < all[0].out.size(); ++at) {
        double sum = 0;
        for (const auto& rank : all) sum += static_cast<double>(static_cast<float>(rank.out[at]));
        for (auto& rank : all) rank.out[at] = static_cast<Out>(static_cast<float>(sum));
    }
}

// All ranks' sides. Transports that add are there for fp32 partials that keep their base: elsewhere they would only be
// compiled once more.
template <class Out, lse_base OutBase, lse_base Base, class Merge, class P>
results<Out, OutBase> run_merge(const Merge& merge, const plain::partials<P>& from, const run_options& options) {
    results<Out, OutBase> all(static_cast<std::size_t>(from.count));
    const auto run = [&](auto& comm) {
        all[static_cast<std::size_t>(comm.rank())] = merge_on_rank<Out, OutBase, Base>(merge, comm, from, options);
    };
    run_local_ranks(static_cast<int>(from.count), {std::chrono::seconds(60), check_level::collective},
                    [&](local_communicator& comm) {
                        if (options.over == transport::peers) {
                            run(comm);
                        } else if (options.over == transport::bytes) {
                            bytes_only moved(comm);
                            run(moved);
                        } else if constexpr (std::is_same_v<P, float> && Base == OutBase) {
                            adding added(comm);
                            run(added);
                        }
                    });
    if (leaves_partial_sums(merge) && !options.shares) add_shares(all);
    return all;
}

} // namespace ctxpar_test
