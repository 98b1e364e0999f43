// The attention kernels for an 8-bit cache, which the suites share.
#include "suite_tiles.hpp"

namespace ctxpar::inline v0_1::cuda {

CTXPAR_SUITE_TILES_FP8(template)

} // namespace ctxpar::inline v0_1::cuda
