// The reference: attention in double precision that reads a cache by plain arithmetic of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "random.hpp"

namespace bench {

// Where the tokens of all ranks lie. A rank's pool is [2][block][token][head][width], with by_head
// [2][block][head][token][width]; of MLA [block][token][width], whose first value_width elements are the value. Pools
// of the ranks follow one another.
struct cache_place {
    std::byte* base = nullptr;
    std::int64_t ranks = 1;
    std::int64_t interleave = 1;
    std::int64_t block = 16;           // tokens
    std::int64_t blocks = 0;           // of a rank's pool
    std::int64_t request_blocks = 0;   // of a request on a rank
    const std::int32_t* ids = nullptr; // [requests][request_blocks]
    std::int64_t kv_heads = 1;
    std::int64_t query_width = 128;
    std::int64_t value_width = 128;
    bool by_head = false;
    bool latent = false;

    std::int64_t token_elements() const { return kv_heads * (latent ? query_width : query_width + value_width); }
    std::int64_t pool_bytes() const { return blocks * block * token_elements() * 2; }

    // bf16 numbers of a token, as bits.
    std::uint16_t* key(std::int64_t request, std::int64_t position, std::int64_t head) const;
    const std::uint16_t* value(std::int64_t request, std::int64_t position, std::int64_t head) const;
};

struct answer {
    std::vector<double> output;
    std::vector<double> shares; // of the tokens that were asked for
};

// One query of bf16 numbers over tokens [0, tokens) of a request.
answer attend_again(const cache_place& place, const std::vector<float>& query, std::int64_t request, std::int64_t head,
                    std::int64_t tokens, double scale, const std::vector<std::int64_t>& asked);

// Relative L2 of all that was compared.
class comparison {
public:
    void add(double got, double expected) {
        difference_ += (got - expected) * (got - expected);
        size_ += expected * expected;
    }
    double relative_l2() const;

private:
    double difference_ = 0.0;
    double size_ = 0.0;
};

// What fp32 output owes where probabilities are kept as `P`.
double attention_bound(bool exact_probabilities, std::int64_t tokens);

} // namespace bench
