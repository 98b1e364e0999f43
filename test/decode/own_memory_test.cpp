// Ranks that are threads share an address space, and still read and write no cache but their own: a step passes while
// the pools of all other ranks can not be accessed. The backend that takes them away is also a user's own backend.
#include <doctest/doctest.h>

#include <mutex>
#include <span>
#include <sys/mman.h>
#include <unistd.h>

#include "../support/decode_ranks.hpp"

using namespace ctxpar_test;

namespace {

// The pools of all ranks, by rank.
struct all_pools {
    std::mutex mutex;
    std::vector<std::span<std::byte>> pools;
    int num_protected = 0;
    int num_failures = 0;

    // Whether the kernel can read the memory on our behalf: a way to look that does not crash.
    static bool is_readable(const std::byte* data) {
        int ends[2];
        if (pipe(ends) != 0) return true;
        const bool readable = ::write(ends[1], data, 1) == 1;
        close(ends[0]);
        close(ends[1]);
        return readable;
    }

    // Runs `operation` while no pool but that of `own` can be accessed.
    template <class Operation>
    void run_alone(std::size_t own, const Operation& operation) {
        const std::lock_guard lock(mutex);
        protect_others(own, PROT_NONE);
        for (std::size_t rank = 0; rank < pools.size(); ++rank) {
            if (is_readable(pools[rank].data()) != (rank == own)) ++num_failures;
            num_protected += rank == own ? 0 : 1;
        }
        operation();
        protect_others(own, PROT_READ | PROT_WRITE);
    }

private:
    void protect_others(std::size_t own, int access) {
        for (std::size_t rank = 0; rank < pools.size(); ++rank)
            if (rank != own && mprotect(pools[rank].data(), pools[rank].size(), access) != 0) ++num_failures;
    }
};

// The CPU backend with append and attend of its own; the other operations are inherited.
class lone_backend : public cpu_backend {
public:
    lone_backend(all_pools& pools, std::size_t rank, const cpu_options& options)
        : cpu_backend(options), pools_(&pools), rank_(rank) {}

    template <class Args>
    void append(const Args& args, host_stream stream) {
        pools_->run_alone(rank_, [&] { cpu_backend::append(args, stream); });
    }
    template <class Args>
    void attend(const Args& args, host_stream stream) {
        pools_->run_alone(rank_, [&] { cpu_backend::attend(args, stream); });
    }

private:
    all_pools* pools_;
    std::size_t rank_;
};

static_assert(backend<lone_backend>);

template <class Policy>
void check_alone(const deployment& d) {
    const planted_data data = plant(d);
    all_pools shared;
    shared.pools.resize(static_cast<std::size_t>(d.world()));
    std::vector<rank_output> outputs(shared.pools.size());
    run_local_ranks(static_cast<int>(d.world()), {}, [&](local_communicator& world) {
        const auto number = static_cast<std::size_t>(world.rank());
        decode_rank<Policy, lone_backend> rank(world, d, data, policy_for<Policy>(d),
                                               lone_backend(shared, number, {d.threads, d.instructions}));
        shared.pools[number] = {rank.pool().data(), rank.pool().bytes()};
        world.agree(1, "all pools are known", {});
        rank.fill();
        const decode_step step = rank.plan();
        rank.append(step);
        rank_report report;
        decode_into<float, lse_base::natural>(d, rank, step, outputs[number], report);
        world.agree(2, "all ranks have decoded", {}); // pools stay until nobody protects them
    });
    const distance far = distance_between(d, expected(d, data), outputs);
    INFO(describe(d));
    CHECK(far.out <= 1.0);
    CHECK(far.lse <= 1.0);
    CHECK(shared.num_failures == 0);
    CHECK(shared.num_protected >= 3 * d.world() * (d.world() - 1)); // fill, append, attend
}

deployment four_ranks() {
    deployment d;
    d.sizes = {2, 2, 4, 1, 1, 1};
    d.interleave = 3;
    d.requests = {{131, 2}, {64}, {2}};
    d.pages_alone = true;
    return d;
}

} // namespace

TEST_CASE("no rank touches the cache of another") {
    using policy_type = policy<gqa<bf16, 16>, interleave<>, merge::dynamic>;
    for (const merge_kind merge : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a}) {
        deployment d = four_ranks();
        d.merge = merge;
        check_alone<policy_type>(d);
        d.layout = pool_layout::page_pointers;
        d.sizes = {4, 1, 2, 1, 1, 1};
        d.kv_heads = 2;
        check_alone<policy_type>(d);
    }
}
