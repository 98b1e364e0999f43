// The suite of caches that go from one layout to another, over the ranks of an emulated device.
#include <ctxpar/cuda.cuh>

#include "../migrate/moves_test.cpp"
