// What the cost model wants to know of a machine, measured over ranks of any kind. All ranks call these functions and
// get the same numbers.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/merge/reduce.hpp>

#include "attention_fit.hpp"
#include "effort.hpp"
#include "layers.hpp"
#include "team.hpp"

namespace demo {

// How often to call what takes about `us`.
inline std::int64_t calls_in(const effort& how, double us) {
    return us <= 0 ? 1 : std::clamp<std::int64_t>(static_cast<std::int64_t>(how.sample_us / us), 1, 500);
}

// What a call takes after attention has read the caches full, us. All ranks begin it together.
template <ctxpar::communicator C, class Before, class Fn>
double cold_us(team<C>& ranks, number_pool& pool, const effort& how, const Before& before, const Fn& fn) {
    std::vector<double> times;
    const int calls = how.tiny ? 1 : 11;
    for (int i = 0; i < calls; ++i) {
        before();
        pool.read_through();
        times.push_back(ranks.time(fn));
    }
    return median(times);
}

// Buffers of one rank for exchanges of `bytes` with each rank.
class exchange_room {
public:
    exchange_room(int size, std::size_t bytes)
        : numbers(bytes / sizeof(float)), send(numbers * static_cast<std::size_t>(size), 1.0F),
          received(send.size(), 1.0F), sum(numbers) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(size); ++i) own.at[i] = received.data() + i * numbers;
    }
    void rewrite() { std::fill(send.begin(), send.end(), 0.5F); }
    void add(ctxpar::cpu_backend& backend, const ctxpar::part_pointers& parts, int size) {
        const auto width = static_cast<std::int64_t>(numbers);
        const float* none = nullptr;
        backend.sum_parts(parts.at.data(), size, ctxpar::dense_view(none, 1, 1, width),
                          ctxpar::dense_view(sum.data(), 1, 1, width), {});
    }

    std::size_t numbers;
    std::vector<float> send, received, sum;
    ctxpar::part_pointers own; // parts in memory of this rank
};

// all_gather as it restores heads, and all_to_all as parts are exchanged and added, less the adding of own parts: where
// peers' memory is read in place, the reading is the exchange.
template <ctxpar::communicator C>
std::vector<ctxpar::collective_cost> measure_collectives(team<C>& ranks, number_pool& pool, const effort& how) {
    const std::vector<std::size_t> sizes = how.tiny
                                               ? std::vector<std::size_t>{64, 65536}
                                               : std::vector<std::size_t>{64, 512, 4096, 16384, 65536, 262144, 1048576};
    C& world = ranks.world();
    ctxpar::cpu_backend backend;
    std::vector<point> gathers, exchanges;
    for (const std::size_t bytes : sizes) {
        exchange_room room(ranks.size(), bytes);
        const auto gather = [&] {
            auto* const own = room.received.data() + static_cast<std::size_t>(ranks.rank()) * room.numbers;
            world.all_gather(own, room.received.data(), bytes, {}, {"measured gather"});
        };
        const auto exchange = [&] {
            const ctxpar::part_pointers from =
                ctxpar::exchange_parts(world, room.send.data(), room.received.data(), bytes, {}, {"measured parts"});
            room.add(backend, from, ranks.size());
            ctxpar::end_parts(world, {});
        };
        const auto one = [&](std::size_t which) {
            return cold_us(
                ranks, pool, how, [&] { room.rewrite(); }, // as the attention writes partials
                [&] {
                    if (which == 0) gather();
                    if (which == 1) exchange();
                    if (which == 2) room.add(backend, room.own, ranks.size());
                });
        };
        const std::vector<double> us = ranks.medians(3, how.rounds, one);
        const double others = static_cast<double>(ranks.size() - 1) * static_cast<double>(bytes);
        gathers.push_back({others, us[0]});
        exchanges.push_back({others, us[1] - us[2]});
    }
    std::vector<ctxpar::collective_cost> costs;
    for (const auto& [op, points] : {std::pair{ctxpar::collective_op::all_gather, gathers},
                                     std::pair{ctxpar::collective_op::all_to_all, exchanges}}) {
        const line fitted = fit_line(points);
        costs.push_back({op, ranks.size(), fitted.fixed, rate_of(fitted)});
    }
    return costs;
}

