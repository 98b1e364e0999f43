// All of the library, nothing of which is used.
#include <ctxpar/cuda.cuh>
