// A communicator that fails in the middle of a migration, at each of its calls: the source is as it was and still
// serves, and the migration can be made again from the start.
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "serving.hpp"

using namespace serving;

namespace {

constexpr int domain_size = 4;
constexpr std::int64_t length = 45;

// Fails at one of its calls, on one rank; the others then find that it has left.
class failing_communicator {
public:
    using stream_type = host_stream;

    failing_communicator(local_communicator under, int fails_at) : under_(std::move(under)), left_(fails_at) {}

    int rank() const { return under_.rank(); }
    int size() const { return under_.size(); }
    check_level checks() const { return under_.checks(); }
    std::uint64_t bytes_sent() const { return under_.bytes_sent(); }
    void all_gather(const void* send, void* recv, std::size_t bytes, host_stream stream, collective_note note = {}) {
        count();
        under_.all_gather(send, recv, bytes, stream, note);
    }
    void all_to_all(const void* send, void* recv, std::size_t bytes, host_stream stream, collective_note note = {}) {
        count();
        under_.all_to_all(send, recv, bytes, stream, note);
    }
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, host_stream stream, collective_note note = {}) {
        count();
        under_.all_to_all(send, send_bytes, recv, recv_bytes, stream, note);
    }
    void agree(std::uint64_t value, const char* what, host_stream stream) {
        count();
        under_.agree(value, what, stream);
    }
    void check() { under_.check(); }
    void wait(host_stream stream) {
        count();
        under_.wait(stream);
    }

private:
    void count() {
        if (left_-- != 0) return;
        comm_failure failure;
        failure.code = "injected";
        failure.rank = rank();
        throw comm_error(failure, "injected");
    }
    local_communicator under_;
    int left_;
};

static_assert(communicator<failing_communicator>);

struct result {
    std::vector<std::string> codes;
    bool damaged = false; // the source, its output, or what came of the migration that was made again
};

using mover = migrator<attention, cpu_backend, failing_communicator>;

// Moves all of a request whose tables both have room; throws what the communicator throws.
void move_all(failing_communicator& domain, pool& memory, const holding& from, const holding& to) {
    mover used(domain, {kv_heads, 0, 17}, {}, cpu_backend());
    host_workspace lent(used.workspace_bytes());
    const migrated_layer<float> layers[] = {{memory.view(), memory.view()}};
    migration job;
    job.from = from.side();
    job.to = to.side();
    const auto plan = [&] { return used.plan(job, length, layers, lent, {}); };
    for (auto step = plan(); !step.empty(); step = plan()) {
        used.move(step, {});
        job.done = step.end;
    }
}

// What a rank has of the request, in its source layout.
class failing_rank {
public:
    failing_rank(local_communicator& world, const layout& from, const layout& to)
        : world_(world), memory_(static_cast<std::uint64_t>(world.rank()) + 9), from_(memory_, from, world.rank()),
          to_(memory_, to, world.rank()), from_group_(world.split(from_.member() ? 0 : -1, world.rank())),
          to_group_(world.split(to_.member() ? 0 : -1, world.rank())) {
        from_.grow(length);
        if (from_.member()) from_server_.emplace(&*from_group_, from);
        if (to_.member()) to_server_.emplace(&*to_group_, to);
        for (std::int64_t at = 1; at <= length && from_.member(); ++at)
            due_ = from_server_->decode(3, at, from_.table(), memory_.view());
        bits_ = from_.numbers();
        for (std::int64_t at = 1; at <= length; ++at) plain_ = unsharded_.decode(3, at);
    }

    // A migration in which `culprit` fails at call k; the code of what this rank threw, empty where it did not.
    std::string fail(int culprit, int k) {
        failing_communicator domain(*world_.split(0, world_.rank()), world_.rank() == culprit ? k : -1);
        to_.grow(length);
        std::string code;
        try {
            failing_communicator doomed = std::move(domain);
            move_all(doomed, memory_, from_, to_);
        } catch (const comm_error& problem) {
            code = problem.code();
        }
        return code;
    }

    // Whether all is as it was: bits and output of the source.
    bool is_intact() {
        if (!from_.member()) return true;
        return same_bits(from_.numbers(), bits_) &&
               same_bits(from_server_->decode(3, length, from_.table(), memory_.view(), false), due_);
    }

    // The target is dropped, and taken anew.
    bool moves_again() {
        to_.drop();
        to_.grow(length);
        failing_communicator domain(*world_.split(0, world_.rank()), -1);
        move_all(domain, memory_, from_, to_);
        if (!to_.member()) return true;
        const std::vector<float> got = to_server_->decode(3, length, to_.table(), memory_.view(), false);
        return relative_distance(got, plain_) <= 2e-6;
    }
    void drop_target() { to_.drop(); }

private:
    local_communicator& world_;
    pool memory_;
    holding from_, to_;
    std::optional<local_communicator> from_group_, to_group_;
    std::optional<server> from_server_, to_server_;
    unsharded unsharded_;
    std::vector<float> due_, plain_, bits_;
};

} // namespace

TEST_CASE(
    "whichever call fails on whichever rank, the source is intact and serves, and the migration can be repeated") {
    const std::pair<layout, layout> cases[] = {{{2, 3, 4, 0}, {3, 2, 6, 1}}, {{3, 1, 4, 1}, {4, 4, 4, 0}}};
    for (const auto& change : cases)
        for (int culprit = 0; culprit < domain_size; ++culprit) {
            constexpr int most = 40;
            std::vector<std::vector<std::string>> codes(domain_size);
            std::vector<int> damaged(domain_size, 0), failed_again(domain_size, 0);
            run_local_ranks(domain_size, {}, [&](local_communicator& world) {
                const auto at = static_cast<std::size_t>(world.rank());
                failing_rank here(world, change.first, change.second);
                for (int k = 0; k < most; ++k) {
                    codes[at].push_back(here.fail(culprit, k));
                    damaged[at] += here.is_intact() ? 0 : 1;
                    failed_again[at] += here.moves_again() ? 0 : 1;
                    damaged[at] += here.is_intact() ? 0 : 1;
                    here.drop_target();
                }
            });
            CHECK(damaged == std::vector<int>(domain_size, 0));
            CHECK(failed_again == std::vector<int>(domain_size, 0));
            // 3 steps and an empty one: 4 all_gathers, 3 exchanges and 4 waits can fail, and no rank gets through then.
            constexpr int calls = 11;
            for (std::size_t rank = 0; rank < codes.size(); ++rank)
                for (int k = 0; k < most; ++k) {
                    INFO("rank ", rank, ", call ", k);
                    const std::string& code = codes[rank][static_cast<std::size_t>(k)];
                    const bool is_culprit = static_cast<int>(rank) == culprit;
                    if (k >= calls) {
                        CHECK(code == "");
                    } else if (is_culprit) {
                        CHECK(code == "injected");
                    } else if (k < calls - 1) {
                        CHECK((code == "left" || code == "peer_error" || code == "dead"));
                    } else { // all that the others need has come
                        CHECK((code == "" || code == "left"));
                    }
                }
        }
}
