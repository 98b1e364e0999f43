// The collectives of a communicator, of any kind: what a rank sends and must find, and the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ctxpar/comm/communicator.hpp>

#include "random.hpp"

namespace bench {

enum class collective : std::uint8_t { all_gather, all_to_all, all_to_all_sizes };

inline const char* name_of(collective which) {
    if (which == collective::all_gather) return "all_gather";
    return which == collective::all_to_all ? "all_to_all" : "all_to_all_sizes";
}

// One rank's buffers: `bytes`, a multiple of 8, for each peer.
class exchange_buffers {
public:
    exchange_buffers(collective which, int rank, int size, std::size_t bytes)
        : which_(which), rank_(rank), size_(size), bytes_(bytes),
          send_(bytes / 8 * static_cast<std::size_t>(which == collective::all_gather ? 1 : size)),
          recv_(bytes / 8 * static_cast<std::size_t>(size), 0), counts_(static_cast<std::size_t>(size), bytes) {
        const int parts = which == collective::all_gather ? 1 : size;
        for (int to = 0; to < parts; ++to)
            for (std::size_t i = 0; i < bytes / 8; ++i)
                send_[static_cast<std::size_t>(to) * (bytes / 8) + i] = word(rank, to, i);
    }

    template <ctxpar::communicator C>
    void run(C& comm) {
        if (which_ == collective::all_gather) {
            comm.all_gather(send_.data(), recv_.data(), bytes_, {}, {"benchmark"});
        } else if (which_ == collective::all_to_all) {
            comm.all_to_all(send_.data(), recv_.data(), bytes_, {}, {"benchmark"});
        } else {
            comm.all_to_all(send_.data(), counts_, recv_.data(), counts_, {}, {"benchmark"});
        }
    }

    // Whether every part came from where it should.
    bool right() const {
        for (int from = 0; from < size_; ++from)
            for (std::size_t i = 0; i < bytes_ / 8; ++i)
                if (recv_[static_cast<std::size_t>(from) * (bytes_ / 8) + i] !=
                    word(from, which_ == collective::all_gather ? 0 : rank_, i))
                    return false;
        return true;
    }

private:
    static std::uint64_t word(int from, int to, std::size_t i) {
        return mixed((static_cast<std::uint64_t>(from) * 1000 + static_cast<std::uint64_t>(to)) * 1'000'000'000 + i);
    }

    collective which_;
    int rank_, size_;
    std::size_t bytes_;
    std::vector<std::uint64_t> send_, recv_;
    std::vector<std::size_t> counts_;
};

inline std::string name_of_exchange(const char* kind, collective which, int ranks, std::size_t bytes) {
    return std::string("collective/") + kind + "/" + name_of(which) + "/ranks:" + std::to_string(ranks) +
           "/bytes:" + std::to_string(bytes);
}

} // namespace bench
