// A request that is decoded while it goes from layout to layout, again and again: what comes out is what would have
// come out had it stayed where it was.
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "serving.hpp"

using namespace serving;

namespace {

constexpr int domain_size = 4;
const layout layouts[] = {{1, 1, 4, 0},  {2, 1, 4, 0}, {2, 3, 6, 1}, {3, 2, 3, 1}, {4, 4, 4, 0},
                          {1, 1, 12, 3}, {4, 1, 2, 0}, {2, 5, 4, 2}, {3, 1, 1, 0}};

struct counts {
    int steps = 0;      // decoded
    int migrations = 0; // finished
    int live_steps = 0; // decoded while a part of the request was in another layout
    int checked = 0;    // outputs of this rank
    int same_bits = 0;  // of those on one rank
    int of_one = 0;
    double furthest = 0;
    std::int64_t parts = 0;
};

// One rank's end of the whole thing.
class live_rank {
public:
    explicit live_rank(local_communicator& world)
        : world_(world), pool_(static_cast<std::uint64_t>(world.rank()) + 5),
          current_(pool_, layouts[0], world.rank()) {
        for (const layout& l : layouts) {
            const bool member = holding(pool_, l, world.rank()).member();
            groups_.push_back(l.ranks == 1 || l.ranks == domain_size ? std::nullopt
                                                                     : world.split(member ? 0 : -1, world.rank()));
        }
        for (std::size_t i = 0; i < std::size(layouts); ++i) {
            servers_.emplace_back();
            if (!holding(pool_, layouts[i], world.rank()).member()) continue;
            local_communicator* const group =
                layouts[i].ranks == domain_size ? &world_ : (groups_[i] ? &*groups_[i] : nullptr);
            servers_.back().emplace(group, layouts[i]);
        }
        for (const std::int64_t chunk : {5, 16, 64})
            movers_.emplace_back(world, migration_shape{kv_heads, 0, chunk}, attention{}, cpu_backend());
    }

    counts run(int steps) {
        while (counts_.steps < steps) {
            for (std::int64_t i = 1 + random_.below(6); i > 0; --i) serve(false);
            migrate();
            if (length_ < 120) continue;
            current_.drop(); // the request is done, and another comes, in the layout that is there
            length_ = 0;
            ++seed_;
        }
        return counts_;
    }

private:
    using mover = migrator<attention, cpu_backend, local_communicator>;

    void serve(bool live) {
        if (length_ == longest) return;
        current_.grow(++length_);
        const std::vector<float> due = unsharded_.decode(seed_, length_);
        ++counts_.steps;
        counts_.live_steps += live ? 1 : 0;
        if (!current_.member()) return;
        const std::vector<float> got = servers_[index_]->decode(seed_, length_, current_.table(), pool_.view());
        ++counts_.checked;
        counts_.furthest = std::max(counts_.furthest, relative_distance(got, due));
        if (std::isnan(got[0])) counts_.furthest = 1e9;
        counts_.of_one += current_.of().ranks == 1 ? 1 : 0;
        counts_.same_bits += current_.of().ranks == 1 && same_bits(got, due) ? 1 : 0;
    }

    void migrate() {
        const auto to = static_cast<std::size_t>(random_.below(std::size(layouts)));
        mover& used = movers_[static_cast<std::size_t>(random_.below(3))];
        host_workspace memory(used.workspace_bytes());
        holding next(pool_, layouts[to], world_.rank());
        migration job;
        const migrated_layer<float> layers[] = {{pool_.view(), pool_.view()}};
        const auto plan = [&] {
            next.grow(length_);
            job.from = current_.side();
            job.to = next.side();
            return used.plan(job, length_, layers, memory, {});
        };
        for (auto step = plan(); !step.empty(); step = plan()) {
            used.move(step, {});
            job.done = step.end;
            ++counts_.parts;
            for (std::int64_t i = random_.below(2); i > 0; --i) serve(true);
        }
        current_.drop();
        current_ = next;
        index_ = to;
        ++counts_.migrations;
    }

    local_communicator& world_;
    pool pool_;
    holding current_;
    std::size_t index_ = 0;
    std::vector<std::optional<local_communicator>> groups_;
    std::vector<std::optional<server>> servers_;
    std::vector<mover> movers_;
    unsharded unsharded_;
    random_numbers random_{77}; // the same on every rank
    std::uint64_t seed_ = 1;
    std::int64_t length_ = 0;
    counts counts_;
};

} // namespace

TEST_CASE("200 migrations during 2,000 decode steps change no output") {
    std::vector<counts> all(domain_size);
    run_local_ranks(domain_size, {.checks = check_level::collective}, [&](local_communicator& world) {
        all[static_cast<std::size_t>(world.rank())] = live_rank(world).run(2'000);
    });
    int checked = 0, of_one = 0;
    for (const counts& each : all) {
        CHECK(each.furthest <= 2e-6);
        CHECK(each.same_bits == each.of_one);
        CHECK(each.steps >= 2'000);
        CHECK(each.migrations >= 200);
        CHECK(each.live_steps >= 500);
        checked += each.checked;
        of_one += each.of_one;
    }
    CHECK(of_one >= 100);
    MESSAGE(all[0].migrations, " migrations of ", all[0].parts, " steps in all, ", all[0].steps,
            " decode steps of which ", all[0].live_steps, " between steps of a migration, ", checked, " outputs, ",
            of_one, " on one rank, off by ", all[0].furthest);
}
