// What collectives among threads bring to each rank, compared with the definition: every byte is a function of who sent
// it, to whom, and where it stands in the part.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ctxpar/comm/local.hpp>

using namespace ctxpar;

namespace {

using bytes = std::vector<std::uint8_t>;

constexpr int everyone = 1000; // the receiver of a part that goes to all
constexpr std::uint8_t untouched = 0xa5;

std::uint8_t value(int from, int to, std::size_t at, int salt) {
    std::uint64_t x = static_cast<std::uint64_t>(from) * 131 + static_cast<std::uint64_t>(to) * 17 + at * 7 +
                      static_cast<std::uint64_t>(salt) * 101 + (at >> 8) * 13;
    return static_cast<std::uint8_t>(x ^ (x >> 8));
}

void append_part(bytes& memory, int from, int to, std::size_t count, int salt) {
    for (std::size_t at = 0; at < count; ++at) memory.push_back(value(from, to, at, salt));
}

// The bytes that rank i sends to rank j, for all i and j.
struct size_table {
    int num_ranks;
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

std::size_t sum(const std::vector<std::size_t>& values) {
    return std::accumulate(values.begin(), values.end(), std::size_t(0));
}

// Each function makes one collective on one rank, spoils the send buffer at once, as its owner may, and returns whether
// the rank has got what the definition says, and nothing beyond.

bool gathers(local_communicator& comm, std::size_t count, int salt, bool in_place) {
    const std::size_t own = static_cast<std::size_t>(comm.rank()) * count;
    bytes send, expected;
    append_part(send, comm.rank(), everyone, count, salt);
    for (int from = 0; from < comm.size(); ++from) append_part(expected, from, everyone, count, salt);
    bytes recv(expected.size() + 1, untouched);
    if (in_place) std::copy(send.begin(), send.end(), recv.begin() + static_cast<std::ptrdiff_t>(own));
    comm.all_gather(in_place ? recv.data() + own : send.data(), recv.data(), count, {}, {"queries"});
    std::fill(send.begin(), send.end(), std::uint8_t(0));
    expected.push_back(untouched);
    const bool right = recv == expected;
    std::fill(recv.begin(), recv.end(), std::uint8_t(0));
    return right;
}

bool exchanges(local_communicator& comm, std::size_t count, int salt) {
    bytes send, expected;
    for (int peer = 0; peer < comm.size(); ++peer) {
        append_part(send, comm.rank(), peer, count, salt);
        append_part(expected, peer, comm.rank(), count, salt);
    }
    bytes recv(expected.size() + 1, untouched);
    comm.all_to_all(send.data(), recv.data(), count, {}, {"partials"});
    std::fill(send.begin(), send.end(), std::uint8_t(0));
    expected.push_back(untouched);
    return recv == expected;
}

bool exchanges(local_communicator& comm, const size_table& table, int salt) {
    const std::vector<std::size_t> send_sizes = table.sent_by(comm.rank());
    const std::vector<std::size_t> recv_sizes = table.received_by(comm.rank());
    bytes send, expected;
    for (int peer = 0; peer < comm.size(); ++peer) {
        append_part(send, comm.rank(), peer, table(comm.rank(), peer), salt);
        append_part(expected, peer, comm.rank(), table(peer, comm.rank()), salt);
    }
    bytes recv(expected.size() + 1, untouched);
    comm.all_to_all(send.data(), send_sizes, recv.data(), recv_sizes, {}, {"tokens"});
    std::fill(send.begin(), send.end(), std::uint8_t(0));
    expected.push_back(untouched);
    return recv == expected;
}

// With an exchange and a gather while the memory is published.
bool publishes(local_communicator& comm, std::size_t count, int salt) {
    bytes shown;
    append_part(shown, comm.rank(), everyone, count, salt);
    const std::span<const void* const> pointers = comm.publish(shown.data(), count, {}, {"partials"});
    bool right = pointers.size() == static_cast<std::size_t>(comm.size());
    right = right && pointers[static_cast<std::size_t>(comm.rank())] == shown.data();
    right = exchanges(comm, 3, salt + 1) && right;
    right = gathers(comm, 5, salt + 2, false) && right;
    for (int from = 0; right && from < comm.size(); ++from) {
        bytes expected;
        append_part(expected, from, everyone, count, salt);
        const void* peer = pointers[static_cast<std::size_t>(from)];
        right = count == 0 || std::memcmp(peer, expected.data(), count) == 0;
    }
    comm.release({});
    std::fill(shown.begin(), shown.end(), std::uint8_t(0));
    return right;
}

size_table uneven(int num_ranks, std::size_t unit) {
    size_table table{num_ranks, {}};
    for (int from = 0; from < num_ranks; ++from)
        for (int to = 0; to < num_ranks; ++to) // zero for some pairs, also for a rank with itself
            table.sizes.push_back(static_cast<std::size_t>((from * 3 + to * 5) % 4) * unit);
    return table;
}

// Runs `fn(comm)`, which returns whether all was right, on each rank; returns on how many it was.
template <class Fn>
int ranks_where(int num_ranks, const local_options& options, Fn fn) {
    std::vector<char> right(static_cast<std::size_t>(num_ranks));
    run_local_ranks(num_ranks, options,
                    [&](local_communicator& comm) { right[static_cast<std::size_t>(comm.rank())] = fn(comm); });
    return std::accumulate(right.begin(), right.end(), 0);
}

template <class Fn>
std::string config_code_of(Fn fn) {
    try {
        fn();
    } catch (const config_error& problem) {
        return problem.code();
    }
    return "";
}

} // namespace

TEST_CASE("every collective brings what its definition says, for any number of ranks and bytes") {
    for (const int num_ranks : {1, 2, 3, 4, 5, 8})
        for (const std::size_t count : {0, 1, 7, 4096, 70001}) {
            CAPTURE(num_ranks);
            CAPTURE(count);
            CHECK(num_ranks == ranks_where(num_ranks, {}, [&](auto& c) { return gathers(c, count, 1, false); }));
            CHECK(num_ranks == ranks_where(num_ranks, {}, [&](auto& c) { return gathers(c, count, 2, true); }));
            CHECK(num_ranks == ranks_where(num_ranks, {}, [&](auto& c) { return exchanges(c, count, 3); }));
            const size_table table = uneven(num_ranks, count);
            CHECK(num_ranks == ranks_where(num_ranks, {}, [&](auto& c) { return exchanges(c, table, 4); }));
            CHECK(num_ranks == ranks_where(num_ranks, {}, [&](auto& c) { return publishes(c, count, 5); }));
        }
}

TEST_CASE("a thousand collectives in random order neither mix nor stop") {
    for (const int num_ranks : {1, 2, 3, 4, 5, 8}) {
        CAPTURE(num_ranks);
        struct step {
            int kind;
            std::size_t count;
            size_table table;
        };
        std::mt19937 random(static_cast<unsigned>(num_ranks));
        const auto size = [&] {
            const unsigned kind = random() % 100;
            return std::size_t(kind < 20 ? 0 : kind < 99 ? random() % 300 : 66000 + random() % 9000);
        };
        std::vector<step> steps;
        for (int i = 0; i < 1000; ++i) {
            step next{static_cast<int>(random() % 7), size(), {num_ranks, {}}};
            if (next.kind == 3)
                for (int pair = 0; pair < num_ranks * num_ranks; ++pair) next.table.sizes.push_back(size());
            steps.push_back(next);
        }
        const local_options options{.checks = check_level::collective};
        const auto run_step = [](local_communicator& comm, const step& now, int salt) {
            switch (now.kind) {
            case 0:
            case 1:
                return gathers(comm, now.count, salt, now.kind == 1);
            case 2:
                return exchanges(comm, now.count, salt);
            case 3:
                return exchanges(comm, now.table, salt);
            case 4:
                return publishes(comm, now.count, salt);
            case 5:
                comm.agree(now.count, "plan", {});
                return true;
            default:
                std::optional<local_communicator> part = comm.split(comm.rank() % 2, 0);
                return part->rank() == comm.rank() / 2 && exchanges(*part, now.count, salt);
            }
        };
        CHECK(num_ranks == ranks_where(num_ranks, options, [&](local_communicator& comm) {
                  bool right = true;
                  for (std::size_t i = 0; i < steps.size(); ++i)
                      right = run_step(comm, steps[i], static_cast<int>(i)) && right;
                  return right;
              }));
    }
}

TEST_CASE("a rank of one works alone, without a thread") {
    local_world world(1, {.checks = check_level::collective});
    local_communicator comm = world.rank(0);
    CHECK(gathers(comm, 100, 1, false));
    CHECK(gathers(comm, 100, 1, true));
    CHECK(exchanges(comm, 300000, 2));
    CHECK(exchanges(comm, size_table{1, {77}}, 3));
    CHECK(publishes(comm, 100, 4));
    comm.agree(5, "plan", {});
    comm.check();
    comm.wait({});
    CHECK(comm.bytes_sent() == 0);
    CHECK(comm.split(3, 3)->size() == 1);
    CHECK_FALSE(comm.split(-1, 0).has_value());
}

TEST_CASE("bytes sent are those that go to other ranks") {
    for (const int num_ranks : {1, 2, 3, 8}) {
        CAPTURE(num_ranks);
        const local_options options{.checks = check_level::collective};
        CHECK(num_ranks == ranks_where(num_ranks, options, [&](local_communicator& comm) {
                  const std::uint64_t peers = static_cast<std::uint64_t>(num_ranks) - 1;
                  std::uint64_t expected = 0;
                  bool right = comm.bytes_sent() == 0;
                  const auto sends = [&](std::uint64_t now) {
                      expected += now;
                      right = right && comm.bytes_sent() == expected;
                  };
                  gathers(comm, 1000, 1, false);
                  sends(peers * 1000);
                  gathers(comm, 10, 1, true);
                  sends(peers * 10);
                  exchanges(comm, 77, 2);
                  sends(peers * 77);
                  const size_table table = uneven(num_ranks, 9);
                  exchanges(comm, table, 3);
                  sends(sum(table.sent_by(comm.rank())) - table(comm.rank(), comm.rank()));
                  publishes(comm, 40, 4); // with an exchange of 3 and a gather of 5 bytes
                  sends(peers * (40 + 3 + 5));
                  comm.agree(1, "plan", {}); // the traffic of checks is not counted
                  comm.check();
                  comm.wait({});
                  std::optional<local_communicator> part = comm.split(0, 0);
                  gathers(*part, 6, 1, false);
                  sends(0);
                  return right && part->bytes_sent() == peers * 6;
              }));
    }
}

TEST_CASE("the rows and columns of a grid are groups of their own") {
    // Rank = row * 3 + column. Each rank learns who its neighbours are.
    const std::array<std::string, 6> rows{"012", "012", "012", "345", "345", "345"};
    const std::array<std::string, 6> columns{"03", "14", "25", "03", "14", "25"};
    CHECK(6 == ranks_where(6, {}, [&](local_communicator& comm) {
              const std::size_t rank = static_cast<std::size_t>(comm.rank());
              std::optional<local_communicator> row = comm.split(comm.rank() / 3, 0);
              std::optional<local_communicator> column = comm.split(comm.rank() % 3, comm.rank());
              const char name = static_cast<char>('0' + comm.rank());
              std::string in_row(3, '-'), in_column(2, '-');
              row->all_gather(&name, in_row.data(), 1, {});
              column->all_gather(&name, in_column.data(), 1, {});
              return row->size() == 3 && row->rank() == comm.rank() % 3 && column->size() == 2 &&
                     column->rank() == comm.rank() / 3 && in_row == rows[rank] && in_column == columns[rank];
          }));
}

TEST_CASE("split orders by key, then by rank, and leaves out negative colors") {
    const std::array<int, 8> colors{7, 0, 7, -1, 7, 0, -5, 7}, keys{5, 1, -2, 0, 5, 1, 0, 0};
    const std::array<std::string, 8> groups{"2704", "15", "2704", "", "2704", "15", "", "2704"};
    const local_options options{.timeout = std::chrono::seconds(77), .checks = check_level::collective};
    CHECK(8 == ranks_where(8, options, [&](local_communicator& comm) {
              const std::size_t rank = static_cast<std::size_t>(comm.rank());
              std::optional<local_communicator> group = comm.split(colors[rank], keys[rank]);
              if (!group) return groups[rank].empty();
              const char name = static_cast<char>('0' + comm.rank());
              std::string names(static_cast<std::size_t>(group->size()), '-');
              group->all_gather(&name, names.data(), 1, {});
              return names == groups[rank] && names[static_cast<std::size_t>(group->rank())] == name &&
                     group->checks() == check_level::collective;
          }));
}

TEST_CASE("two worlds are alive at once and do not meet each other") {
    local_world first(3), second(3);
    std::array<bool, 3> right{};
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r)
        threads.emplace_back([&, r] {
            local_communicator one = first.rank(r), other = second.rank(2 - r);
            bool all = other.rank() == 2 - r;
            for (int i = 0; i < 100; ++i) {
                all = gathers(one, 50, i, false) && all;
                all = exchanges(other, 60, i) && all;
            }
            right[static_cast<std::size_t>(r)] = all;
        });
    for (std::thread& thread : threads) thread.join();
    CHECK((right[0] && right[1] && right[2]));
}

