// The one CUDA file of an engine whose C++ files hold the decoder itself.
#include <ctxpar/backend/cuda/decode_operations.cuh>

#include "engine.hpp"

template struct ctxpar::decode_operations<policy>;
