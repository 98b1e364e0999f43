#include "unsharded.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "model.hpp"
#include "schedule.hpp"

namespace demo {
namespace {

constexpr std::int64_t width = options::head_dim;

// Keys and values of one request in one layer and KV head, by position.
struct sequence {
    std::vector<std::vector<float>> keys, values;
};

// Softmax over all that the sequence holds.
void attend(const std::vector<float>& query, const sequence& seen, double* to) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(width));
    std::vector<double> weights;
    for (const std::vector<float>& key : seen.keys) {
        double logit = 0.0;
        for (std::size_t d = 0; d < query.size(); ++d) logit += static_cast<double>(query[d]) * key[d];
        weights.push_back(logit * scale);
    }
    const double highest = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - highest);
    std::fill_n(to, width, 0.0);
    for (std::size_t t = 0; t < weights.size(); ++t)
        for (std::size_t d = 0; d < query.size(); ++d) to[d] += weights[t] / sum * seen.values[t][d];
}

class plain_engine {
public:
    explicit plain_engine(const options& given) : given_(given), weights_(given) {}

    unsharded_step run(const step_input& step) {
        unsharded_step made;
        made.outputs.resize(static_cast<std::size_t>(options::layers * step.rows() * options::q_heads * width));
        double* to = made.outputs.data();
        for (std::int64_t layer = 0; layer < options::layers; ++layer) {
            std::size_t row = 0;
            for (std::size_t i = 0; i < step.requests.size(); ++i)
                for (std::int64_t t = 0; t < step.tokens[i]; ++t, ++row, to += options::q_heads * width)
                    one_row(layer, step.requests[i], {step.ids[row], step.computed[i] + t}, to);
        }
        std::int64_t last = -1;
        for (std::size_t i = 0; i < step.requests.size(); ++i) {
            last += step.tokens[i];
            made.sampled.push_back(step.samples[i] ? model::sample(made.row(options::layers - 1, step.rows(), last))
                                                   : -1);
        }
        return made;
    }

private:
    void one_row(std::int64_t layer, std::size_t request, placed_token token, double* to) {
        const std::int64_t group = options::q_heads / given_.kv_heads;
        std::vector<float> numbers(static_cast<std::size_t>(width));
        for (std::int64_t kv_head = 0; kv_head < given_.kv_heads; ++kv_head) {
            sequence& own = cache_[{static_cast<std::int64_t>(request), layer, kv_head}];
            weights_.key(layer, token, kv_head, numbers.data());
            own.keys.push_back(numbers);
            weights_.value(layer, token, kv_head, numbers.data());
            own.values.push_back(numbers);
            for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                weights_.query(layer, token, head, numbers.data());
                attend(numbers, own, to + head * width);
            }
        }
    }

    const options& given_;
    model weights_;
    std::map<std::vector<std::int64_t>, sequence> cache_;
};

} // namespace

std::vector<unsharded_step> run_unsharded(const options& given) {
    scheduler schedule(given);
    plain_engine engine(given);
    std::vector<unsharded_step> all;
    while (!schedule.done()) {
        const step_input step = schedule.next();
        all.push_back(engine.run(step));
        schedule.finish(step, all.back().sampled);
    }
    return all;
}

double worst_row(const unsharded_step& right, std::int64_t layer, const std::vector<float>& got, std::int64_t rows,
                 std::int64_t first_head) {
    double worst = 0.0;
    const std::size_t numbers = rows == 0 ? 0 : got.size() / static_cast<std::size_t>(rows);
    for (std::int64_t row = 0; row < rows; ++row) {
        const double* const wanted = right.row(layer, rows, row) + first_head * width;
        const float* const had = got.data() + static_cast<std::size_t>(row) * numbers;
        double error = 0.0;
        double size = 0.0;
        for (std::size_t i = 0; i < numbers; ++i) {
            error += (static_cast<double>(had[i]) - wanted[i]) * (static_cast<double>(had[i]) - wanted[i]);
            size += wanted[i] * wanted[i];
        }
        const double relative = std::sqrt(error / size);
        worst = std::max(worst, std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative);
    }
    return worst;
}

} // namespace demo
