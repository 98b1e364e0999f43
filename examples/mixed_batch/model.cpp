#include "model.hpp"

#include "common/blocks.hpp"
#include "common/random_rows.hpp"

namespace demo {
namespace {

constexpr float unit = 0x1p-6F;

void fill(std::vector<ctxpar::bf16>& to, const std::vector<placed_token>& tokens, ctxpar::head_range heads,
          const auto& make) {
    constexpr std::int64_t width = options::head_dim;
    std::vector<float> numbers(static_cast<std::size_t>(width));
    to.assign(tokens.size() * static_cast<std::size_t>(heads.count() * width), ctxpar::bf16{1.0F});
    ctxpar::bf16* at = to.data();
    for (const placed_token& token : tokens)
        for (std::int64_t head = heads.first; head < heads.last; ++head, at += width) {
            if (token.id < 0) continue;
            make(token, head, numbers.data());
            store_exact(numbers, at);
        }
}

} // namespace

void model::query(std::int64_t layer, placed_token token, std::int64_t head, float* to) const {
    random_row(row_hash(seed_, row_use::query, layer, token.id, token.position, head), options::head_dim, unit, to);
}
void model::key(std::int64_t layer, placed_token token, std::int64_t kv_head, float* to) const {
    random_row(row_hash(seed_, row_use::key, layer, token.id, token.position, kv_head), options::head_dim, unit, to);
}
void model::value(std::int64_t layer, placed_token token, std::int64_t kv_head, float* to) const {
    random_row(row_hash(seed_, row_use::value, layer, token.id, token.position, kv_head), options::head_dim, unit, to);
}

rank_rows::rank_rows(const model& weights, std::int64_t layer, const std::vector<placed_token>& tokens,
                     ctxpar::head_range q_heads, ctxpar::head_range kv_heads) {
    fill(q, tokens, q_heads,
         [&](placed_token token, std::int64_t head, float* to) { weights.query(layer, token, head, to); });
    fill(k, tokens, kv_heads,
         [&](placed_token token, std::int64_t head, float* to) { weights.key(layer, token, head, to); });
    fill(v, tokens, kv_heads,
         [&](placed_token token, std::int64_t head, float* to) { weights.value(layer, token, head, to); });
}

} // namespace demo
