#include "check.hpp"

#include <algorithm>
#include <cmath>

namespace demo {
namespace {

struct sums {
    double error = 0.0;
    double size = 0.0;
    double relative() const { return size > 0.0 ? std::sqrt(error / size) : std::sqrt(error); }
};

// One output vector.
sums compare_vector(const float* got, const double* right, std::int64_t width, errors& worst) {
    sums one;
    for (std::int64_t d = 0; d < width; ++d) {
        const double difference = got[d] - right[d];
        worst.nan = worst.nan || std::isnan(difference);
        worst.max_abs = std::max(worst.max_abs, std::fabs(difference));
        one.error += difference * difference;
        one.size += right[d] * right[d];
    }
    worst.worst_head = std::max(worst.worst_head, one.relative());
    return one;
}

} // namespace

errors compare(const problem& all, const reference& right, const record& got) {
    errors worst;
    const ctxpar::mesh ranks = all.ranks();
    const auto held = static_cast<std::int64_t>(right.heads.size());
    const std::int64_t new_rows = all.steps * all.query_rows;
    for (std::int64_t step = 0; step < all.steps; ++step)
        for (std::int64_t layer = 0; layer < all.layers; ++layer) {
            sums whole;
            for (std::int64_t rank = 0; rank < got.world; ++rank) {
                const ctxpar::head_range own = ranks.output_projection(rank, all.placement).heads;
                const std::vector<float>& output = got.output(all, step, layer, rank);
                for (std::int64_t row = 0; row < all.requests * all.query_rows; ++row)
                    for (std::int64_t i = 0; i < held; ++i) {
                        const std::int64_t head = right.heads[static_cast<std::size_t>(i)];
                        if (head < own.first || head >= own.last) continue;
                        const std::int64_t right_row =
                            row / all.query_rows * new_rows + step * all.query_rows + row % all.query_rows;
                        const float* at = output.data() + (row * own.count() + head - own.first) * right.width;
                        const sums one = compare_vector(at, right.at(layer, right_row, i), right.width, worst);
                        whole.error += one.error;
                        whole.size += one.size;
                    }
            }
            worst.relative_l2 = std::max(worst.relative_l2, whole.relative());
        }
    if (worst.nan) worst.max_abs = worst.relative_l2 = worst.worst_head = std::nan("");
    return worst;
}

double error_bound(const problem& all) {
    return all.tokens <= 131'072 ? 2e-6 : 5e-6;
}

} // namespace demo
