// The decode suite of masks, sinks and soft caps, over the ranks of an emulated device.
#include "../decode/masks_test.cpp"
