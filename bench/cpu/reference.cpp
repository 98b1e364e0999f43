#include "reference.hpp"

#include <algorithm>
#include <cmath>

namespace bench {
namespace {

std::int64_t rank_of(const cache_place& place, std::int64_t position) {
    return position / place.interleave % place.ranks;
}

// The index of a token among those of its rank.
std::int64_t index_of_token(const cache_place& place, std::int64_t position) {
    const std::int64_t group = place.interleave * place.ranks;
    return position / group * place.interleave + position % place.interleave;
}

// Of a row of `width` elements in a plane that starts `plane` elements into the pool.
std::uint16_t* row_of(const cache_place& place, std::int64_t request, std::int64_t position, std::int64_t head,
                      std::int64_t width, std::int64_t plane) {
    const std::int64_t index = index_of_token(place, position);
    const std::int64_t id = place.ids[request * place.request_blocks + index / place.block];
    const std::int64_t token = index % place.block;
    const std::int64_t row = place.by_head ? (id * place.kv_heads + head) * place.block + token
                                           : (id * place.block + token) * place.kv_heads + head;
    std::byte* const pool = place.base + rank_of(place, position) * place.pool_bytes();
    return reinterpret_cast<std::uint16_t*>(pool) + plane + row * width;
}

// In eight sums, so that it takes less time.
double dot(const double* query, const std::uint16_t* key, std::int64_t width) {
    double sums[8] = {};
    std::int64_t d = 0;
    for (; d + 8 <= width; d += 8)
        for (std::int64_t lane = 0; lane < 8; ++lane)
            sums[lane] += query[d + lane] * static_cast<double>(bf16_value(key[d + lane]));
    for (; d < width; ++d) sums[0] += query[d] * static_cast<double>(bf16_value(key[d]));
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

} // namespace

std::uint16_t* cache_place::key(std::int64_t request, std::int64_t position, std::int64_t head) const {
    return row_of(*this, request, position, head, query_width, 0);
}

const std::uint16_t* cache_place::value(std::int64_t request, std::int64_t position, std::int64_t head) const {
    if (latent) return key(request, position, head);
    return row_of(*this, request, position, head, value_width, blocks * block * kv_heads * query_width);
}

answer attend_again(const cache_place& place, const std::vector<float>& query, std::int64_t request, std::int64_t head,
                    std::int64_t tokens, double scale, const std::vector<std::int64_t>& asked) {
    const std::vector<double> q(query.begin(), query.end());
    std::vector<double> logits(static_cast<std::size_t>(tokens));
    double most = -INFINITY;
    for (std::int64_t p = 0; p < tokens; ++p) {
        double& logit = logits[static_cast<std::size_t>(p)];
        logit = scale * dot(q.data(), place.key(request, p, head), place.query_width);
        most = std::max(most, logit);
    }
    answer result;
    result.output.resize(static_cast<std::size_t>(place.value_width));
    double sum = 0.0;
    for (std::int64_t p = 0; p < tokens; ++p) {
        const double weight = std::exp(logits[static_cast<std::size_t>(p)] - most);
        sum += weight;
        const std::uint16_t* const value = place.value(request, p, head);
        for (std::size_t d = 0; d < result.output.size(); ++d)
            result.output[d] += weight * static_cast<double>(bf16_value(value[d]));
    }
    for (double& number : result.output) number /= sum;
    for (const std::int64_t p : asked)
        result.shares.push_back(std::exp(logits[static_cast<std::size_t>(p)] - most) / sum);
    return result;
}

double comparison::relative_l2() const {
    return std::sqrt(difference_ / size_);
}

double attention_bound(bool exact_probabilities, std::int64_t tokens) {
    if (!exact_probabilities) return 4e-3;
    return tokens <= 131072 ? 2e-6 : 5e-6;
}

} // namespace bench
