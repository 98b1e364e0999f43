// What a step costs the host: the time in which a rank gives the work of a step to the runtime and to NCCL, where both
// are the emulated ones and no kernel runs. What a real runtime takes for a launch comes on top.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ctxpar/comm/nccl.hpp>
#include <ctxpar/cuda.cuh>

#include "device.hpp"

namespace host_time {

using namespace ctxpar;

inline constexpr double most_layer_us = 15.0; // of append and decode of one layer, as is wished
inline constexpr double most_plan_us = 150.0; // of a plan of 128 requests

// Microseconds: of each kind, the least of many. Other work of the machine can only make it more.
struct times {
    double layer = 0;       // append and decode, merged by A2A
    double plan = 0;        // from lengths and tables that the host reads, all of which are validated
    double device_plan = 0; // from lengths on the device
};

// One of the ranks of a group, with everything a decode step needs.
class one_rank {
public:
    static constexpr int ranks = 8;
    static constexpr std::int64_t requests = 128;
    using policy_type = policy<gqa<bf16, 128>, interleave<>, merge::a2a>;

    one_rank(ncclComm_t handle, int rank)
        : rank_(rank), comm_(handle, {.checks = check_level::off}), used_({&comm_}, shape_of(), policy_of()),
          memory_(used_.workspace_bytes()), lengths_(requests, longest), table_(requests * columns),
          q_(requests * 8 * width), kv_(requests * width), pool_(pool_blocks * block_size * width),
          out_(requests * 8 * width) {
        cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        for (std::size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<std::int32_t>(i) % pool_blocks;
        batch_.requests = requests;
        batch_.lengths = index_of(lengths_.data());
        batch_.table = table_2d(table_.data(), requests, columns, block_size);
    }

    decode_step plan() { return used_.plan(batch_, memory_, stream_); }
    decode_step plan_on_device() { return used_.plan(batch_, {requests, longest}, memory_, stream_); }
    void layer(const decode_step& step) {
        const kv_view<bf16> cache = nhd_kv(pool_.data(), pool_.data(), pool_blocks, block_size, 1, width, width);
        const auto rows = dense_view(static_cast<const bf16*>(kv_.data()), requests, 1, width);
        used_.append(step, rows, rows, cache, stream_);
        used_.decode(step, dense_view(static_cast<const bf16*>(q_.data()), requests, 8, width),
                     kv_view<const bf16>(cache), dense_view(out_.data(), requests, 8, width), layer_options<>{},
                     stream_);
    }
    void use() const { cudaSetDevice(rank_); }

private:
    static constexpr std::int64_t width = 128;
    static constexpr std::int64_t longest = 32768;
    static constexpr std::int64_t block_size = 16;
    static constexpr std::int64_t columns = longest / ranks / block_size;
    static constexpr std::int64_t pool_blocks = 64; // the memory is never looked at

    static decode_shape shape_of() {
        decode_shape shape;
        shape.sizes.tp = shape.sizes.dcp = ranks;
        shape.q_heads = 8 * ranks;
        shape.max_requests = shape.max_rows = requests;
        shape.longest = longest;
        shape.pool_blocks = pool_blocks;
        shape.output = scalar_type::f32;
        return shape;
    }
    static policy_type policy_of() {
        policy_type chosen;
        chosen.interleaving.tokens = block_size;
        return chosen;
    }

    int rank_;
    cudaStream_t stream_ = nullptr;
    nccl_communicator comm_;
    decoder<policy_type, cuda_backend, nccl_communicator> used_;
    host_workspace memory_;
    std::vector<std::int64_t> lengths_;
    std::vector<std::int32_t> table_;
    std::vector<bf16> q_, kv_, pool_;
    std::vector<float> out_;
    decode_batch batch_;
};

// Calls made in a row, their least time in microseconds over some rows.
template <class Call>
double least_us(int rows, int calls, const Call& call) {
    using clock = std::chrono::steady_clock;
    double least = 1e9;
    for (int row = 0; row < rows; ++row) {
        const clock::time_point start = clock::now();
        for (int i = 0; i < calls; ++i) call();
        const std::chrono::duration<double, std::micro> took = clock::now() - start;
        least = std::min(least, took.count() / calls);
    }
    return least;
}

inline times measured() {
    const simt::device device({.devices = one_rank::ranks, .runs_kernels = false});
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    std::vector<ncclComm_t> handles(one_rank::ranks);
    std::vector<std::unique_ptr<one_rank>> ranks;
    for (int rank = 0; rank < one_rank::ranks; ++rank) {
        cudaSetDevice(rank);
        ncclCommInitRank(&handles[static_cast<std::size_t>(rank)], one_rank::ranks, id, rank);
        ranks.push_back(std::make_unique<one_rank>(handles[static_cast<std::size_t>(rank)], rank));
    }
    times found{1e9, 1e9, 1e9};
    for (const auto& rank : ranks) {
        rank->use();
        found.plan = std::min(found.plan, least_us(5, 4, [&] { rank->plan(); }));
        found.device_plan = std::min(found.device_plan, least_us(5, 4, [&] { rank->plan_on_device(); }));
        const decode_step step = rank->plan();
        found.layer = std::min(found.layer, least_us(8, 10, [&] { rank->layer(step); }));
    }
    ranks.clear(); // what was given to streams goes with the device, undone
    for (const ncclComm_t handle : handles) ncclCommDestroy(handle);
    return found;
}

} // namespace host_time
