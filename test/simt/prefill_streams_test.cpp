// A prefill that brings context on a second stream: the same bits as on one stream, exact, for every order that streams
// and events allow; nothing waits, and it can be captured. Steps and layers follow one another without a wait, so that
// whatever an event does not order is overwritten or read too early under some seed.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <ctxpar/comm/nccl.hpp>
#include <ctxpar/cuda.cuh>

#include "../prefill/small_world.hpp"
#include "nccl_world.hpp"

using namespace ctxpar;
using small_world::number;
using small_world::what;

namespace {

constexpr std::int64_t key_width = small_world::key_width;
constexpr std::int64_t value_width = small_world::value_width;
constexpr std::int64_t num_ranks = 2;
constexpr std::int64_t heads = 2; // of queries and of keys
constexpr std::int64_t most_rows = 8;
constexpr int num_layers = 2;
constexpr int num_steps = 2;
using floats = std::vector<float>;
#if defined(__SANITIZE_ADDRESS__) // slower
constexpr std::uint64_t num_seeds = 2;
#else
constexpr std::uint64_t num_seeds = 8;
#endif

// Two chunks of a prefill each: the second has the tokens of the first in its context, all of it in several pieces.
constexpr std::int64_t first_tokens[] = {38, 9, 0}; // cached before
constexpr std::int64_t new_tokens[num_steps][3] = {{7, 1, 5}, {4, 3, 6}};

std::int64_t computed_before(int step, std::int64_t request) {
    return first_tokens[request] + (step > 0 ? new_tokens[0][request] : 0);
}

small_world::setting setting_of() {
    small_world::setting s;
    s.sizes.pcp = s.sizes.dcp = num_ranks;
    s.q_heads = s.kv_heads = heads;
    s.interleave = 2;
    s.context_rows = 12;
    s.prefill_rows = prefill_path::gather_kv;
    s.requests = {{60, 4, false}, {20, 3, false}, {20, 6, false}};
    return s;
}

// A layer has its own numbers.
std::int64_t salted(std::int64_t request, int layer) {
    return request + 10 * layer;
}

// [rows of the step][heads][width]
floats rows_of(what kind, int step, int layer, std::int64_t width) {
    floats rows;
    for (std::int64_t r = 0; r < 3; ++r)
        for (std::int64_t t = 0; t < new_tokens[step][r]; ++t)
            for (std::int64_t h = 0; h < heads; ++h)
                for (std::int64_t d = 0; d < width; ++d)
                    rows.push_back(number(kind, salted(r, layer), computed_before(step, r) + t, h, d));
    return rows;
}

// What attention of those rows is, in the same order.
std::vector<double> expected(int step, int layer) {
    std::vector<double> out;
    for (std::int64_t r = 0; r < 3; ++r)
        for (std::int64_t t = 0; t < new_tokens[step][r]; ++t)
            for (std::int64_t h = 0; h < heads; ++h) {
                const std::int64_t position = computed_before(step, r) + t;
                double weights = 0, sums[value_width] = {};
                for (std::int64_t key = 0; key <= position; ++key) {
                    double score = 0;
                    for (std::int64_t d = 0; d < key_width; ++d)
                        score += double{number(what::query, salted(r, layer), position, h, d)} *
                                 double{number(what::key, salted(r, layer), key, h, d)};
                    const double weight = std::exp(score / std::sqrt(double{key_width}));
                    weights += weight;
                    for (std::int64_t d = 0; d < value_width; ++d)
                        sums[d] += weight * double{number(what::value, salted(r, layer), key, h, d)};
                }
                for (const double sum : sums) out.push_back(sum / weights);
            }
    return out;
}

double error_of(const floats& got, const std::vector<double>& due) {
    double wrong = 0, all = 0;
    for (std::size_t i = 0; i < due.size(); ++i) {
        wrong += (due[i] - double{got[i]}) * (due[i] - double{got[i]});
        all += due[i] * due[i];
    }
    return got.size() == due.size() ? std::sqrt(wrong / all) : 1.0;
}

enum class way { one_stream, two_streams, captured };

// One rank, driven without threads: nothing here waits for another rank.
class rank_of_two {
public:
    using prefiller_type = prefiller<small_world::policy_type, cuda_backend, nccl_communicator>;

