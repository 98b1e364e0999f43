// What the prefill suites run, for the ranks of an emulated device.
#include "../prefill/runs_narrow.cpp"
