// What the prefill suites run, for the ranks of an emulated device.
#include "suite_tiles.hpp"

#include "../prefill/runs_narrow.cpp"
