// What the cost model wants to know of a machine, measured over ranks of any kind. All ranks call these functions and
// get the same numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/comm/communicator.hpp>
#include <ctxpar/merge/reduce.hpp>

#include "attention_fit.hpp"
#include "effort.hpp"
#include "layers.hpp"
#include "measure_weights.hpp"
#include "team.hpp"

namespace demo {

// What a call takes after attention, us. All ranks begin it together. On a CPU each call comes after attention has read
// the caches full; on a device, whose cache keeps what attention has written, calls follow each other as a stream has
// them, launches included.
template <class Rank, class Before, class Fn>
double cold_us(team<Rank>& ranks, typename Rank::kind::pool& pool, const effort& how, const Before& before,
               const Fn& fn) {
    if constexpr (Rank::kind::on_device) {
        (void)pool;
        (void)before;
        const std::int64_t calls = how.tiny ? 2 : calls_in(how, ranks.time(fn));
        return ranks.time([&] {
            for (std::int64_t i = 0; i < calls; ++i) fn();
        }) / static_cast<double>(calls);
    } else {
        std::vector<double> times;
        const int calls = how.tiny ? 1 : 11;
        for (int i = 0; i < calls; ++i) {
            before();
            pool.read_through();
            times.push_back(ranks.time(fn));
        }
        return median(times);
    }
}

// Memory of one rank for exchanges of `bytes` with each rank.
template <class Rank>
class exchange_room {
public:
    using kind = typename Rank::kind;

    exchange_room(Rank& own, std::size_t bytes)
        : stream(own.stream()), numbers(bytes / sizeof(float)),
          ones(numbers * static_cast<std::size_t>(own.size()), 1.0F), halves(ones.size(), 0.5F),
          send(kind::moved(ones, stream)), received(kind::moved(ones, stream)),
          sum(kind::moved(std::vector<float>(ones.size()), stream)) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(own.size()); ++i)
            parts.at[i] = received.data() + i * numbers;
    }
    void rewrite() { kind::write(halves, send.data(), stream); }
    void add(typename kind::backend& backend, const ctxpar::part_pointers& of, int size) {
        const auto width = static_cast<std::int64_t>(numbers);
        const float* none = nullptr;
        backend.sum_parts(of.at.data(), size, ctxpar::dense_view(none, 1, 1, width),
                          ctxpar::dense_view(sum.data(), 1, 1, width), stream);
    }

    typename kind::stream_type stream;
    std::size_t numbers;
    std::vector<float> ones, halves;
    typename kind::template memory<float> send, received, sum;
    ctxpar::part_pointers parts; // in memory of this rank
};

// Calls of one kind: of what op, and how many bytes each rank gets for each byte of a part.
struct measured_op {
    ctxpar::collective_op op;
    double bytes;
    std::vector<point> points;
};

// all_gather as it restores heads, and all_to_all as parts are exchanged and added, less the adding of own parts: where
// peers' memory is read in place, the reading is the exchange. Of a communicator that adds, its sums too.
template <class Rank>
std::vector<ctxpar::collective_cost> measure_collectives(team<Rank>& ranks, typename Rank::kind::pool& pool,
                                                         const effort& how) {
    using communicator = typename Rank::kind::communicator;
    constexpr bool adds = ctxpar::reducing_communicator<communicator>;
    const std::vector<std::size_t> sizes = how.tiny
                                               ? std::vector<std::size_t>{64, 65536}
                                               : std::vector<std::size_t>{64, 512, 4096, 16384, 65536, 262144, 1048576};
    communicator& comm = ranks.own().comm();
    typename Rank::kind::backend backend;
    std::vector<measured_op> ops = {{ctxpar::collective_op::all_gather, 1, {}},
                                    {ctxpar::collective_op::all_to_all, 1, {}}};
    if constexpr (adds) {
        ops.push_back({ctxpar::collective_op::reduce_scatter, 1, {}});
        ops.push_back({ctxpar::collective_op::all_reduce, 2, {}}); // the parts, and their sums
    }
    for (const std::size_t bytes : sizes) {
        exchange_room<Rank> room(ranks.own(), bytes);
        const auto call = [&](ctxpar::collective_op op) {
            const auto stream = room.stream;
            if (op == ctxpar::collective_op::all_gather) {
                auto* const own = room.received.data() + static_cast<std::size_t>(ranks.rank()) * room.numbers;
                comm.all_gather(own, room.received.data(), bytes, stream, {"measured gather"});
            } else if (op == ctxpar::collective_op::all_to_all) {
                const ctxpar::part_pointers from = ctxpar::exchange_parts(comm, room.send.data(), room.received.data(),
                                                                          bytes, stream, {"measured parts"});
                room.add(backend, from, ranks.size());
                ctxpar::end_parts(comm, stream);
            }
            if constexpr (adds) {
                if (op == ctxpar::collective_op::reduce_scatter)
                    comm.reduce_scatter(room.send.data(), room.sum.data(), room.numbers, ctxpar::scalar_type::f32,
                                        stream, {"measured sums"});
                if (op == ctxpar::collective_op::all_reduce)
                    comm.all_reduce(room.send.data(), room.sum.data(), room.ones.size(), ctxpar::scalar_type::f32,
                                    stream, {"measured sums"});
            }
        };
        const auto one = [&](std::size_t which) { // the last one adds what no rank has sent
            return cold_us(
                ranks, pool, how, [&] { room.rewrite(); }, // as the attention writes partials
                [&] { which < ops.size() ? call(ops[which].op) : room.add(backend, room.parts, ranks.size()); });
        };
        const std::vector<double> us = ranks.medians(ops.size() + 1, how.rounds, one);
        const double others = static_cast<double>(ranks.size() - 1) * static_cast<double>(bytes);
        for (std::size_t i = 0; i < ops.size(); ++i) {
            const bool has_added = ops[i].op == ctxpar::collective_op::all_to_all;
            ops[i].points.push_back({ops[i].bytes * others, us[i] - (has_added ? us.back() : 0)});
        }
    }
    std::vector<ctxpar::collective_cost> costs;
    for (const measured_op& each : ops) {
        const line fitted = fit_line(each.points);
        costs.push_back({each.op, ranks.size(), fitted.fixed, rate_of(fitted)});
    }
    return costs;
}

