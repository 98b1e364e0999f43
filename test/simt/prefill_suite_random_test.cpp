// Random deployments with prefills, over the ranks of an emulated device.
#include "../prefill/random_deployments_test.cpp"
