// The seeded faults of the prefill suites, over the ranks of an emulated device.
#include "suite_tiles.hpp"

#include "../prefill/seeded_faults_test.cpp"
