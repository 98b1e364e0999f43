// What a type must have to be a communicator, shown on the smallest types that are and on types that miss one member.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/comm/local.hpp>
#include <ctxpar/core/stream.hpp>

using namespace ctxpar;

namespace {

// A group of one that a user wrote: what it sends it receives.
struct lone {
    using stream_type = host_stream;
    int rank() const { return 0; }
    int size() const { return 1; }
    void all_gather(const void*, void*, std::size_t, host_stream, collective_note) {}
    void all_to_all(const void*, void*, std::size_t, host_stream, collective_note) {}
    void all_to_all(const void*, std::span<const std::size_t>, void*, std::span<const std::size_t>, host_stream,
                    collective_note) {}
    void agree(std::uint64_t, const char*, host_stream) {}
    void check() {}
    void wait(host_stream) {}
    std::uint64_t bytes_sent() const { return 0; }
    check_level checks() const { return check_level::off; }
};

struct adding : lone {
    static constexpr bool reproducible = true;
    void reduce_scatter(const void*, void*, std::size_t, scalar_type, host_stream, collective_note) {}
    void all_reduce(const void*, void*, std::size_t, scalar_type, host_stream, collective_note) {}
};

struct silent_about_order : lone {
    void reduce_scatter(const void*, void*, std::size_t, scalar_type, host_stream, collective_note) {}
    void all_reduce(const void*, void*, std::size_t, scalar_type, host_stream, collective_note) {}
};

struct reading : lone {
    std::span<const void* const> publish(const void*, std::size_t, host_stream, collective_note) { return {}; }
    void release(host_stream) {}
};

struct never_released : lone {
    std::span<const void* const> publish(const void*, std::size_t, host_stream, collective_note) { return {}; }
};

struct level_as_number : lone {
    int checks() const { return 0; }
};

struct other_stream : lone {
    using stream_type = void*; // none of its functions takes this
};

struct fixed_size_only : lone {
    void all_to_all(const void*, void*, std::size_t, host_stream, collective_note) {} // hides the form with sizes
};

static_assert(communicator<lone> && !reducing_communicator<lone> && !peer_communicator<lone>);
static_assert(reducing_communicator<adding> && !peer_communicator<adding>);
static_assert(peer_communicator<reading> && !reducing_communicator<reading>);
static_assert(communicator<silent_about_order> && !reducing_communicator<silent_about_order>);
static_assert(communicator<never_released> && !peer_communicator<never_released>);
static_assert(!communicator<level_as_number> && !communicator<other_stream> && !communicator<fixed_size_only>);
static_assert(!communicator<int>);

static_assert(communicator<local_communicator> && peer_communicator<local_communicator>);
static_assert(!reducing_communicator<local_communicator>);
static_assert(!std::is_copy_constructible_v<local_communicator> && !std::is_copy_assignable_v<local_communicator>);
static_assert(std::is_nothrow_move_constructible_v<local_communicator>);
static_assert(std::is_nothrow_move_assignable_v<local_communicator>);
static_assert(std::is_nothrow_destructible_v<local_communicator>);

} // namespace

TEST_CASE("an absent communicator is a group of one") {
    CHECK(group_size<lone>(nullptr) == 1);
    CHECK(group_rank<lone>(nullptr) == 0);

    local_world world(3);
    const local_communicator comm = world.rank(2);
    CHECK(group_size(&comm) == 3);
    CHECK(group_rank(&comm) == 2);
}

TEST_CASE("a note that says nothing says bytes of data without a plan") {
    const collective_note note;
    CHECK(std::string(note.what) == "data");
    CHECK(note.type == scalar_type::bytes);
    CHECK(note.digest == 0);
}