TEST_CASE("a communicator outlives its world and may be moved, between collectives and while it has published") {
    auto world = std::make_unique<local_world>(2);
    std::vector<local_communicator> ranks;
    for (int r = 0; r < 2; ++r) ranks.push_back(world->rank(r));
    world.reset();
    std::array<bool, 2> right{};
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < 2; ++r)
        threads.emplace_back([&right, r, moved_in = std::move(ranks[r])]() mutable {
            bool all = gathers(moved_in, 8, 1, false);
            int shown = static_cast<int>(r) + 40;
            const std::span<const void* const> pointers = moved_in.publish(&shown, sizeof shown, {});
            local_communicator moved(std::move(moved_in));
            all = all && *static_cast<const int*>(pointers[1 - r]) == 41 - static_cast<int>(r);
            all = all && config_code_of([&] { moved.publish(&shown, sizeof shown, {}); }) == "publish";
            moved.release({});
            all = all && moved.rank() == static_cast<int>(r) && moved.bytes_sent() == 8 + sizeof shown;
            all = all && config_code_of([&] { moved_in.check(); }) == "moved";

            local_communicator alone = local_world(1).rank(0); // assigning leaves this world
            alone = std::move(moved);
            local_communicator& self = alone;
            alone = std::move(self);
            all = all && alone.size() == 2 && alone.bytes_sent() == 8 + sizeof shown;
            right[r] = gathers(alone, 9, 2, true) && all;
        });
    for (std::thread& thread : threads) thread.join();
    CHECK((right[0] && right[1]));
}