// The arithmetic behind an exchange: the merge of as many parts as ranks, of the model's heads.
template <class Rank>
line measure_merge(team<Rank>& ranks, const model_dims& model, typename Rank::kind::pool& pool, const effort& how) {
    using kind = typename Rank::kind;
    const auto stream = ranks.own().stream();
    typename kind::backend backend;
    std::vector<point> points;
    for (const std::int64_t rows :
         how.tiny ? std::vector<std::int64_t>{1, 4} : std::vector<std::int64_t>{1, 4, 16, 64}) {
        const std::int64_t heads = model.heads, width = model.value_width(), pitch = width + 1;
        const auto count = static_cast<std::size_t>(rows * heads * pitch);
        const std::vector<float> halves(count * static_cast<std::size_t>(ranks.size()), 0.5F);
        auto parts = kind::moved(halves, stream);
        auto out = kind::moved(std::vector<float>(static_cast<std::size_t>(rows * heads * width)), stream);
        ctxpar::part_pointers from;
        for (std::size_t i = 0; i < static_cast<std::size_t>(ranks.size()); ++i) from.at[i] = parts.data() + i * count;
        const float* none = nullptr;
        ctxpar::merge_parts<float, ctxpar::lse_base::natural> what;
        what.out_parts = from.at.data();
        what.count = ranks.size();
        what.out = ctxpar::blocked_view(none, 1, rows, heads, width, pitch);
        const auto merge = [&](std::size_t) {
            return cold_us(
                ranks, pool, how, [&] { kind::write(halves, parts.data(), stream); },
                [&] {
                    backend.merge(what, ctxpar::dense_view(out.data(), rows, heads, width),
                                  ctxpar::head_view<ctxpar::lse<ctxpar::lse_base::natural>>{}, stream);
                });
        };
        const double bytes = static_cast<double>(halves.size()) * sizeof(float);
        points.push_back({bytes, ranks.medians(1, how.rounds, merge).front()});
    }
    return fit_line(points);
}

// The attention of ranks that all work at once, each on its own.
template <class Rank>
std::vector<attention_point> measure_attention(team<Rank>& ranks, const model_dims& model,
                                               typename Rank::kind::pool& pool, const effort& how) {
    using communicator = typename Rank::kind::communicator;
    std::vector<attention_point> points;
    const auto lengths =
        how.tiny ? std::vector<std::int64_t>{16, 128} : std::vector<std::int64_t>{64, 512, 4096, 16384};
    for (const std::int64_t batch : {1, 4})
        for (const std::int64_t rows : {1, 2, 4, 16})
            for (const std::int64_t keys : lengths) {
                if (how.tiny ? rows > 2 : batch * rows * keys > 65536) continue;
                const requests all(static_cast<std::size_t>(batch), {rows, keys});
                const auto layers =
                    make_layers<communicator>(model, all, ctxpar::merge_kind::a2a, pool, nullptr, ranks.own().stream());
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
template <class Rank>
std::vector<ctxpar::collective_cost> measure_all_sizes(team<Rank>& ranks, typename Rank::kind::pool& pool,
                                                       const effort& how) {
    std::vector<ctxpar::collective_cost> costs;
    for (int size = 2; size <= ranks.size(); ++size) {
        if (ranks.size() % size != 0) continue;
        const auto part = ranks.own().split(ranks.rank() / size, ranks.rank() % size); // all such groups at once
        team<Rank> group(*part);
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
template <class Rank>
ctxpar::machine_costs measure_costs(team<Rank>& ranks, const model_dims& model, typename Rank::kind::pool& pool,
                                    const effort& how) {
    ctxpar::machine_costs costs;
    costs.collectives = measure_all_sizes(ranks, pool, how);
    const line merge = measure_merge(ranks, model, pool, how);
    costs.merge_us = merge.fixed;
    costs.merge_bytes_per_us = rate_of(merge);
    fit_attention(measure_attention(ranks, model, pool, how), costs);
    costs.weight_bytes_per_us = measure_weights(ranks, model, pool, how);
    const std::vector<ctxpar::collective_cost> again = measure_all_sizes(ranks, pool, how);
    for (std::size_t i = 0; i < again.size(); ++i) {
        if (again[i].call_us >= costs.collectives[i].call_us) continue;
        costs.collectives[i] = again[i];
    }
    return costs;
}

} // namespace demo
