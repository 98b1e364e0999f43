// The decode suite of head counts that ranks do not divide, over the ranks of an emulated device.
#include "../decode/undivided_heads_test.cpp"
