// Ranks that share a process: their collectives move what they should for all numbers of ranks and orders of streams,
// wait for no device, and leave buffers alone once they say so.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "local_cuda_steps.hpp"

using namespace local_cuda;

namespace {

const local_options checked{.checks = check_level::collective};

} // namespace

TEST_CASE("every collective brings what its definition says, for any number of ranks and bytes") {
    for (const int num_ranks : {1, 2, 3, 4, 8})
        for (const std::size_t count : {0, 1, 7, 4096}) {
            CAPTURE(num_ranks);
            CAPTURE(count);
            const simt::device device({.seed = count + 3});
            const auto run = [&](auto make_step) {
                return ranks_where(num_ranks, checked, [&](place& here) {
                    rank_steps on(here, here.stream);
                    make_step(on);
                    return on.right();
                });
            };
            CHECK(num_ranks == run([&](rank_steps& on) { on.gathers(count, 1, false); }));
            CHECK(num_ranks == run([&](rank_steps& on) { on.gathers(count, 2, true); }));
            CHECK(num_ranks == run([&](rank_steps& on) { on.exchanges(count, 3); }));
            CHECK(num_ranks == run([&](rank_steps& on) { on.exchanges(uneven(num_ranks, count), 4); }));
            CHECK(num_ranks == run([&](rank_steps& on) { on.publishes(count, 6); }));
        }
}

TEST_CASE("collectives in random order, waited for at their end only, are right for every order of streams") {
    for (const int num_ranks : {1, 2, 3, 4, 8})
        for (std::uint64_t seed = 1; seed <= 12; ++seed) {
            CAPTURE(num_ranks);
            CAPTURE(seed);
            const simt::device device({.seed = seed});
            const std::vector<step> steps = any_steps(num_ranks, 30, static_cast<unsigned>(seed * 8) + 1);
            CHECK(num_ranks == ranks_where(num_ranks, checked, [&](place& here) {
                      rank_steps on(here, here.stream);
                      for (std::size_t i = 0; i < steps.size(); ++i) make(on, steps[i], static_cast<int>(i));
                      return on.right();
                  }));
        }
}

TEST_CASE("a rank may give each call another stream, and they are not ordered by it") {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        CAPTURE(seed);
        const simt::device device({.seed = seed});
        const std::vector<step> steps = any_steps(3, 40, static_cast<unsigned>(seed) + 900);
        CHECK(3 == ranks_where(3, checked, [&](place& here) {
                  rank_steps first(here, here.stream), second(here, new_stream()), third(here, nullptr);
                  const std::array<rank_steps*, 3> on{&first, &second, &third}; // the null stream is that of all ranks
                  for (std::size_t i = 0; i < steps.size(); ++i) make(*on[i % 3], steps[i], static_cast<int>(i));
                  return first.right() && second.right() && third.right();
              }));
    }
}

TEST_CASE("one stream may be that of all ranks, in whatever order their threads come") {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        const simt::device device({.seed = seed});
        const cudaStream_t stream = new_stream();
        const std::vector<step> steps = any_steps(4, 20, static_cast<unsigned>(seed) + 70);
        CHECK(4 == ranks_where(4, checked, [&](place& here) {
                  rank_steps on(here, stream);
                  for (std::size_t i = 0; i < steps.size(); ++i) make(on, steps[i], static_cast<int>(i));
                  return on.right();
              }));
    }
}

TEST_CASE("ranks on several devices exchange as those on one do") {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        const simt::device device({.seed = seed, .devices = 3});
        const std::vector<step> steps = any_steps(4, 20, static_cast<unsigned>(seed) + 500);
        CHECK(4 == ranks_where(4, checked, [&](place& here) {
                  rank_steps on(here, here.stream);
                  for (std::size_t i = 0; i < steps.size(); ++i) make(on, steps[i], static_cast<int>(i));
                  return on.right();
              }));
    }
}