TEST_CASE("illegal arguments are refused before peers see them, and the world stays usable") {
    CHECK(config_code_of([] { local_world(0); }) == "ranks");
    CHECK(config_code_of([] { local_world(2, {.timeout = std::chrono::milliseconds(0)}); }) == "timeout");
    local_world world(2);
    CHECK(config_code_of([&] { world.rank(2); }) == "rank");
    CHECK(config_code_of([&] { world.rank(-1); }) == "rank");

    CHECK(2 == ranks_where(2, {}, [](local_communicator& comm) {
              std::array<char, 40> memory{};
              char* at = memory.data();
              const std::array<std::size_t, 2> one{1, 1};
              const std::array<std::size_t, 3> three{1, 1, 1};
              std::vector<std::string> codes;
              const auto expect = [&](const char* code, auto fn) {
                  codes.push_back(config_code_of(fn) == code ? "" : code);
              };
              // On rank 0 only: rank 1 waits in the gather below meanwhile.
              if (comm.rank() == 0) {
                  expect("null", [&] { comm.all_gather(nullptr, at, 4, {}); });
                  expect("aliasing", [&] { comm.all_gather(at + 1, at, 4, {}); });
                  expect("aliasing", [&] { comm.all_to_all(at, at, 4, {}); });
                  expect("aliasing", [&] { comm.all_to_all(at, one, at + 1, one, {}); });
                  expect("sizes", [&] { comm.all_to_all(at, three, at + 8, one, {}); });
                  expect("null", [&] { comm.publish(nullptr, 1, {}); });
                  expect("publish", [&] { comm.release({}); });
              }
              bool right = gathers(comm, 10, 1, false);
              comm.publish(at, 1, {});
              expect("publish", [&] { comm.publish(at, 1, {}); });
              comm.release({});
              expect("publish", [&] { comm.release({}); });
              for (const std::string& code : codes) right = right && code.empty();
              return exchanges(comm, 10, 2) && right;
          }));
}

TEST_CASE("ranks that run are all of them, and their communicators carry the options") {
    std::array<int, 8> seen{};
    run_local_ranks(8, {.checks = check_level::off}, [&](local_communicator& comm) {
        seen[static_cast<std::size_t>(comm.rank())] += comm.size() == 8 && comm.checks() == check_level::off;
    });
    CHECK(seen == std::array<int, 8>{1, 1, 1, 1, 1, 1, 1, 1});
    CHECK(config_code_of([] { run_local_ranks(0, {}, [](local_communicator&) {}); }) == "ranks");
}
