// The instruction sets of the CPU kernels that tests can run, the emulated matrix unit among them where it is linked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ctxpar/backend/cpu/isa.hpp>

namespace ctxpar_test {

inline std::vector<ctxpar::cpu::isa> instruction_sets() {
    using ctxpar::cpu::isa;
    std::vector<isa> list;
    for (const isa set : {isa::portable, isa::avx2, isa::avx512, isa::amx})
        if (ctxpar::cpu::has(set)) list.push_back(set);
    return list;
}

// One of them, drawn from a source of random numbers that has below(n).
template <class Random>
ctxpar::cpu::isa any_instruction_set(Random& random) {
    const auto sets = instruction_sets();
    return sets[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(sets.size())))];
}

} // namespace ctxpar_test
