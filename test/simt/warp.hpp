// What the lanes of a warp do together and get results of: all 32 of them come, the last one works for all, and none of
// it orders memory. `what` is the name that a fault has for the operation.
#pragma once

#include <cstdint>
#include <source_location>

#include "block.hpp"

namespace simt {

// The word that `lane` gives.
std::uint32_t word_of_lane(std::uint32_t own, unsigned lane, const char* what, const std::source_location& where);

// A bit for each lane, set for those that say yes.
std::uint32_t lanes_of(bool yes, const char* what, const std::source_location& where);

// Four matrices of 8 x 8 elements of 16 bits, of which lane i brings row i % 8 of matrix i / 8: 16 bytes. Word m is two
// elements of matrix m: of row lane / 4 from column lane % 4 * 2 on, or, transposed, of that column from that row on.
struct four_words {
    std::uint32_t at[4];
};
four_words load_matrices(const void* row, bool transposed, const char* what, const std::source_location& where);

// sums + a * b for a of 16 x 16 and b of 16 x 8 elements of 16 bits, and sums of 16 x 8 floats. Every lane holds two
// neighbours in each word: of a, rows lane / 4 and 8 further, from column lane % 4 * 2 on and then from 8 further; of
// b, column lane / 4, from row lane % 4 * 2 on and 8 further; of the sums, those rows of a and columns from lane % 4
// * 2. Products are exact and their sums are rounded to a float once.
enum class half_format : std::uint8_t { bf16, f16 };
struct lane_sums {
    float at[4];
};
lane_sums multiply(lane_sums sums, four_words a, std::uint32_t b0, std::uint32_t b1, half_format format,
                   const char* what, const std::source_location& where);

// The same for the lanes of a warp at once: `lanes` are 32 lane_product, whose sums become the results.
struct lane_product {
    lane_sums sums;
    four_words a;
    std::uint32_t b[2];
};
void multiply_all(void* const* lanes, half_format format);
// In plain steps, for processors without vectors of four doubles.
void multiply_all_plainly(void* const* lanes, half_format format);

} // namespace simt
