// The seeded faults of the decode suites, over the ranks of an emulated device.
#include "../decode/seeded_faults_test.cpp"
