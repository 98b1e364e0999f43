// What a migrator refuses, over the ranks of an emulated device.
#include <ctxpar/cuda.cuh>

#include "../migrate/refusals_test.cpp"
