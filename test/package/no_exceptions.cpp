// Built with -fno-exceptions and with every header of the lower layers: an error prints its sentence and aborts.
#include <ctxpar/comm/local.hpp>
#include <ctxpar/layout/interleave.hpp>

int main() {
    return static_cast<int>(ctxpar::make_ownership(4, 0).ranks);
}
