// The prefill suite of grouped-query attention, over the ranks of an emulated device.
#include "../prefill/gqa_test.cpp"
