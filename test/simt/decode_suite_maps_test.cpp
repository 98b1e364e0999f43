// The decode suite of maps of heads, over the ranks of an emulated device.
#include "../decode/maps_test.cpp"
