#include "reference.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "common/progress.hpp"
#include "common/softmaxes.hpp"
#include "task.hpp"

namespace demo {
namespace {

// Checked heads of a KV head, as indexes into the list of all checked ones.
struct head_group {
    std::int64_t first = 0;
    std::int64_t last = 0;
};

head_group group_of(const problem& all, const std::vector<std::int64_t>& heads, std::int64_t kv_head) {
    const std::int64_t size = all.q_heads / all.kv_heads;
    const auto place = [&](std::int64_t head) {
        return std::lower_bound(heads.begin(), heads.end(), head) - heads.begin();
    };
    return {place(kv_head * size), place((kv_head + 1) * size)};
}

// Softmax j of a group is new row j / heads with head j mod heads.
softmaxes questions(const task& work, const std::vector<std::int64_t>& heads, head_group group) {
    const problem& all = work.all;
    const std::int64_t held = group.last - group.first;
    softmaxes made;
    made.query_width = all.query_width;
    made.value_width = all.value_width;
    made.shards = all.law.ranks;
    made.scale = all.softmax_scale;
    made.resize(all.steps * all.query_rows * held);
    std::vector<float> query(static_cast<std::size_t>(all.query_width));
    for (std::int64_t j = 0; j < made.count; ++j) {
        const std::int64_t row = j / held;
        const std::int64_t head = heads[static_cast<std::size_t>(group.first + j % held)];
        work.data.query(work.layer, work.request, row, head, query.data());
        std::copy(query.begin(), query.end(), made.queries.begin() + j * all.query_width);
        made.ends[static_cast<std::size_t>(j)] = all.filled(work.request) + row + 1;
    }
    return made;
}

// Half of the tokens for each of two threads, or as many parts as there are cores.
softmaxes answered(const task& work, const softmaxes& asked, progress& bar) {
    const auto threads = static_cast<std::int64_t>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
    const std::int64_t tokens = work.all.length(work.request, work.all.steps - 1);
    std::vector<softmaxes> parts(static_cast<std::size_t>(threads), asked);
    std::vector<std::thread> workers;
    for (std::int64_t i = 0; i < threads; ++i)
        workers.emplace_back([&, i] {
            walk(work, tokens * i / threads, tokens * (i + 1) / threads, parts[static_cast<std::size_t>(i)], bar);
        });
    for (std::thread& worker : workers) worker.join();
    softmaxes whole = asked;
    for (const softmaxes& part : parts) merge(whole, part);
    return whole;
}

// The least share that a planted token has of its head: in its own row, or if it was there before in the last row.
double least_share(const task& work, const softmaxes& all, const std::vector<std::int64_t>& heads, head_group group) {
    double least = 1.0;
    const std::int64_t held = group.last - group.first;
    std::vector<double> key(static_cast<std::size_t>(all.query_width));
    std::vector<double> value(static_cast<std::size_t>(all.value_width));
    for (const plant& each : work.data.plants(work.request, work.kv_head)) {
        const auto found = std::lower_bound(heads.begin(), heads.end(), each.head);
        const std::int64_t row = each.new_row >= 0 ? each.new_row : work.all.steps * work.all.query_rows - 1;
        const std::int64_t j = row * held + (found - heads.begin()) - group.first;
        work.token(each.position, key.data(), value.data());
        const double weight = std::exp(logit(key.data(), all, j) - all.max[static_cast<std::size_t>(j)]);
        least = std::min(least, weight / all.sum[static_cast<std::size_t>(j)]);
    }
    return least;
}

// Work that takes a few seconds.
constexpr double quick = 6e9;

double multiplications(const problem& all, std::size_t heads) {
    return static_cast<double>(all.tokens) * static_cast<double>(all.requests * all.layers * all.steps) *
           static_cast<double>(all.query_rows * (all.query_width + all.value_width)) * static_cast<double>(heads);
}

} // namespace

std::vector<std::int64_t> heads_to_check(const problem& all, const kv_data& data) {
    if (multiplications(all, static_cast<std::size_t>(all.q_heads)) > quick) return data.sampled_heads();
    std::vector<std::int64_t> heads;
    for (std::int64_t head = 0; head < all.q_heads; ++head) heads.push_back(head);
    return heads;
}

reference make_reference(const problem& all, const kv_data& data, const std::vector<std::int64_t>& heads) {
    const auto start = std::chrono::steady_clock::now();
    reference result;
    result.heads = heads;
    const std::int64_t new_rows = all.steps * all.query_rows;
    result.rows = all.requests * new_rows;
    result.width = all.value_width;
    const auto held = static_cast<std::int64_t>(heads.size());
    result.outputs.resize(static_cast<std::size_t>(all.layers * result.rows * held * result.width));
    result.least_planted_share = 1.0;

    progress bar("reference", all.layers * all.requests * all.kv_heads * all.tokens);
    for (std::int64_t layer = 0; layer < all.layers; ++layer)
        for (std::int64_t request = 0; request < all.requests; ++request)
            for (std::int64_t kv_head = 0; kv_head < all.kv_heads; ++kv_head) {
                const task work(all, data, layer, request, kv_head);
                const head_group group = group_of(all, heads, kv_head);
                const softmaxes done = answered(work, questions(work, heads, group), bar);
                result.shard_lse_spread = std::max(result.shard_lse_spread, lse_spread(done));
                result.least_planted_share =
                    std::min(result.least_planted_share, least_share(work, done, heads, group));
                const std::int64_t in_group = group.last - group.first;
                for (std::int64_t j = 0; j < done.count; ++j) {
                    const std::int64_t row = request * new_rows + j / in_group;
                    const std::int64_t at = (layer * result.rows + row) * held + group.first + j % in_group;
                    for (std::int64_t d = 0; d < result.width; ++d)
                        result.outputs[static_cast<std::size_t>(at * result.width + d)] =
                            done.outputs[static_cast<std::size_t>(j * result.width + d)] /
                            done.sum[static_cast<std::size_t>(j)];
                }
            }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
}

} // namespace demo
