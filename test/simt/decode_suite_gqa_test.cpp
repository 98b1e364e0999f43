// The decode suite of grouped-query attention, over the ranks of an emulated device.
#include "../decode/gqa_test.cpp"
