// Another shared library that hides its symbols, and knows the error of the first by its type.
#include <ctxpar/core/error.hpp>

extern "C" void throw_config_error();

extern "C" __attribute__((visibility("default"))) bool catch_config_error() {
    try {
        throw_config_error();
    } catch (const ctxpar::comm_error&) {
        return false;
    } catch (const ctxpar::config_error& refused) {
        return refused.code() == "interleave";
    } catch (...) {
        return false;
    }
    return false;
}
