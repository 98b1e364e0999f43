// The prefill suite of rows that are scattered and restored, over the ranks of an emulated device.
#include "../prefill/restore_test.cpp"
