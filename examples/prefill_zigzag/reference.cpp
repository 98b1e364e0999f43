#include "reference.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>

#include "common/softmaxes.hpp"

namespace demo {
namespace {

// The prompt as one KV head has it.
class prompt_head final : public token_source {
public:
    prompt_head(const problem& all, const prompt_data& data, std::int64_t kv_head)
        : all_(all), data_(data), kv_head_(kv_head), row_(static_cast<std::size_t>(all.head_dim)) {}

    void token(std::int64_t position, double* key, double* value) const override {
        data_.key(position, kv_head_, row_.data());
        std::copy(row_.begin(), row_.end(), key);
        data_.value(position, kv_head_, row_.data());
        std::copy(row_.begin(), row_.end(), value);
    }
    std::int64_t shard(std::int64_t position) const override { return position / all_.interleave % all_.largest_dcp(); }

private:
    const problem& all_;
    const prompt_data& data_;
    std::int64_t kv_head_;
    mutable std::vector<float> row_;
};

// Softmax j is row j / group with head j mod group of the KV head.
softmaxes questions(const problem& all, const prompt_data& data, const std::vector<std::int64_t>& rows,
                    std::int64_t kv_head) {
    softmaxes made;
    made.query_width = made.value_width = all.head_dim;
    made.shards = all.largest_dcp();
    made.scale = all.softmax_scale;
    made.resize(static_cast<std::int64_t>(rows.size()) * all.group());
    std::vector<float> query(static_cast<std::size_t>(all.head_dim));
    for (std::int64_t j = 0; j < made.count; ++j) {
        const std::int64_t position = all.computed() + rows[static_cast<std::size_t>(j / all.group())];
        data.query(position, kv_head * all.group() + j % all.group(), query.data());
        std::copy(query.begin(), query.end(), made.queries.begin() + j * all.head_dim);
        made.ends[static_cast<std::size_t>(j)] = position + 1;
    }
    return made;
}

// The least share that a planted token has: a new one in its own row, one of the context in the last row.
double least_share(const problem& all, const prompt_data& data, const std::vector<std::int64_t>& rows,
                   std::int64_t kv_head, const softmaxes& done) {
    const prompt_head tokens(all, data, kv_head);
    std::vector<double> key(static_cast<std::size_t>(all.head_dim));
    std::vector<double> value(key.size());
    double least = 1.0;
    const auto look = [&](std::size_t row, std::int64_t position, const plant& planted) {
        const std::int64_t j = static_cast<std::int64_t>(row) * all.group() + planted.head % all.group();
        tokens.token(position, key.data(), value.data());
        const double weight = std::exp(logit(key.data(), done, j) - done.max[static_cast<std::size_t>(j)]);
        least = std::min(least, weight / done.sum[static_cast<std::size_t>(j)]);
    };
    for (std::size_t row = 0; row < rows.size(); ++row) {
        const std::int64_t position = all.computed() + rows[row];
        look(row, position, data.new_plant(position, kv_head));
    }
    for (const auto& [position, planted] : data.plants(kv_head)) look(rows.size() - 1, position, planted);
    return least;
}

void keep(const problem& all, std::int64_t kv_head, const softmaxes& done, reference& to) {
    for (std::int64_t j = 0; j < done.count; ++j) {
        const std::int64_t at = j / all.group() * all.q_heads + kv_head * all.group() + j % all.group();
        const double sum = done.sum[static_cast<std::size_t>(j)];
        to.lses[static_cast<std::size_t>(at)] = done.max[static_cast<std::size_t>(j)] + std::log(sum);
        for (std::int64_t d = 0; d < all.head_dim; ++d)
            to.outputs[static_cast<std::size_t>(at * all.head_dim + d)] =
                done.outputs[static_cast<std::size_t>(j * all.head_dim + d)] / sum;
    }
}

} // namespace

std::vector<std::int64_t> rows_to_check(const problem& all) {
    constexpr double quick = 6e9; // multiplications, which take a few seconds
    const double every = 2.0 * static_cast<double>(all.pairs()) * static_cast<double>(all.q_heads * all.head_dim);
    std::set<std::int64_t> rows;
    if (every <= quick) {
        for (std::int64_t row = 0; row < all.chunk; ++row) rows.insert(row);
    }
    for (std::int64_t i = 0; i < 2 * all.pcp; ++i) {
        const ctxpar::token_run run = all.split().chunk(all.chunk, i);
        if (run.count > 0) rows.insert({run.first, run.first + run.count / 2, run.first + run.count - 1});
    }
    return {rows.begin(), rows.end()};
}

reference make_reference(const problem& all, const prompt_data& data) {
    const auto start = std::chrono::steady_clock::now();
    reference made;
    made.rows = rows_to_check(all);
    made.lses.resize(made.rows.size() * static_cast<std::size_t>(all.q_heads));
    made.outputs.resize(made.lses.size() * static_cast<std::size_t>(all.head_dim));

    progress bar("reference", all.kv_heads * all.tokens);
    std::atomic<std::int64_t> next{0};
    std::mutex finishing;
    const auto work = [&] {
        for (std::int64_t kv_head = next++; kv_head < all.kv_heads; kv_head = next++) {
            softmaxes one = questions(all, data, made.rows, kv_head);
            walk(prompt_head(all, data, kv_head), 0, all.tokens, one, bar);
            const double share = least_share(all, data, made.rows, kv_head, one);
            const std::scoped_lock lock(finishing);
            keep(all, kv_head, one, made);
            made.least_planted_share = std::min(made.least_planted_share, share);
            made.shard_lse_spread = std::max(made.shard_lse_spread, lse_spread(one));
        }
    };
    std::vector<std::thread> others;
    for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    made.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return made;
}

} // namespace demo
