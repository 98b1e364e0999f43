// The seeded faults of the prefill suites, over the ranks of an emulated device.
#include "../prefill/seeded_faults_test.cpp"
