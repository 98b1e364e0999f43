// Steps of ranks that share a process: collectives whose bytes are known, given to a stream one after another and
// judged at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "local_cuda_ranks.hpp"

namespace local_cuda {

using bytes = std::vector<std::uint8_t>;
inline constexpr int everyone = 99; // a receiver
inline constexpr std::uint8_t untouched = 0xEE;

// Byte i of what `from` sends to `to` in a step.
inline std::uint8_t byte_of(int from, int to, std::size_t i, int salt) {
    return static_cast<std::uint8_t>(static_cast<std::size_t>(from * 7 + to * 31 + salt * 101) + i * 13 + i / 251);
}

inline void append_part(bytes& to, int from, int receiver, std::size_t count, int salt) {
    for (std::size_t i = 0; i < count; ++i) to.push_back(byte_of(from, receiver, i, salt));
}

// Sizes of what each rank sends to each.
struct size_table {
    int num_ranks = 1;
    std::vector<std::size_t> sizes;
    std::size_t operator()(int from, int to) const { return sizes[static_cast<std::size_t>(from * num_ranks + to)]; }
    std::vector<std::size_t> sent_by(int rank) const {
        std::vector<std::size_t> row;
        for (int to = 0; to < num_ranks; ++to) row.push_back((*this)(rank, to));
        return row;
    }
    std::vector<std::size_t> received_by(int rank) const {
        std::vector<std::size_t> column;
        for (int from = 0; from < num_ranks; ++from) column.push_back((*this)(from, rank));
        return column;
    }
};

inline size_table uneven(int num_ranks, std::size_t unit) {
    size_table table{num_ranks, {}};
    for (int from = 0; from < num_ranks; ++from)
        for (int to = 0; to < num_ranks; ++to) // zero for some pairs, also for a rank with itself
            table.sizes.push_back(static_cast<std::size_t>((from * 3 + to * 5) % 4) * unit);
    return table;
}

// What a rank gives to one of its streams without ever waiting for it. Buffers are used again by every step, so that
// a step overwrites what the one before has sent; what was received is put aside by the stream, and judged at the end.
class rank_steps {
public:
    rank_steps(const place& here, cudaStream_t stream)
        : comm_(here.comm), stream_(stream), send_(room), recv_(room), shown_(room) {}

    void gathers(std::size_t count, int salt, bool in_place) {
        bytes own, want;
        append_part(own, comm_.rank(), everyone, count, salt);
        for (int from = 0; from < comm_.size(); ++from) append_part(want, from, everyone, count, salt);
        spoil(recv_, want.size() + 1);
        std::uint8_t* const from =
            in_place ? recv_.data() + static_cast<std::size_t>(comm_.rank()) * count : send_.data();
        write(from, own);
        comm_.all_gather(from, recv_.data(), count, stream_, {"queries"});
        if (!in_place) spoil(send_, count); // at once, though peers have not read it
        want.push_back(untouched);
        expect(recv_.data(), want);
    }

    void exchanges(std::size_t count, int salt) {
        bytes own, want;
        for (int peer = 0; peer < comm_.size(); ++peer) {
            append_part(own, comm_.rank(), peer, count, salt);
            append_part(want, peer, comm_.rank(), count, salt);
        }
        spoil(recv_, want.size() + 1);
        write(send_.data(), own);
        comm_.all_to_all(send_.data(), recv_.data(), count, stream_, {"partials"});
        spoil(send_, own.size());
        want.push_back(untouched);
        expect(recv_.data(), want);
    }

    void exchanges(const size_table& table, int salt) {
        const std::vector<std::size_t> send_sizes = table.sent_by(comm_.rank());
        const std::vector<std::size_t> recv_sizes = table.received_by(comm_.rank());
        bytes own, want;
        for (int peer = 0; peer < comm_.size(); ++peer) {
            append_part(own, comm_.rank(), peer, table(comm_.rank(), peer), salt);
            append_part(want, peer, comm_.rank(), table(peer, comm_.rank()), salt);
        }
        spoil(recv_, want.size() + 1);
        write(send_.data(), own);
        comm_.all_to_all(send_.data(), send_sizes, recv_.data(), recv_sizes, stream_, {"tokens"});
        spoil(send_, own.size());
        want.push_back(untouched);
        expect(recv_.data(), want);
    }

    // With an exchange and a gather while the memory is published.
    void publishes(std::size_t count, int salt) {
        bytes own;
        append_part(own, comm_.rank(), everyone, count, salt);
        write(shown_.data(), own);
        const std::span<const void* const> pointers = comm_.publish(shown_.data(), count, stream_, {"partials"});
        right_ = right_ && pointers.size() == static_cast<std::size_t>(comm_.size());
        right_ = right_ && pointers[static_cast<std::size_t>(comm_.rank())] == shown_.data();
        if (salt % 2 == 0) exchanges(3, salt + 1);
        if (salt % 3 == 0) gathers(5, salt + 2, false);
        for (int from = 0; from < comm_.size(); ++from) {
            bytes want;
            append_part(want, from, everyone, count, salt);
            expect(pointers[static_cast<std::size_t>(from)], want);
        }
        comm_.release(stream_);
        spoil(shown_, count);
    }

    void agrees(std::uint64_t digest) { comm_.agree(digest, "plan", stream_); }

    // Whether all of it was right. Waits.
    bool right() {
        cudaStreamSynchronize(stream_); // does the work, where wait() only asks
        comm_.wait(stream_);
        for (const auto& [got, want] : received_) right_ = right_ && got == want;
        return right_;
    }

private:
    static constexpr std::size_t room = 80'000;

    void write(std::uint8_t* to, const bytes& values) {
        cudaMemcpyAsync(to, values.data(), values.size(), cudaMemcpyHostToDevice, stream_);
    }
    void spoil(bytes& memory, std::size_t count) { cudaMemsetAsync(memory.data(), untouched, count, stream_); }
    void expect(const void* from, bytes want) {
        bytes& got = received_.emplace_back(bytes(want.size()), want).first;
        cudaMemcpyAsync(got.data(), from, got.size(), cudaMemcpyDeviceToHost, stream_);
    }

    local_cuda_communicator& comm_;
    cudaStream_t stream_;
    bytes send_, recv_, shown_;
    std::deque<std::pair<bytes, bytes>> received_; // what came, what should have
    bool right_ = true;
};

// A sequence of steps that is the same on every rank.
struct step {
    int kind = 0;
    std::size_t count = 0;
    size_table table;
};

inline std::vector<step> any_steps(int num_ranks, int count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<step> steps;
    for (int i = 0; i < count; ++i) {
        step next{static_cast<int>(random() % 6), random() % 5 == 0 ? 0 : random() % 200, {num_ranks, {}}};
        for (int pair = 0; next.kind == 3 && pair < num_ranks * num_ranks; ++pair)
            next.table.sizes.push_back(random() % 3 == 0 ? 0 : random() % 60);
        steps.push_back(next);
    }
    return steps;
}

inline void make(rank_steps& on, const step& now, int salt) {
    if (now.kind <= 1) on.gathers(now.count, salt, now.kind == 1);
    if (now.kind == 2) on.exchanges(now.count, salt);
    if (now.kind == 3) on.exchanges(now.table, salt);
    if (now.kind == 4) on.publishes(now.count, salt);
    if (now.kind == 5) on.agrees(now.count);
}

} // namespace local_cuda
