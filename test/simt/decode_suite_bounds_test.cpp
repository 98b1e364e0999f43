// The decode suite of plans from bounds, over the ranks of an emulated device.
#include "../decode/bounds_test.cpp"
