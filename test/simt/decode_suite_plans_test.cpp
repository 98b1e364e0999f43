// The decode suite of steps that are alive at once, over the ranks of an emulated device.
#include "../decode/plans_test.cpp"
