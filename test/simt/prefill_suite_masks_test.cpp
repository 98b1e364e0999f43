// The prefill suite of masks and draft trees, over the ranks of an emulated device.
#include "../prefill/masks_test.cpp"
