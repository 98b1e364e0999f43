// An error thrown in one shared library is caught by its type in another one, and here.
#include <cstdio>

#include <ctxpar/core/error.hpp>

extern "C" void throw_config_error();
extern "C" bool catch_config_error();

int main() {
    if (!catch_config_error()) {
        std::puts("the other shared library did not know the error");
        return 1;
    }
    try {
        throw_config_error();
    } catch (const ctxpar::config_error& refused) {
        return refused.code() == "interleave" ? 0 : 1;
    } catch (...) {
    }
    std::puts("the executable did not know the error");
    return 1;
}
