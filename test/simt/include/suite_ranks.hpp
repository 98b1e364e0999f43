// The ranks over which the exactness suites run: here, those of emulated devices. On the include path before the file
// of the same name that chooses the CPU.
#pragma once

#include <simt/device_ranks.hpp>

namespace ctxpar_test {

using suite_ranks = device_ranks;

} // namespace ctxpar_test
