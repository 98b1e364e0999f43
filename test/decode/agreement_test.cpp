// What ranks must have in common is compared before the first plan that can compare it, once.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ctxpar/ctxpar.hpp>

using namespace ctxpar;

namespace {

// One rank of two whose agree() keeps what it was asked, and compares only where it can.
struct listening_communicator {
    using stream_type = host_stream;
    bool* compares;
    std::vector<std::string>* asked;

    int rank() const { return 0; }
    int size() const { return 2; }
    void all_gather(const void*, void*, std::size_t, host_stream, collective_note = {}) {}
    void all_to_all(const void*, void*, std::size_t, host_stream, collective_note = {}) {}
    void all_to_all(const void*, std::span<const std::size_t>, void*, std::span<const std::size_t>, host_stream,
                    collective_note = {}) {}
    bool agree(std::uint64_t, const char* what, host_stream) {
        asked->emplace_back(what);
        return *compares;
    }
    void check() {}
    void wait(host_stream) {}
    std::uint64_t bytes_sent() const { return 0; }
    check_level checks() const { return check_level::basic; }
};
static_assert(communicator<listening_communicator>);

} // namespace

TEST_CASE("a decoder compares what it is at the first plan that can, and plans alone from then on") {
    using chosen = policy<gqa<bf16, 16>, interleave<4>, merge::a2a>;
    bool compares = false;
    std::vector<std::string> asked;
    listening_communicator kv{&compares, &asked};
    decode_shape shape{.sizes = {.tp = 2, .dcp = 2}, .q_heads = 4, .kv_heads = 1};
    shape.longest = 64;
    decoder<chosen, cpu_backend, listening_communicator> decoder{{&kv}, shape};
    const host_workspace memory{decoder.workspace_bytes()};
    const std::int64_t length = 1;
    const std::vector<std::int32_t> ids(4, 0);
    const auto plan = [&] {
        asked.clear();
        const decode_batch batch{.requests = 1, .lengths = index_of(&length), .table = table_2d(ids.data(), 1, 4, 16)};
        (void)decoder.plan(batch, memory, {});
        return asked.size();
    };
    CHECK(asked.empty()); // making a decoder talks to no one
    const std::size_t all = plan();
    CHECK(all > 10);
    CHECK(plan() == all); // as long as nothing could be compared
    compares = true;
    CHECK(plan() == all);
    CHECK(plan() == 1);
    CHECK(asked.back() == "decode plan");
}