TEST_CASE("a collective waits for no device, allocates nothing, launches nothing and copies a part a peer") {
    const simt::device device;
    const int num_ranks = 4;
    const simt::device_counts before = simt::device_counters();
    bytes memory(4096);
    CHECK(num_ranks == ranks_where(num_ranks, checked, [&](place& here) {
              const auto own = static_cast<std::size_t>(here.rank());
              std::uint8_t* const at = memory.data() + own * 1024;
              // Nothing of what the stream was given before is ever done while the calls are made.
              simt::enqueue(here.stream, "what comes before", [&] { return memory[4095] == 1; }, {});
              here.comm.all_gather(at, at + 100, 10, here.stream);
              here.comm.all_gather(at + 100 + own * 10, at + 100, 10, here.stream); // own part is in place
              here.comm.all_to_all(at, at + 200, 10, here.stream);
              const std::array<std::size_t, 4> sends{own == 1 ? 5U : 0U, 0, 0, 0};
              const std::array<std::size_t, 4> receives{0, own == 0 ? 5U : 0U, 0, 0}; // of rank 1 to rank 0 only
              here.comm.all_to_all(at, sends, at + 300, receives, here.stream);
              here.comm.publish(at, 10, here.stream);
              here.comm.release(here.stream);
              here.comm.agree(1, "plan", here.stream);
              here.comm.check();
              return cudaStreamQuery(here.stream) == cudaErrorNotReady;
          }));
    const simt::device_counts after = simt::device_counters();
    CHECK(after.synchronisations == before.synchronisations);
    CHECK(after.allocations == before.allocations);
    CHECK(after.launches == before.launches);
    CHECK(after.copies - before.copies == num_ranks * (4 + 3 + 4) + 1);
}

TEST_CASE("bytes sent are those that ranks on the host count for the same calls") {
    const auto calls = [](auto& comm, auto stream, bytes& memory) {
        const auto own = static_cast<std::size_t>(comm.rank());
        const size_table table = uneven(comm.size(), 9);
        const std::vector<std::size_t> sends = table.sent_by(comm.rank()), receives = table.received_by(comm.rank());
        std::uint8_t* const at = memory.data();
        std::vector<std::uint64_t> counts;
        const auto note = [&] { counts.push_back(comm.bytes_sent()); };
        note();
        comm.all_gather(at, at + 1000, 100, stream);
        note();
        comm.all_gather(at + 10 * own, at, 10, stream);
        note();
        comm.all_to_all(at, at + 1000, 77, stream);
        note();
        comm.all_to_all(at, sends, at + 1000, receives, stream);
        note();
        comm.publish(at, 40, stream);
        note();
        comm.release(stream);
        note();
        comm.agree(1, "plan", stream);
        comm.check();
        comm.wait(stream);
        note();
        return counts;
    };
    for (const int num_ranks : {1, 2, 3, 8}) {
        CAPTURE(num_ranks);
        const auto ranks = static_cast<std::size_t>(num_ranks);
        std::vector<std::vector<std::uint64_t>> on_host(ranks), on_device(ranks);
        run_local_ranks(num_ranks, checked, [&](local_communicator& comm) {
            bytes memory(4000);
            on_host[static_cast<std::size_t>(comm.rank())] = calls(comm, host_stream{}, memory);
        });
        const simt::device device;
        const auto all = outcomes(num_ranks, checked, [&](place& here) {
            bytes memory(4000);
            on_device[static_cast<std::size_t>(here.rank())] = calls(here.comm, here.stream, memory);
        });
        CHECK(codes(all) == strings(ranks, ""));
        CHECK(on_host == on_device);
        CHECK((num_ranks == 1 || on_host[0].back() > 0));
    }
}

