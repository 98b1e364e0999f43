#include "check.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "engine.hpp"

namespace serve {

comparison compare(const model<float>& weights, const std::vector<asked>& trace, const std::vector<served>& results,
                   std::vector<std::pair<std::vector<std::int32_t>, expected>>& known, std::int64_t threads) {
    known.resize(trace.size());
    std::atomic<std::size_t> next{0};
    std::vector<std::jthread> workers;
    for (std::int64_t i = 0; i < threads; ++i) {
        workers.emplace_back([&] {
            for (std::size_t at = next++; at < trace.size(); at = next++) {
                const std::vector<std::int32_t>& outputs = results[at].outputs;
                if (outputs.empty() || known[at].first == outputs) continue;
                known[at] = {outputs, unsharded(weights, trace[at].prompt, outputs, 1)};
            }
        });
    }
    workers.clear();

    comparison found;
    for (std::size_t at = 0; at < trace.size(); ++at) {
        const std::vector<std::int32_t>& outputs = results[at].outputs;
        found.missing += static_cast<std::int64_t>(outputs.size()) != trace[at].outputs ? 1 : 0;
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            const choice& right = known[at].second[i];
            ++found.outputs;
            if (right.margin < least_margin)
                ++found.unsure;
            else if (outputs[i] != right.token)
                ++found.differ;
        }
    }
    return found;
}

expected in_double(const model<double>& weights, const std::vector<std::int32_t>& prompt,
                   const std::vector<std::int32_t>& outputs) {
    using dims = model_dims;
    std::vector<std::int32_t> all = prompt;
    all.insert(all.end(), outputs.begin(), outputs.end() - 1);
    std::vector<std::int64_t> positions(all.size());
    std::iota(positions.begin(), positions.end(), 0);
    const auto count = static_cast<Eigen::Index>(all.size());

    rows_of<double> hidden = weights.embed(all);
    for (std::int64_t layer = 0; layer < dims::layers; ++layer) {
        const model<double>::projected rows = weights.project(layer, hidden, positions);
        rows_of<double> attended(count, dims::q_heads * dims::head_dim);
        for (Eigen::Index row = 0; row < count; ++row) {
            for (std::int64_t head = 0; head < dims::q_heads; ++head) {
                const std::int64_t at = head * dims::head_dim;
                const std::int64_t kv_at = head / (dims::q_heads / dims::kv_heads) * dims::head_dim;
                const auto keys = rows.k.block(0, kv_at, row + 1, dims::head_dim);
                const auto values = rows.v.block(0, kv_at, row + 1, dims::head_dim);
                Eigen::ArrayXd scores =
                    keys * rows.q.block(row, at, 1, dims::head_dim).transpose() * double{dims::softmax_scale};
                scores = (scores - scores.maxCoeff()).exp();
                attended.block(row, at, 1, dims::head_dim) = (scores / scores.sum()).matrix().transpose() * values;
            }
        }
        weights.finish(layer, attended, hidden);
    }
    expected right;
    const rows_of<double> logits = weights.logits(hidden.bottomRows(static_cast<Eigen::Index>(outputs.size())));
    for (Eigen::Index row = 0; row < logits.rows(); ++row) right.push_back(choose(logits.row(row).data()));
    return right;
}

} // namespace serve
