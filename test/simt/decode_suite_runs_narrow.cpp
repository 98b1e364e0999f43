// What the decode suites run, for the ranks of an emulated device.
#include "suite_tiles.hpp"

#include "../decode/runs_narrow.cpp"
