// How much memory the example needs.
#pragma once

#include <cstdint>

#include "problem.hpp"

namespace demo {

// About how many bytes the whole run takes.
double needed_memory(const problem& all);

// The largest power of two of tokens, at most `all.tokens`, that fits `bytes`; 0 where not even 1024 tokens do.
std::int64_t fitting_tokens(problem all, double bytes);

} // namespace demo
