// The decode suite of latent attention, over the ranks of an emulated device.
#include "../decode/mla_test.cpp"
