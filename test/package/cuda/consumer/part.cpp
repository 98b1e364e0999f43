// A shared library with an engine of its own; built twice, as PART=part_a and PART=part_b.
#include "run_engine.hpp"

extern "C" __attribute__((visibility("default"))) int PART() {
    return run_engine();
}
