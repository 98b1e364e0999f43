// The memory of a migration: a workspace of exactly the bytes that are asked for, whatever the length of a request, and
// nothing allocated by a move.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "../support/counted_allocations.hpp"
#include "moving.hpp"

using namespace moving;

TEST_CASE("a workspace is its arrays and two chunks of packed rows, and nothing behind it is written") {
    using attention = gqa<bf16, 8, 8, fp8_e4m3>;
    setting s;
    s.domain = 3;
    s.from = {1, 1, 4, 0};
    s.to = {3, 2, 4, 0};
    s.length = 100;
    s.chunk = 9;
    s.scales = scale_choice::token;
    std::vector<int> right(3, 0);
    on_domain(s, [&](suite_ranks::communicator& world) {
        rank<attention> here(world, s, s.length);
        here.append(0, s.length);
        rank<attention>::mover used(world, here.shape());
        CHECK(used.row_bytes() == 48); // 2 heads of 8 + 8 bytes, and 4 scales
        // Twice 9 slots in 256 bytes, 3 cursors, 3 statuses of 40 to 48 bytes, twice 9 rows of 48 bytes in 512.
        CHECK(used.workspace_bytes() == 4 * 256 + 2 * 512);
        const std::size_t bytes = used.workspace_bytes();
        host_workspace memory(bytes + 256);
        auto* const behind = static_cast<std::byte*>(workspace(memory).data) + bytes;
        std::memset(behind, 0x5A, 256);
        while (here.job.done < s.length) {
            const auto step =
                used.plan(here.job, s.length, here.layers, {workspace(memory).data, bytes}, here.stream());
            used.move(step, here.stream());
            here.job.done = step.end;
        }
        world.wait(here.stream());
        int changed = 0;
        for (int i = 0; i < 256; ++i) changed += behind[i] == std::byte{0x5A} ? 0 : 1;
        right[static_cast<std::size_t>(world.rank())] = changed == 0 && here.wrong_in_target(0, s.length) == 0 ? 1 : 0;
    });
    CHECK(right == std::vector<int>(3, 1));
}

TEST_CASE("moving the layers of a step allocates nothing") {
    setting s;
    s.domain = 2;
    s.from = {1, 1, 4, 0};
    s.to = {2, 2, 4, 0};
    s.length = 64;
    s.layers = 5;
    num_allocations = 0;
    run_local_ranks(2, {}, [&](local_communicator& world) {
        rank<gqa<bf16, 8>, local_communicator> here(world, s, s.length);
        here.append(0, s.length);
        rank<gqa<bf16, 8>, local_communicator>::mover used(world, here.shape());
        host_workspace memory(used.workspace_bytes());
        while (here.job.done < s.length) {
            const auto step = used.plan(here.job, s.length, here.layers, memory, {});
            is_counting = true;
            used.move(step, {});
            is_counting = false;
            here.job.done = step.end;
        }
    });
    CHECK(num_allocations == 0);
}
