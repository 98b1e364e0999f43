// The prefill suite of sinks, soft caps, LSEs, merges and partials, over the ranks of an emulated device.
#include "../prefill/options_test.cpp"
