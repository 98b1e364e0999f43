// The MPI communicator: what a collective delivers, for every size of message; groups; refusals.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/comm/mpi.hpp>

using namespace ctxpar;

namespace {

constexpr std::size_t in_record = detail::mpi_record::payload_bytes;

mpi_options with(check_level checks, std::size_t message_bytes = 1 << 20) {
    return {std::chrono::seconds(60), checks, message_bytes};
}

// Byte i of what rank `from` sends to rank `to` in some round.
std::byte sent_byte(int from, int to, std::size_t i, int round) {
    const std::uint64_t x =
        (static_cast<std::uint64_t>(from) * 131 + static_cast<std::uint64_t>(to) * 31 + i) * 0x9e3779b97f4a7c15ULL;
    return static_cast<std::byte>((x >> 56) + static_cast<std::uint64_t>(round));
}
std::vector<std::byte> sent_bytes(int from, int to, std::size_t count, int round) {
    std::vector<std::byte> bytes(count);
    for (std::size_t i = 0; i < count; ++i) bytes[i] = sent_byte(from, to, i, round);
    return bytes;
}
bool is_sent(const std::byte* bytes, int from, int to, std::size_t count, int round) {
    for (std::size_t i = 0; i < count; ++i)
        if (bytes[i] != sent_byte(from, to, i, round)) return false;
    return true;
}

// What every rank throws in a call, as "code"; empty where it throws nothing.
template <class Fn>
std::string code_of(const Fn& fn) {
    try {
        fn();
    } catch (const comm_error& problem) {
        return problem.code();
    } catch (const config_error& problem) {
        return problem.code();
    }
    return "";
}

} // namespace