TEST_CASE("a rank of one works alone, without a thread") {
    const simt::device device;
    local_cuda_group group(1, checked);
    local_cuda_communicator comm = group.rank(0);
    place here{comm, new_stream()};
    rank_steps on(here, here.stream);
    on.gathers(100, 1, false);
    on.gathers(100, 1, true);
    on.exchanges(300, 2);
    on.exchanges(size_table{1, {77}}, 3);
    on.publishes(100, 6);
    on.agrees(5);
    CHECK(on.right());
    comm.check();
    CHECK(comm.bytes_sent() == 0);
    CHECK(comm.split(3, 3)->size() == 1);
    CHECK_FALSE(comm.split(-1, 0).has_value());
}

TEST_CASE("split orders by key, then by rank, leaves out negative colors, and its groups work side by side") {
    const std::array<int, 8> colors{7, 0, 7, -1, 7, 0, -5, 7}, keys{5, 1, -2, 0, 5, 1, 0, 0};
    const std::array<int, 8> new_ranks{2, 0, 0, -1, 3, 1, -1, 1};
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        const simt::device device({.seed = seed});
        CHECK(8 == ranks_where(8, checked, [&](place& here) {
                  const auto rank = static_cast<std::size_t>(here.rank());
                  std::optional<local_cuda_communicator> group = here.comm.split(colors[rank], keys[rank]);
                  rank_steps in_world(here, here.stream);
                  in_world.gathers(20, 1, false);
                  bool right = (group ? group->rank() : -1) == new_ranks[rank];
                  if (group) {
                      right = right && group->size() == (colors[rank] == 7 ? 4 : 2);
                      right = right && group->checks() == check_level::collective;
                      place there{*group, here.stream};
                      rank_steps in_group(there, new_stream()), after(there, here.stream);
                      in_group.gathers(30, 2, false);
                      in_group.exchanges(40, 3);
                      after.publishes(50, 6);
                      right = in_group.right() && after.right() && right;
                  }
                  in_world.exchanges(10, 4);
                  return in_world.right() && right;
              }));
    }
}

TEST_CASE("a communicator outlives its group and may be moved, between collectives and while it has published") {
    const simt::device device;
    auto group = std::make_unique<local_cuda_group>(2);
    std::vector<local_cuda_communicator> ranks;
    for (int r = 0; r < 2; ++r) ranks.push_back(group->rank(r));
    group.reset();
    std::array<bool, 2> right{};
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < 2; ++r)
        threads.emplace_back([&right, r, moved_in = std::move(ranks[r])]() mutable {
            place here{moved_in, new_stream()};
            rank_steps before(here, here.stream);
            before.gathers(8, 1, false);
            bool all = before.right();
            const bytes shown(4, static_cast<std::uint8_t>(r + 40));
            const std::span<const void* const> pointers = moved_in.publish(shown.data(), 4, here.stream);
            local_cuda_communicator moved(std::move(moved_in));
            all = all && static_cast<const std::uint8_t*>(pointers[1 - r])[3] == 41 - r;
            moved.release(here.stream);
            moved.wait(here.stream);
            all = all && moved.rank() == static_cast<int>(r) && moved.bytes_sent() == 8 + 4;
            all = all && ctxpar_test::code_of([&] { moved_in.check(); }) == "moved";
            all = all && ctxpar_test::code_of([&] { moved_in.agree(1, "plan", here.stream); }) == "moved";
            all = all && ctxpar_test::code_of([&] { moved_in.wait(here.stream); }) == "moved";

            local_cuda_communicator alone = local_cuda_group(1).rank(0); // assigning leaves this group
            alone = std::move(moved);
            local_cuda_communicator& self = alone;
            alone = std::move(self);
            all = all && alone.size() == 2 && alone.bytes_sent() == 8 + 4;
            place there{alone, here.stream};
            rank_steps after(there, here.stream);
            after.publishes(9, 2);
            right[r] = after.right() && all;
        });
    for (std::thread& thread : threads) thread.join();
    CHECK((right[0] && right[1]));
}