    rank_of_two(simt_test::nccl_world& world, int rank, way chosen)
        : rank_(rank), chosen_(chosen), stream_(world.stream(rank)),
          comm_(world.comm(rank), {.checks = check_level::off}) {
        cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking);
        const groups<nccl_communicator> all{&comm_, nullptr, nullptr, &comm_};
        prefill_shape shape = small_world::shape_of(setting_of(), rank);
        shape.merged_lse = false;
        shape.max_rows = most_rows; // no more, so that memory which append and attend share is shared
        shape.hidden_bytes = heads * value_width * std::int64_t{sizeof(float)};
        shape.max_decode_rows = most_rows;
        shape.max_splits = 1;
        if (chosen == way::one_stream) {
            used_.emplace(all, shape, small_world::policy_of(setting_of()), cuda_backend());
        } else {
            used_.emplace(all, shape, small_world::policy_of(setting_of()), cuda_backend(), beside_);
        }
        memory_.emplace(used_->workspace_bytes());
        for (std::int64_t b = 0; b < 3 * columns; ++b) table_.push_back(3 * columns - 1 - b);
        for (int layer = 0; layer < num_layers; ++layer) fill(layer);
    }

    std::size_t workspace_bytes() const { return used_->workspace_bytes(); }

    // Gives append, attend and restore of all layers to the stream; the outputs of all rows are in `outs` then.
    void give(int number) {
        cudaSetDevice(rank_);
        auto& tokens = lists_.emplace_back(new_tokens[number], new_tokens[number] + 3);
        auto& computed = lists_.emplace_back();
        for (std::int64_t r = 0; r < 3; ++r) computed.push_back(computed_before(number, r));
        prefill_batch batch;
        batch.requests = 3;
        batch.computed = index_of(computed.data());
        batch.tokens = index_of(tokens.data());
        batch.table = table_2d(table_.data(), 3, columns, block_size);
        const prefill_step step = used_->plan(batch, *memory_, stream_);
        if (chosen_ == way::captured) cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
        for (int layer = 0; layer < num_layers; ++layer) give(step, number, layer);
        if (chosen_ != way::captured) return;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        cuda::check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
        cuda::check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
        cuda::check(cudaGraphLaunch(exec, stream_), "cudaGraphLaunch");
    }

    std::deque<floats> outs; // of every step and layer

private:
    static constexpr std::int64_t block_size = 4;
    static constexpr std::int64_t columns = 8;

    floats& memory(std::int64_t rows, std::int64_t width) {
        return buffers_.emplace_back(static_cast<std::size_t>(rows * heads * width), std::nanf(""));
    }
    static head_view<const float> read(const floats& rows, std::int64_t width) {
        return dense_view(rows.data(), std::ssize(rows) / heads / width, heads, width);
    }
    static head_view<float> write(floats& rows, std::int64_t width) {
        return dense_view(rows.data(), std::ssize(rows) / heads / width, heads, width);
    }

    // This rank's rows of what the batch has.
    floats& own_rows(const prefill_step& step, what kind, int number, int layer, std::int64_t width) {
        const floats& all = buffers_.emplace_back(rows_of(kind, number, layer, width));
        floats& own = memory(step.rows(), width);
        used_->scatter(step, read(all, width), write(own, width), stream_);
        return own;
    }

    void give(const prefill_step& step, int number, int layer) {
        const floats& q = own_rows(step, what::query, number, layer, key_width);
        const floats& k = own_rows(step, what::key, number, layer, key_width);
        const floats& v = own_rows(step, what::value, number, layer, value_width);
        floats& out = memory(step.rows(), value_width);
        floats& all = outs.emplace_back(expected(number, layer).size(), std::nanf(""));
        used_->append(step, read(k, key_width), read(v, value_width), cache(layer), stream_);
        used_->attend(step, read(q, key_width), kv_view<const float>(cache(layer)), write(out, value_width),
                      layer_options<>{}, stream_);
        used_->restore(step, read(out, value_width), write(all, value_width), stream_);
    }

    kv_view<float> cache(int layer) {
        return nhd_kv(keys_[layer].data(), values_[layer].data(), 3 * columns, block_size, heads, key_width,
                      value_width);
    }

