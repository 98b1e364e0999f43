// The prefill suite of results that repeat to the last bit, over the ranks of an emulated device.
#include "../prefill/same_bits_test.cpp"
