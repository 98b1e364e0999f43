// A captured decode step: plan, append and decode of one step in one graph, which is replayed while lengths, tables and
// inputs change in place on the device. The host gives replays and copies to streams and waits only at the end.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include <ctxpar/comm/nccl.hpp>
#include <ctxpar/cuda.cuh>

#include "changing_requests.hpp"
#include "nccl_world.hpp"

using namespace ctxpar;
using namespace changing_requests;

namespace {

using policy_type = policy<gqa<bf16, width>, interleave<>, merge::dynamic>;
#if defined(__SANITIZE_ADDRESS__)
constexpr int many_replays = 20; // slower
#else
constexpr int many_replays = 100;
#endif

// Memory of the current device.
template <class T>
class device_array {
public:
    explicit device_array(std::int64_t count) {
        void* memory = nullptr;
        cuda::check(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc");
        data_ = static_cast<T*>(memory);
        std::memset(memory, 0xff, static_cast<std::size_t>(count) * sizeof(T));
    }
    device_array(const device_array&) = delete;
    device_array& operator=(const device_array&) = delete;
    ~device_array() { cudaFree(data_); }
    T* data() const { return data_; }

    void set(const std::vector<T>& values, cudaStream_t stream) {
        cuda::check(cudaMemcpyAsync(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream),
                    "cudaMemcpyAsync");
    }

private:
    T* data_ = nullptr;
};

head_view<const bf16> rows_in(const device_array<bf16>& memory, std::int64_t rows, std::int64_t heads) {
    return dense_view(static_cast<const bf16*>(memory.data()), rows, heads, width);
}

std::vector<bf16> narrow(const floats& values) {
    std::vector<bf16> result;
    for (const float value : values)
        result.push_back(
            bf16::from_bits(static_cast<std::uint16_t>(ctxpar_test::bits_of(ctxpar_test::format_bf16, value))));
    return result;
}

struct captured_step {
    cudaGraphExec_t exec = nullptr;
    decode_step step;
};

class rank_of_graphs {
public:
    rank_of_graphs(simt_test::nccl_world& world, int rank, merge_kind kind)
        : rank_(rank), q_heads_(world.size() * heads_per_rank), stream_(world.stream(rank)), comm_(world.comm(rank)),
          used_({&comm_}, shape_of(world.size()), policy_of(kind)),
          workspace_(static_cast<std::int64_t>(used_.workspace_bytes())) {}

    captured_step capture(std::int64_t requests) {
        cudaSetDevice(rank_);
        decode_batch batch;
        batch.requests = requests;
        batch.lengths = index_of(lengths_.data());
        batch.query_rows = index_of(counts_.data());
        batch.table = table_2d(table_.data(), requests, columns, block_size);
        const std::int64_t rows = rows_of(requests);
        const kv_view<bf16> cache = nhd_kv(pool_k_.data(), pool_v_.data(), pool_blocks, block_size, 1, width, width);
        captured_step made;
        cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
        made.step = used_.plan(batch, {rows, longest}, {workspace_.data(), used_.workspace_bytes()}, stream_);
        used_.append(made.step, rows_in(k_, rows, 1), rows_in(v_, rows, 1), cache, stream_);
        used_.decode(made.step, rows_in(q_, rows, heads_per_rank), kv_view<const bf16>(cache),
                     dense_view(out_.data(), rows, heads_per_rank, width), layer_options<>{}, stream_);
        cudaGraph_t graph = nullptr;
        cuda::check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
        cuda::check(cudaGraphInstantiate(&made.exec, graph, 0), "cudaGraphInstantiate");
        cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
        return made;
    }

