// A machine and a model whose costs are easy to add up by hand, for tests of routing.
//
// One request of L tokens takes 3 + L/20 us a layer on one rank, 3 + L/40 + 14.84 on two, 3 + L/80 + 14.924 on four.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ctxpar/plan/cp_size.hpp>
#include <ctxpar/plan/routing.hpp>

namespace ctxpar_test {

// Every call 5 us whatever its size, and bytes at 1000 a microsecond.
inline ctxpar::machine_costs routing_machine() {
    ctxpar::machine_costs costs;
    costs.collectives = {{ctxpar::collective_op::all_gather, 2, 5, 1000},
                         {ctxpar::collective_op::all_to_all, 2, 5, 1000}};
    costs.read_bytes_per_us = 2000;
    costs.flops_per_us = 1e6;
    costs.attend_us = 3;
    costs.merge_bytes_per_us = 500;
    costs.merge_us = 2;
    return costs;
}

inline ctxpar::model_shape routing_model() {
    ctxpar::model_shape model;
    model.heads = 12;
    model.query_width = 8;
    model.value_width = 4;
    model.bytes_per_token = 100;
    model.merge = ctxpar::merge_kind::a2a;
    return model;
}

inline ctxpar::router_options routing_options() {
    ctxpar::router_options options;
    options.layers = 2;
    options.reshard_bytes_per_us = 1000;
    return options;
}

// Exchange and merge of a layer for so many rows on so many ranks.
inline double exchange_by_hand(std::int64_t ranks, std::int64_t rows) {
    if (ranks == 1 || rows == 0) return 0;
    const auto others = static_cast<double>(ranks - 1), all = static_cast<double>(ranks);
    const double vectors = 12 / all * static_cast<double>(rows); // of 4 floats and an LSE; then of 4 halves
    return (5 + others * vectors * 20 / 1000) + (5 + others * vectors * 8 / 1000) + 4 + all * vectors * 28 / 500;
}

} // namespace ctxpar_test
