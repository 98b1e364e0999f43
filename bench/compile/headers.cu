// The headers of gqa.cu and mla.cu, and no decoder.
#include "headers.cuh"
