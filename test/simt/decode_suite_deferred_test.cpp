// Partial sums of the decode suites, over the ranks of an emulated device.
#include "../decode/deferred_test.cpp"