    // Changes what the graph reads, in place, replays it, and keeps what it writes.
    void replay(const captured_step& graph, const step_state& now) {
        lengths_.set(now.lengths, stream_);
        counts_.set(now.counts, stream_);
        table_.set(now.tables[static_cast<std::size_t>(rank_)], stream_);
        k_.set(narrow(now.k), stream_);
        v_.set(narrow(now.v), stream_);
        floats own; // [rows][own heads][width]
        const std::int64_t per_row = heads_per_rank * width;
        for (std::int64_t row = 0; row < graph.step.rows; ++row) {
            const auto from = now.q.begin() + row * q_heads_ * width + rank_ * per_row;
            own.insert(own.end(), from, from + per_row);
        }
        q_.set(narrow(own), stream_);
        cuda::check(cudaGraphLaunch(graph.exec, stream_), "cudaGraphLaunch");
        floats& kept = outs.emplace_back(own.size());
        cuda::check(
            cudaMemcpyAsync(kept.data(), out_.data(), kept.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync");
    }

    step_status status(const captured_step& graph) {
        cudaSetDevice(rank_);
        return used_.check(graph.step);
    }

    std::deque<floats> outs; // of every replay: [rows][own heads][width]

private:
    static decode_shape shape_of(int ranks) {
        decode_shape shape;
        shape.sizes.tp = shape.sizes.dcp = ranks;
        shape.q_heads = ranks * heads_per_rank;
        shape.max_requests = max_requests;
        shape.max_rows = rows_of(max_requests);
        shape.longest = longest;
        shape.pool_blocks = pool_blocks;
        shape.output = scalar_type::f32;
        shape.max_splits = ranks == 2 ? 2 : 1; // with a kernel that combines them, and without
        return shape;
    }
    static policy_type policy_of(merge_kind kind) {
        policy_type chosen;
        chosen.interleaving.tokens = interleaved;
        chosen.merging.kind = kind;
        return chosen;
    }

    int rank_;
    std::int64_t q_heads_;
    cudaStream_t stream_;
    nccl_communicator comm_;
    decoder<policy_type, cuda_backend, nccl_communicator> used_;
    device_array<std::byte> workspace_;
    device_array<std::int64_t> lengths_{max_requests};
    device_array<std::int32_t> counts_{max_requests}, table_{max_requests * columns};
    device_array<bf16> q_{rows_of(max_requests) * heads_per_rank * width}, k_{rows_of(max_requests) * width},
        v_{rows_of(max_requests) * width};
    device_array<bf16> pool_k_{pool_blocks * block_size * width}, pool_v_{pool_blocks * block_size * width};
    device_array<float> out_{rows_of(max_requests) * heads_per_rank * width};
};

// All ranks, driven by one thread.
class ranks_of_graphs {
public:
    ranks_of_graphs(int ranks, std::uint64_t seed, merge_kind kind)
        : device_({.seed = seed, .devices = ranks}), world_(ranks), engine_(ranks, seed) {
        cuda::emulated_order() = {simt::thread_order::any, seed};
        for (int rank = 0; rank < ranks; ++rank) {
            cudaSetDevice(rank);
            ranks_.push_back(std::make_unique<rank_of_graphs>(world_, rank, kind));
        }
        before_ = simt::device_counters();
    }

    // A graph for `requests` requests, on every rank; returns its number.
    std::size_t capture(std::int64_t requests) {
        auto& graphs = graphs_.emplace_back();
        for (const auto& each : ranks_) graphs.push_back(each->capture(requests));
        sizes_.push_back(requests);
        return graphs_.size() - 1;
    }

    void replay(std::size_t graph) { replay(graph, next(graph)); }
    void replay(std::size_t graph, const step_state& now) {
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank]->replay(graphs_[graph][rank], now);
        expected_.push_back(now.expected);
    }
    step_state next(std::size_t graph) { return engine_.next(sizes_[graph]); }
    step_status status(std::size_t graph, std::size_t rank) { return ranks_[rank]->status(graphs_[graph][rank]); }

    // Whether nothing was allocated and no host has waited since all was set up.
    bool nothing_waits() const {
        const auto now = simt::device_counters();
        return now.allocations == before_.allocations && now.synchronisations == before_.synchronisations;
    }

    // Waits; the largest relative error of any replay.
    double error() {
        world_.finish();
        double largest = 0;
        for (std::size_t i = 0; i < expected_.size(); ++i) largest = std::max(largest, error_of(i));
        return largest;
    }

private:
    double error_of(std::size_t replay) const {
        const std::vector<double>& due = expected_[replay];
        const std::size_t per_row = heads_per_rank * width;
        double wrong = 0, all = 0;
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
            const floats& got = ranks_[rank]->outs[replay];
            for (std::size_t i = 0; i < got.size(); ++i) {
                const std::size_t row = i / per_row;
                const double right = due[(row * ranks_.size() + rank) * per_row + i % per_row];
                wrong += (right - double{got[i]}) * (right - double{got[i]});
                all += right * right;
            }
        }
        return all > 0 ? std::sqrt(wrong / all) : std::sqrt(wrong);
    }

    simt::device device_;
    simt_test::nccl_world world_;
    engine engine_;
    std::vector<std::unique_ptr<rank_of_graphs>> ranks_;
    std::vector<std::vector<captured_step>> graphs_; // of each size: of each rank
    std::vector<std::int64_t> sizes_;
    std::vector<std::vector<double>> expected_;
    simt::device_counts before_;
};

} // namespace

TEST_CASE("a captured step replays a hundred times while lengths, tables and inputs change in place") {
    for (const int ranks : {1, 3}) {
        ranks_of_graphs all(ranks, static_cast<std::uint64_t>(ranks), merge_kind::a2a);
        const std::size_t graph = all.capture(3);
        const simt::device_counts captured = simt::device_counters();
        const int replays = ranks > 1 ? many_replays : many_replays / 4;
        for (int step = 0; step < replays; ++step) all.replay(graph);
        CHECK(all.nothing_waits());
        CHECK(simt::device_counters().launches == captured.launches);
        CHECK(simt::device_counters().graph_launches == static_cast<std::uint64_t>(replays * ranks));
        CHECK(all.error() <= 2e-6);
    }
}

TEST_CASE("graphs of eight batch sizes share one workspace and replay in any order") {
    std::mt19937 random(7);
    ranks_of_graphs all(2, 11, merge_kind::ag_rs);
    for (std::int64_t requests = 1; requests <= max_requests; ++requests) all.capture(requests);
    for (int step = 0; step < many_replays / 4; ++step) all.replay(random() % max_requests);
    CHECK(all.nothing_waits());
    CHECK(all.error() <= 2e-6);
}

TEST_CASE("a replay takes a bad length for an empty request, says so, and the next one is right again") {
    ranks_of_graphs all(3, 5, merge_kind::a2a);
    const std::size_t graph = all.capture(3);
    for (int step = 0; step < 3; ++step) all.replay(graph);
    const step_state right = all.next(graph);
    step_state bad = right;
    bad.lengths[1] = longest + 1;
    const std::int64_t per_row = 3 * heads_per_rank * width;
    std::fill_n(bad.expected.begin() + bad.counts[0] * per_row, bad.counts[1] * per_row, 0.0);
    all.replay(graph, bad);
    CHECK(all.error() <= 2e-6);
    for (std::size_t rank = 0; rank < 3; ++rank) {
        CHECK(all.status(graph, rank).bad_entries == 1);
        CHECK(all.status(graph, rank).first_request == 1);
        CHECK(all.status(graph, rank).first_fault == entry_fault::length);
    }
    all.replay(graph, right);
    CHECK(all.error() <= 2e-6);
    CHECK(all.status(graph, 0).bad_entries == 0);
}
