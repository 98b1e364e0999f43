// The prefill suite of batches of any composition, over the ranks of an emulated device.
#include "../prefill/batches_test.cpp"
