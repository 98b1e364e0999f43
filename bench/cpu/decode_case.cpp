#include "decode_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "machine.hpp"

namespace bench {
namespace {

constexpr std::int64_t plants = 5; // of a compared head, the newest token among them

std::vector<std::uint16_t> random_bits(std::uint64_t stream, std::int64_t count) {
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = bf16_bits(random_number(stream, i));
    return bits;
}

} // namespace

std::int64_t decode_case::token_bytes() const {
    return 2 * (latent ? query_width() : kv_heads * (query_width() + value_width()));
}

std::int64_t decode_case::blocks_of_request() const {
    const std::int64_t group = ranks * interleave;
    const std::int64_t most = (tokens + group - 1) / group * interleave; // tokens of one rank
    return (most + block - 1) / block;
}

std::int64_t decode_case::region_bytes() const {
    return ranks * batch * blocks_of_request() * block * token_bytes();
}

double decode_case::read_bytes() const {
    return static_cast<double>(batch * tokens * token_bytes());
}

double decode_case::flops() const {
    return 2.0 * static_cast<double>(batch * tokens * q_heads * (query_width() + value_width()));
}

double decode_case::scale() const {
    return 1.0 / std::sqrt(latent ? 192.0 : 128.0);
}

int decode_case::busy(int cpus) const {
    return static_cast<int>(std::min<std::int64_t>(cpus, ranks * threads));
}

std::string decode_case::name() const {
    std::string text = whole_step ? "step" : "decode";
    text += latent ? "/mla" : "/gqa";
    text += part("q_heads", q_heads);
    if (!latent) text += part("kv_heads", kv_heads);
    text += part("tokens", tokens) + part("batch", batch) + part("block", block);
    if (!latent) text += by_head ? "/layout:hnd" : "/layout:nhd";
    return text + part("interleave", interleave) + part("ranks", ranks) + part("threads", threads);
}

std::vector<std::int32_t> scattered_ids(std::int64_t blocks) {
    std::int64_t stride = static_cast<std::int64_t>(0.618 * static_cast<double>(blocks)) | 1;
    while (std::gcd(stride, blocks) != 1) stride += 2;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks));
    for (std::int64_t i = 0; i < blocks; ++i)
        ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * stride % blocks);
    return ids;
}

decode_data::decode_data(const decode_case& what, bool smoke)
    : case_(what), ids_(scattered_ids(what.batch * what.blocks_of_request())),
      queries_(random_bits(11, what.batch * what.q_heads * what.query_width())),
      new_keys_(random_bits(12, what.batch * what.kv_heads * what.query_width())),
      new_values_(random_bits(13, what.batch * what.kv_heads * what.value_width())) {
    const std::int64_t in_caches =
        std::max<std::int64_t>(std::int64_t{1} << 30, 2 * static_cast<std::int64_t>(cache_bytes()));
    regions_ = smoke ? 2 : std::max<std::int64_t>(1, in_caches / what.region_bytes());
    place_.ranks = what.ranks;
    place_.interleave = what.interleave;
    place_.block = what.block;
    place_.blocks = what.batch * what.blocks_of_request();
    place_.request_blocks = what.blocks_of_request();
    place_.ids = ids_.data();
    place_.kv_heads = what.kv_heads;
    place_.query_width = what.query_width();
    place_.value_width = what.value_width();
    place_.by_head = what.by_head;
    place_.latent = what.latent;
    place_.base = numbers(static_cast<std::size_t>(regions_ * what.region_bytes()));
    samples_.push_back({0, 0});
    samples_.push_back({what.batch - 1, what.q_heads - 1});
}

std::byte* decode_data::pool(std::int64_t iteration, std::int64_t rank) const {
    return place_.base + (iteration % regions_) * case_.region_bytes() + rank * place_.pool_bytes();
}

std::vector<float> decode_data::query(const sample& at) const {
    const std::size_t width = static_cast<std::size_t>(case_.query_width());
    std::vector<float> numbers_of(width);
    const std::size_t first = static_cast<std::size_t>(at.request * case_.q_heads + at.head) * width;
    for (std::size_t d = 0; d < width; ++d) numbers_of[d] = bf16_value(queries_[first + d]);
    return numbers_of;
}

