// Communicators over the emulated NCCL, each with a thread, and what came of them.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <ctxpar/comm/nccl.hpp>

#include "nccl_world.hpp"

namespace simt_test {

using namespace ctxpar;

// One rank of a test.
struct rank_place {
    nccl_communicator& comm;
    cudaStream_t stream;
};

// Calls fn in a thread for each rank, and gives what each threw.
inline std::vector<std::exception_ptr> outcomes(nccl_world& world, const nccl_options& options,
                                                const std::function<void(rank_place&)>& fn) {
    std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(world.size()));
    on_ranks(world.size(), [&](int rank) {
        try {
            nccl_communicator comm(world.comm(rank), options);
            rank_place place{comm, world.stream(rank)};
            fn(place);
        } catch (...) {
            thrown[static_cast<std::size_t>(rank)] = std::current_exception();
        }
    });
    return thrown;
}

inline void run_all(nccl_world& world, const nccl_options& options, const std::function<void(rank_place&)>& fn) {
    for (const std::exception_ptr& each : outcomes(world, options, fn))
        if (each != nullptr) std::rethrow_exception(each);
}

inline comm_failure failure_called(const char* code) {
    comm_failure failure;
    failure.code = code;
    return failure;
}

// The code of the config_error that call() throws.
template <class Call>
std::string refusal(const Call& call) {
    try {
        call();
    } catch (const config_error& problem) {
        return problem.code();
    }
    return "none";
}

// The failure that was thrown; its code is "none" for none.
inline comm_failure failure_in(const std::exception_ptr& thrown, std::string* text = nullptr) {
    if (thrown == nullptr) return failure_called("none");
    try {
        std::rethrow_exception(thrown);
    } catch (const comm_error& problem) {
        if (text != nullptr) *text = problem.what();
        return problem.failure();
    } catch (const std::exception& problem) {
        if (text != nullptr) *text = problem.what();
        return failure_called("other");
    }
}
inline comm_failure failure_of(const std::function<void()>& call, std::string* text = nullptr) {
    try {
        call();
    } catch (...) {
        return failure_in(std::current_exception(), text);
    }
    return failure_called("none");
}

} // namespace simt_test
