// The prefill suite of latent attention, absorbed and up-projected, over the ranks of an emulated device.
#include "../prefill/mla_test.cpp"