TEST_CASE("mpi: a gather delivers every rank's part, in a record, in a message and in several") {
    for (const std::size_t message_bytes : {std::size_t(1000), std::size_t(1) << 20}) {
        mpi_communicator comm(MPI_COMM_WORLD, with(check_level::collective, message_bytes));
        int round = 0;
        for (const std::size_t bytes : {std::size_t(0), std::size_t(1), in_record - 1, in_record, in_record + 1,
                                        std::size_t(5000), std::size_t(6000), std::size_t(200'001)}) {
            CAPTURE(bytes);
            CAPTURE(message_bytes);
            const auto n = static_cast<std::size_t>(comm.size());
            const auto own = static_cast<std::size_t>(comm.rank());
            std::vector<std::byte> recv(n * bytes);
            const std::vector<std::byte> send = sent_bytes(comm.rank(), 0, bytes, ++round);
            comm.all_gather(send.data(), recv.data(), bytes, {}, {"queries", scalar_type::bf16, 7});
            for (int r = 0; r < comm.size(); ++r)
                CHECK(is_sent(recv.data() + static_cast<std::size_t>(r) * bytes, r, 0, bytes, round));
            // In place.
            std::fill(recv.begin(), recv.end(), std::byte{});
            if (bytes > 0) std::memcpy(recv.data() + own * bytes, send.data(), bytes);
            comm.all_gather(recv.data() + own * bytes, recv.data(), bytes, {});
            for (int r = 0; r < comm.size(); ++r)
                CHECK(is_sent(recv.data() + static_cast<std::size_t>(r) * bytes, r, 0, bytes, round));
        }
    }
}

TEST_CASE("mpi: part i of all_to_all goes to rank i") {
    for (const std::size_t message_bytes : {std::size_t(999), std::size_t(1) << 20}) {
        mpi_communicator comm(MPI_COMM_WORLD, with(check_level::basic, message_bytes));
        const int n = comm.size();
        for (const std::size_t bytes : {std::size_t(3), in_record, in_record + 1, std::size_t(70'000)}) {
            std::vector<std::byte> send, recv(static_cast<std::size_t>(n) * bytes);
            for (int r = 0; r < n; ++r) {
                const std::vector<std::byte> part = sent_bytes(comm.rank(), r, bytes, 1);
                send.insert(send.end(), part.begin(), part.end());
            }
            comm.all_to_all(send.data(), recv.data(), bytes, {});
            for (int r = 0; r < n; ++r)
                CHECK(is_sent(recv.data() + static_cast<std::size_t>(r) * bytes, r, comm.rank(), bytes, 1));
        }
    }
}

TEST_CASE("mpi: all_to_all takes any sizes, and counts what it sends") {
    mpi_communicator comm(MPI_COMM_WORLD, with(check_level::collective, 4096));
    const int n = comm.size();
    std::uint64_t sent_to_others = 0;
    for (int round = 0; round < 60; ++round) {
        const auto size_of = [&](int from, int to) {
            std::minstd_rand random(static_cast<unsigned>(round * 1000 + from * 31 + to * 7 + 1));
            random.discard(5);
            const std::size_t kinds[] = {0, random() % 100, in_record - 1 + random() % 3, random() % 20'000};
            return kinds[random() % 4];
        };
        std::vector<std::size_t> send_bytes, recv_bytes;
        std::vector<std::byte> send;
        for (int r = 0; r < n; ++r) {
            send_bytes.push_back(size_of(comm.rank(), r));
            recv_bytes.push_back(size_of(r, comm.rank()));
            const std::vector<std::byte> part = sent_bytes(comm.rank(), r, send_bytes.back(), round);
            send.insert(send.end(), part.begin(), part.end());
            if (r != comm.rank()) sent_to_others += send_bytes.back();
        }
        std::vector<std::byte> recv(std::accumulate(recv_bytes.begin(), recv_bytes.end(), std::size_t{0}) + 1);
        comm.all_to_all(send.data(), send_bytes, recv.data(), recv_bytes, {});
        std::size_t at = 0;
        for (int r = 0; r < n; ++r) {
            CHECK(is_sent(recv.data() + at, r, comm.rank(), recv_bytes[static_cast<std::size_t>(r)], round));
            at += recv_bytes[static_cast<std::size_t>(r)];
        }
    }
    CHECK(comm.bytes_sent() == sent_to_others);
}

TEST_CASE("mpi: ranks that run ahead of others disturb nothing") {
    mpi_communicator comm(MPI_COMM_WORLD, with(check_level::collective));
    for (int round = 0; round < 200; ++round) {
        // One rank is slow, so that the records of the next call reach it in this one.
        if (round % comm.size() == comm.rank() && round % 10 == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const std::size_t bytes = round % 7 == 0 ? 9000 : 16;
        const std::vector<std::byte> send = sent_bytes(comm.rank(), 0, bytes, round);
        std::vector<std::byte> recv(bytes * static_cast<std::size_t>(comm.size()));
        comm.all_gather(send.data(), recv.data(), bytes, {});
        for (int r = 0; r < comm.size(); ++r)
            REQUIRE(is_sent(recv.data() + static_cast<std::size_t>(r) * bytes, r, 0, bytes, round));
        comm.agree(static_cast<std::uint64_t>(round), "round", {});
    }
    CHECK(comm.bytes_sent() == static_cast<std::uint64_t>(comm.size() - 1) * (29 * 9000 + 171 * 16));
}

TEST_CASE("mpi: the ranks of a color are a group in the order of their keys, beside the whole") {
    mpi_communicator world(MPI_COMM_WORLD, with(check_level::collective));
    const int n = world.size();
    const int color = world.rank() % 2;
    std::optional<mpi_communicator> part = world.split(color, -world.rank());
    REQUIRE(part.has_value());
    const int members = (n + 1 - color) / 2;
    CHECK(part->size() == members);
    const auto number_of = [&](int rank) { return 2 * (members - 1 - rank) + color; };
    CHECK(number_of(part->rank()) == world.rank());
    std::optional<mpi_communicator> none = world.split(world.rank() == 0 ? 0 : -1, 0);
    CHECK(none.has_value() == (world.rank() == 0));
    if (none) CHECK(none->size() == 1);
    std::optional<mpi_communicator> again = part->split(0, part->rank());
    for (int round = 0; round < 20; ++round) {
        std::vector<int> all(static_cast<std::size_t>(n)), some(static_cast<std::size_t>(members)), same(some.size());
        const int own = world.rank() + 100 * round;
        world.all_gather(&own, all.data(), sizeof own, {});
        // Groups of the same ranks, in any order: messages of one are not taken for the other's.
        if (round % 3 == 0) again->all_gather(&own, same.data(), sizeof own, {});
        part->all_gather(&own, some.data(), sizeof own, {});
        if (round % 3 != 0) again->all_gather(&own, same.data(), sizeof own, {});
        part->agree(static_cast<std::uint64_t>(round), "the round", {});
        for (int r = 0; r < n; ++r) CHECK(all[static_cast<std::size_t>(r)] == r + 100 * round);
        for (int r = 0; r < members; ++r) CHECK(some[static_cast<std::size_t>(r)] == number_of(r) + 100 * round);
        CHECK(some == same);
    }
}

TEST_CASE("mpi: ranks that do not agree all learn which") {
    mpi_communicator comm(MPI_COMM_WORLD, with(check_level::basic));
    if (comm.size() == 1) return;
    comm.agree(5, "plan", {});
    const bool differs = comm.rank() == comm.size() - 1;
    std::string text;
    const auto disagree = [&] {
        try {
            comm.agree(differs ? 6 : 5, "plan", {});
        } catch (const comm_error& problem) {
            text = problem.what();
            throw;
        }
    };
    CHECK(code_of(disagree) == "digest");
    CHECK(text.find("rank " + std::to_string(comm.size() - 1) + " called agree on plan") != std::string::npos);
    CHECK(code_of([&] { comm.all_gather(nullptr, nullptr, 0, {}); }) == "dead");
    CHECK(code_of([&] { comm.check(); }) == "digest");
    CHECK(code_of([&] { comm.wait({}); }) == "dead");
    MPI_Barrier(MPI_COMM_WORLD);
    mpi_communicator unchecked(MPI_COMM_WORLD, with(check_level::off));
    unchecked.agree(differs ? 6 : 5, "plan", {});
    unchecked.check();
}

TEST_CASE("mpi: calls that do not fit together are named, at the level that compares them") {
    const auto differing = [](check_level checks, auto call) {
        MPI_Barrier(MPI_COMM_WORLD);
        mpi_communicator comm(MPI_COMM_WORLD, with(checks));
        std::vector<std::byte> send(40'000), recv(40'000 * static_cast<std::size_t>(comm.size()));
        return code_of([&] { call(comm, comm.rank() == 0, send.data(), recv.data()); });
    };
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1) return;
    using bytes = std::byte*;
    for (const check_level checks : {check_level::off, check_level::collective}) {
        CHECK(differing(checks, [](mpi_communicator& comm, bool first, bytes send, bytes recv) {
                  first ? comm.all_gather(send, recv, 8, {}) : comm.all_to_all(send, recv, 8, {});
              }) == "mismatch");
        for (const std::size_t less : {std::size_t(8), std::size_t(30'000)})
            CHECK(differing(checks, [&](mpi_communicator& comm, bool first, bytes send, bytes recv) {
                      comm.all_gather(send, recv, first ? less : 40'000, {});
                  }) == "mismatch");
    }
    const auto of_types = [](mpi_communicator& comm, bool first, bytes send, bytes recv) {
        comm.all_gather(send, recv, 8, {}, {"queries", first ? scalar_type::bf16 : scalar_type::f16, 1});
    };
    CHECK(differing(check_level::collective, of_types) == "mismatch");
    CHECK(differing(check_level::basic, of_types) == "");
    // Two users of one communicator whose steps come in another order on one rank.
    const auto of_plans = [](mpi_communicator& comm, bool first, bytes send, bytes recv) {
        comm.all_gather(send, recv, 8, {}, {"queries", scalar_type::bf16, first ? 1u : 2u});
    };
    CHECK(differing(check_level::collective, of_plans) == "digest");
    MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("mpi: ranks of other settings are refused at their first call") {
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1) return;
    {
        mpi_communicator comm(MPI_COMM_WORLD, with(rank == 0 ? check_level::collective : check_level::basic));
        CHECK(code_of([&] { comm.all_gather(nullptr, nullptr, 0, {}); }) != "");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    {
        mpi_communicator comm(MPI_COMM_WORLD, with(check_level::basic, rank == 0 ? 1000 : 2000));
        CHECK(code_of([&] { comm.all_gather(nullptr, nullptr, 0, {}); }) != "");
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("mpi: a rank that unwinds tells its peers, and is known by check") {
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1) return;
    if (rank == 0) {
        const auto unwind = [] {
            mpi_communicator comm(MPI_COMM_WORLD, with(check_level::basic));
            comm.agree(1, "start", {});
            throw std::runtime_error("the engine's own trouble");
        };
        CHECK_THROWS_AS(unwind(), std::runtime_error);
        mpi_communicator other(MPI_COMM_WORLD, with(check_level::basic));
        other.fail("of no blocks left");
    } else {
        mpi_communicator comm(MPI_COMM_WORLD, with(check_level::basic));
        comm.agree(1, "start", {});
        CHECK(code_of([&] { comm.agree(2, "step", {}); }) == "peer_error");
        mpi_communicator other(MPI_COMM_WORLD, with(check_level::basic));
        std::string code;
        while (code.empty()) code = code_of([&] { other.check(); }); // never blocks, so it is asked until it knows
        CHECK(code == "peer_error");
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("mpi: a rank's own mistakes are refused before its peers see them") {
    mpi_communicator comm(MPI_COMM_WORLD, with(check_level::collective));
    std::vector<std::byte> memory(1000 * static_cast<std::size_t>(comm.size()));
    const std::vector<std::size_t> wrong(static_cast<std::size_t>(comm.size()) + 1, 1);
    CHECK(code_of([&] { comm.all_gather(nullptr, memory.data(), 8, {}); }) == "null");
    CHECK(code_of([&] { comm.all_to_all(memory.data(), memory.data(), 8, {}); }) == "aliasing");
    CHECK(code_of([&] { comm.all_to_all(memory.data(), wrong, memory.data() + 500, wrong, {}); }) == "sizes");
    comm.agree(1, "that nothing was sent", {});
    mpi_communicator moved = std::move(comm);
    CHECK(code_of([&] { comm.check(); }) == "moved"); // NOLINT
    moved.agree(2, "that it moved", {});
    CHECK(code_of([] { mpi_communicator(MPI_COMM_NULL); }) == "null");
    CHECK(code_of([] { mpi_communicator(MPI_COMM_WORLD, {std::chrono::milliseconds(0)}); }) == "timeout");
    CHECK(code_of([] { mpi_communicator(MPI_COMM_WORLD, {.message_bytes = 0}); }) == "message_bytes");
    CHECK(code_of([] { mpi_communicator(MPI_COMM_WORLD, {.message_bytes = std::size_t(1) << 31}); }) ==
          "message_bytes");
}
