// The prefill suite of storage types, scales and layouts, over the ranks of an emulated device.
#include "../prefill/storage_test.cpp"