    // The tokens that are cached before.
    void fill(int layer) {
        keys_[layer].assign(static_cast<std::size_t>(3 * columns * block_size * heads * key_width), std::nanf(""));
        values_[layer].assign(static_cast<std::size_t>(3 * columns * block_size * heads * value_width), std::nanf(""));
        const kv_view<float> pool = cache(layer);
        for (std::int64_t r = 0; r < 3; ++r)
            for (std::int64_t p = 0, local = 0; p < first_tokens[r]; ++p) {
                if (p / 2 % num_ranks != rank_) continue; // two tokens each in turn
                const std::int64_t block = table_[static_cast<std::size_t>(r * columns + local / block_size)];
                const std::int64_t slot = block * block_size + local % block_size;
                ++local;
                for (std::int64_t h = 0; h < heads; ++h) {
                    for (std::int64_t d = 0; d < key_width; ++d)
                        pool.key(slot, h)[d] = number(what::key, salted(r, layer), p, h, d);
                    for (std::int64_t d = 0; d < value_width; ++d)
                        pool.value(slot, h)[d] = number(what::value, salted(r, layer), p, h, d);
                }
            }
    }

    int rank_;
    way chosen_;
    cudaStream_t stream_;
    cudaStream_t beside_ = nullptr;
    nccl_communicator comm_;
    std::optional<prefiller_type> used_;
    std::optional<host_workspace> memory_;
    std::vector<std::int64_t> table_;
    floats keys_[num_layers], values_[num_layers];
    std::deque<std::vector<std::int64_t>> lists_;
    std::deque<floats> buffers_;
};

struct outcome {
    std::vector<floats> outs; // of every rank, step and layer
    double error = 0;
    std::size_t workspace_bytes = 0;
    std::uint64_t launches = 0;
    bool nothing_waits = true; // or allocates
};

outcome run(std::uint64_t seed, way chosen, way of_second = way::one_stream) {
    const simt::device device({.seed = seed, .devices = num_ranks});
    simt_test::nccl_world world(num_ranks);
    cuda::emulated_order() = {simt::thread_order::any, seed};
    std::vector<std::unique_ptr<rank_of_two>> ranks;
    for (int rank = 0; rank < num_ranks; ++rank) {
        cudaSetDevice(rank);
        const bool differs = rank == 1 && of_second != way::one_stream;
        ranks.push_back(std::make_unique<rank_of_two>(world, rank, differs ? of_second : chosen));
    }
    const simt::device_counts before = simt::device_counters();
    for (int step = 0; step < num_steps; ++step)
        for (const auto& each : ranks) each->give(step);
    const simt::device_counts after = simt::device_counters();
    world.finish();
    outcome found;
    found.launches = after.launches - before.launches;
    found.nothing_waits = after.synchronisations == before.synchronisations && after.allocations == before.allocations;
    found.workspace_bytes = ranks.front()->workspace_bytes();
    for (const auto& each : ranks)
        for (std::size_t i = 0; i < each->outs.size(); ++i) {
            const auto step = static_cast<int>(i / num_layers), layer = static_cast<int>(i % num_layers);
            found.error = std::max(found.error, error_of(each->outs[i], expected(step, layer)));
            found.outs.push_back(each->outs[i]);
        }
    return found;
}

bool same_bits(const outcome& a, const outcome& b) {
    bool same = a.outs.size() == b.outs.size();
    for (std::size_t i = 0; same && i < a.outs.size(); ++i)
        same = a.outs[i].size() == b.outs[i].size() &&
               std::memcmp(a.outs[i].data(), b.outs[i].data(), a.outs[i].size() * sizeof(float)) == 0;
    return same;
}

} // namespace

TEST_CASE("context that travels on a second stream gives the bits of one stream, for every order of streams") {
    const outcome one = run(1, way::one_stream);
    CHECK(one.error <= 2e-6);
    CHECK(one.nothing_waits);
    for (std::uint64_t seed = 1; seed <= num_seeds; ++seed) {
        const outcome two = run(seed, way::two_streams);
        CHECK(same_bits(two, one));
        CHECK(two.nothing_waits);
        CHECK(two.launches == one.launches);
        CHECK(two.workspace_bytes > one.workspace_bytes);
    }
}

TEST_CASE("a prefill over two streams is captured whole") {
    const outcome one = run(1, way::one_stream);
    for (std::uint64_t seed = 1; seed <= num_seeds / 2; ++seed) {
        const outcome captured = run(seed, way::captured);
        CHECK(same_bits(captured, one));
        CHECK(captured.nothing_waits);
    }
}

TEST_CASE("a second stream is each rank's own choice") {
    const outcome one = run(1, way::one_stream);
    for (std::uint64_t seed = 1; seed <= num_seeds / 2; ++seed)
        CHECK(same_bits(run(seed, way::one_stream, way::two_streams), one));
}
