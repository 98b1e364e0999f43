// A user's first program: asks the library a question, and hands it a mistake.
#include <cstdio>

#include <ctxpar/ctxpar.hpp>

int main() {
    const ctxpar::ownership law = ctxpar::make_ownership(4, 16);
    std::printf("ctxpar %d.%d.%d: rank 1 of 4 holds %lld of 100 tokens\n", CTXPAR_VERSION_MAJOR, CTXPAR_VERSION_MINOR,
                CTXPAR_VERSION_PATCH, static_cast<long long>(law.local_len(100, 1)));
    if (law.local_len(100, 1) != 32) return 1;
    try {
        ctxpar::make_ownership(4, 0);
    } catch (const ctxpar::config_error& refused) {
        std::printf("%s\n", refused.what());
        return refused.code() == "interleave" ? 0 : 1;
    }
    return 1;
}
