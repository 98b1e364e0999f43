// Rows of random numbers that follow from a seed and a place, so that whoever needs a row can make it again.
#pragma once

#include <cstdint>

namespace demo {

// What a row is for.
enum class row_use : std::uint64_t { key, value, query, new_query };

std::uint32_t row_hash(std::uint64_t seed, row_use use, std::int64_t layer, std::int64_t request, std::int64_t place,
                       std::int64_t head);

// Fills to[0 .. count) with t * scale, |t| <= 255, drawn from a bell curve of mean 0 and variance random_variance.
void random_row(std::uint32_t row, std::int64_t count, float scale, float* to);

inline constexpr double random_variance = 5461.0; // of t: four bytes, halved

} // namespace demo
