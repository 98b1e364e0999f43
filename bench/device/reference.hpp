// The reference: attention in double precision over keys and values made again, by code that shares nothing with the
// library.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "numbers.cuh"

namespace bench {

// The output of one query head of one row over the first `tokens` tokens of a request.
std::vector<double> attend_again(const attention_numbers& all, std::int64_t request, std::int64_t row,
                                 std::int64_t head, std::int64_t tokens, double scale);

// Relative L2 of what was got, sum by sum.
class comparison {
public:
    void add(double got, double expected);
    double relative_l2() const;

private:
    double difference_ = 0.0;
    double size_ = 0.0;
};

// What fp32 output owes, by how a backend keeps probabilities.
template <class Backend>
double bound_of_attention() {
    return std::is_same_v<typename Backend::p_type, float> ? 2e-6 : 4e-3;
}

} // namespace bench
