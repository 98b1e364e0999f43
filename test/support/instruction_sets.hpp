// The instruction sets of the CPU kernels that this processor has, which tests run one after the other.
#pragma once

#include <vector>

#include <ctxpar/backend/cpu/isa.hpp>

namespace ctxpar_test {

inline std::vector<ctxpar::cpu::isa> instruction_sets() {
    using ctxpar::cpu::isa;
    std::vector<isa> list;
    for (const isa set : {isa::portable, isa::avx2, isa::avx512})
        if (set <= ctxpar::cpu::best_isa()) list.push_back(set);
    return list;
}

} // namespace ctxpar_test