// The arithmetic behind an exchange: the merge of as many parts as ranks, of the model's heads.
template <ctxpar::communicator C>
line measure_merge(team<C>& ranks, const model_dims& model, number_pool& pool, const effort& how) {
    ctxpar::cpu_backend backend;
    std::vector<point> points;
    for (const std::int64_t rows :
         how.tiny ? std::vector<std::int64_t>{1, 4} : std::vector<std::int64_t>{1, 4, 16, 64}) {
        const std::int64_t heads = model.heads, width = model.value_width(), pitch = width + 1;
        const auto count = static_cast<std::size_t>(rows * heads * pitch);
        std::vector<float> parts(count * static_cast<std::size_t>(ranks.size()), 0.5F);
        std::vector<float> out(static_cast<std::size_t>(rows * heads * width));
        ctxpar::part_pointers from;
        for (std::size_t i = 0; i < static_cast<std::size_t>(ranks.size()); ++i) from.at[i] = parts.data() + i * count;
        const float* none = nullptr;
        ctxpar::merge_parts<float, ctxpar::lse_base::natural> what;
        what.out_parts = from.at.data();
        what.count = ranks.size();
        what.out = ctxpar::blocked_view(none, 1, rows, heads, width, pitch);
        const double bytes = static_cast<double>(parts.size()) * sizeof(float);
        const auto merge = [&](std::size_t) {
            return cold_us(
                ranks, pool, how, [&] { std::fill(parts.begin(), parts.end(), 0.5F); },
                [&] {
                    backend.merge(what, ctxpar::dense_view(out.data(), rows, heads, width),
                                  ctxpar::head_view<ctxpar::lse<ctxpar::lse_base::natural>>{}, {});
                });
        };
        points.push_back({bytes, ranks.medians(1, how.rounds, merge).front()});
    }
    return fit_line(points);
}

// The attention of ranks that all work at once, each on its own.
template <ctxpar::communicator C>
std::vector<attention_point> measure_attention(team<C>& ranks, const model_dims& model, number_pool& pool,
                                               const effort& how) {
    std::vector<attention_point> points;
    const auto lengths =
        how.tiny ? std::vector<std::int64_t>{16, 128} : std::vector<std::int64_t>{64, 512, 4096, 16384};
    for (const std::int64_t batch : {1, 4})
        for (const std::int64_t rows : {1, 2, 4, 16})
            for (const std::int64_t keys : lengths) {
                if (!how.tiny && batch * rows * keys > 65536) continue;
                const requests all(static_cast<std::size_t>(batch), {rows, keys});
                const auto layers = make_layers<C>(model, all, ctxpar::merge_kind::a2a, pool, nullptr);
                layers->plan();
                const double first = ranks.time([&] { layers->decode(pool.data()); });
                const std::int64_t calls = calls_in(how, first);
                const auto some = [&](std::size_t) {
                    return ranks.time([&] {
                        for (std::int64_t i = 0; i < calls; ++i) layers->decode(pool.next(layers->cache_bytes()));
                    }) / static_cast<double>(calls);
                };
                points.push_back(attention_point_of(model, all, ranks.medians(1, how.rounds, some).front()));
            }
    return points;
}

// In groups of every size that divides the ranks.
template <ctxpar::communicator C>
std::vector<ctxpar::collective_cost> measure_all_sizes(team<C>& ranks, number_pool& pool, const effort& how) {
    std::vector<ctxpar::collective_cost> costs;
    for (int size = 2; size <= ranks.size(); ++size) {
        if (ranks.size() % size != 0) continue;
        auto part = ranks.world().split(ranks.rank() / size, ranks.rank() % size); // all such groups at once
        team<C> group(*part);
        for (ctxpar::collective_cost entry : measure_collectives(group, pool, how)) {
            entry.call_us = ranks.largest(entry.call_us);
            entry.bytes_per_us = -ranks.largest(-entry.bytes_per_us);
            costs.push_back(entry);
        }
    }
    return costs;
}

// Collectives are short and are measured twice, before and after all else: what disturbs only adds, so that the cheaper
// of both counts.
template <ctxpar::communicator C>
ctxpar::machine_costs measure_costs(team<C>& ranks, const model_dims& model, number_pool& pool, const effort& how) {
    ctxpar::machine_costs costs;
    costs.collectives = measure_all_sizes(ranks, pool, how);
    const line merge = measure_merge(ranks, model, pool, how);
    costs.merge_us = merge.fixed;
    costs.merge_bytes_per_us = rate_of(merge);
    fit_attention(measure_attention(ranks, model, pool, how), costs);
    const std::vector<ctxpar::collective_cost> again = measure_all_sizes(ranks, pool, how);
    for (std::size_t i = 0; i < again.size(); ++i) {
        if (again[i].call_us >= costs.collectives[i].call_us) continue;
        costs.collectives[i] = again[i];
    }
    return costs;
}

} // namespace demo
