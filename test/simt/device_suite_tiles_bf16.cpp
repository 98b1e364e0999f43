// The attention kernels for a cache of the queries' type, which the suites share.
#include "suite_tiles.hpp"

namespace ctxpar::inline v0_1::cuda {

CTXPAR_SUITE_TILES_BF16(template)

} // namespace ctxpar::inline v0_1::cuda