// Spread over the context, so that they lie on many ranks; the last is the newest token.
std::vector<std::int64_t> decode_data::planted_positions() const {
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 1; i < plants; ++i) positions.push_back(case_.tokens * i / plants - i % 2);
    positions.push_back(case_.tokens - 1);
    return positions;
}

// Along the query, so that each has about a tenth of the weight of all random tokens, later ones more: the running
// maximum rises.
void decode_data::plant_key(const sample& at, std::int64_t which, std::uint16_t* key) const {
    const std::vector<float> q = query(at);
    double square = 0.0;
    for (const float number : q) square += static_cast<double>(number) * static_cast<double>(number);
    const double logit = std::log(0.1 * static_cast<double>(case_.tokens)) + 0.25 * static_cast<double>(which) + 0.2;
    const double length = logit / (square * case_.scale());
    for (std::size_t d = 0; d < q.size(); ++d) key[d] = bf16_bits(static_cast<float>(length) * q[d]);
}

void decode_data::plant() {
    const std::vector<std::int64_t> positions = planted_positions();
    const std::int64_t group = case_.q_heads / case_.kv_heads;
    const auto width = static_cast<std::size_t>(case_.query_width());
    for (std::int64_t request = 0; request < case_.batch; ++request)
        for (std::int64_t head = 0; head < case_.kv_heads; ++head)
            std::memset(place_.key(request, case_.tokens - 1, head), 0xff, width * 2); // NaN
    for (std::size_t s = 0; s < samples_.size(); ++s) {
        const sample& at = samples_[s];
        const std::int64_t head = at.head / group;
        for (std::int64_t which = 0; which + 1 < plants; ++which) { // MLA heads share one key: they take turns
            if (case_.kv_heads == 1 && case_.batch == 1 && which % 2 != static_cast<std::int64_t>(s)) continue;
            plant_key(at, which, place_.key(at.request, positions[static_cast<std::size_t>(which)], head));
        }
        plant_key(at, plants - 1,
                  new_keys_.data() + static_cast<std::size_t>(at.request * case_.kv_heads + head) * width);
    }
}

bool decode_data::newest_are_there() const {
    const auto width = static_cast<std::size_t>(case_.query_width());
    for (std::int64_t request = 0; request < case_.batch; ++request)
        for (std::int64_t head = 0; head < case_.kv_heads; ++head) {
            const std::size_t at = static_cast<std::size_t>(request * case_.kv_heads + head) * width;
            const std::uint16_t* const key = place_.key(request, case_.tokens - 1, head);
            if (std::memcmp(key, new_keys_.data() + at, width * 2) != 0) return false;
            if (case_.latent) continue; // the value is in the key
            const std::uint16_t* const value = place_.value(request, case_.tokens - 1, head);
            if (std::memcmp(value, new_values_.data() + at, width * 2) != 0) return false; // as wide as keys
        }
    return true;
}

std::string decode_data::compare(const std::function<std::vector<const float*>(std::int64_t, std::int64_t)>& output,
                                 bool exact_probabilities, double& error) const {
    if (!newest_are_there()) return "the newest token is not in the cache as it was appended";
    comparison compared;
    const std::vector<std::int64_t> positions = planted_positions();
    double newest = 0.0; // share; where heads share a key it is planted for the last of them
    for (const sample& at : samples_) {
        const answer expected = attend_again(place_, query(at), at.request, at.head / (case_.q_heads / case_.kv_heads),
                                             case_.tokens, case_.scale(), positions);
        newest = expected.shares.back();
        for (const float* const got : output(at.request, at.head))
            for (std::size_t d = 0; d < expected.output.size(); ++d)
                compared.add(static_cast<double>(got[d]), expected.output[d]);
    }
    error = compared.relative_l2();
    const double bound = attention_bound(exact_probabilities, case_.tokens);
    char text[160];
    if (newest < 0.01) {
        std::snprintf(text, sizeof(text), "the newest token has only %.2g of the weight: the data can not tell",
                      newest);
        return text;
    }
    if (error <= bound) return {};
    std::snprintf(text, sizeof(text), "relative L2 error %.2g, at most %.2g is right", error, bound);
    return text;
}

} // namespace bench
