// Compiled twice, as PART=part_a and PART=part_b, with different optimisation and different macros.
#include "part.hpp"

#include <array>
#include <cstddef>
#include <thread>
#include <typeinfo>

#include <ctxpar/layout/interleave.hpp>

namespace PART {

std::unique_ptr<ctxpar::local_world> make_world(ctxpar::check_level checks) {
    return std::make_unique<ctxpar::local_world>(2, ctxpar::local_options{.checks = checks});
}

// Two ranks gather for different plans; whether anyone notices is up to the check level of the world.
std::string outcome(ctxpar::local_world& world) {
    std::array<std::string, 2> outcomes;
    std::array<std::thread, 2> ranks;
    for (int rank = 0; rank < 2; ++rank) {
        const std::size_t index = static_cast<std::size_t>(rank);
        ranks[index] = std::thread([rank, &outcome = outcomes[index], comm = world.rank(rank)]() mutable {
            std::array<char, 2> gathered{};
            const char mine = rank == 0 ? 'x' : 'y';
            const ctxpar::collective_note note{"letters", ctxpar::scalar_type::bytes, rank == 0 ? 1u : 2u};
            try {
                comm.all_gather(&mine, gathered.data(), 1, {}, note);
                outcome.assign(gathered.begin(), gathered.end());
            } catch (const ctxpar::error& problem) {
                outcome = problem.code();
            }
        });
    }
    for (std::thread& rank : ranks) rank.join();
    return outcomes[0] + " " + outcomes[1];
}

// Sizes and names of types that objects hand to each other.
std::string layout() {
    return ctxpar::sentence(typeid(ctxpar::local_communicator).name(), " ", sizeof(ctxpar::local_communicator), " ",
                            sizeof(ctxpar::local_world), " ", sizeof(ctxpar::local_options), " ",
                            typeid(ctxpar::config_error).name(), " ", sizeof(ctxpar::config_error), " ",
                            sizeof(ctxpar::ownership), " ", sizeof(ctxpar::interleave<>), " ",
                            sizeof(ctxpar::collective_note));
}

} // namespace PART
