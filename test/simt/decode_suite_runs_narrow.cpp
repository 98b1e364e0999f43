// What the decode suites run, for the ranks of an emulated device.
#include "../decode/runs_narrow.cpp"
