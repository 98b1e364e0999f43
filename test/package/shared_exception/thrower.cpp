// A shared library that hides its symbols and lets an error of ctxpar out.
#include <ctxpar/layout/interleave.hpp>

extern "C" __attribute__((visibility("default"))) void throw_config_error() {
    ctxpar::make_ownership(4, 0);
}
