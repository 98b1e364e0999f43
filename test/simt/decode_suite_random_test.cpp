// Random decode deployments, over the ranks of an emulated device.
#include "../decode/random_test.cpp"
