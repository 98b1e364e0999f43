// Merges of rows that are spread over the PCP ranks of a group: every rank is left with its own rows of its own heads.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/ag_ar.hpp>
#include <ctxpar/merge/ag_rs.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/exchange.hpp>
#include <ctxpar/merge/gather.hpp>

#include "merge_laws.hpp"
#include "merge_runs.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

namespace {

// A group of m tp times s pcp coordinates, pcp fastest, whose ranks have `rows` rows and `heads` heads each.
struct grid {
    std::int64_t m = 1;
    std::int64_t s = 1;
    std::int64_t rows = 3;
    std::int64_t heads = 2;
    std::int64_t width = 5;

    std::int64_t ranks() const { return m * s; }
    std::int64_t all_rows() const { return s * rows; }
    std::int64_t all_heads() const { return m * heads; }

    exchange_shape shape() const {
        exchange_shape shape;
        shape.ranks = ranks();
        shape.distinct_tp = m;
        shape.row_owners = s;
        shape.rows = all_rows();
        shape.gathered_heads = all_heads();
        shape.query_width = width + 3;
        shape.value_width = width;
        return shape;
    }
};

template <class Body>
void for_each_grid(Body body) {
    for (std::int64_t m = 1; m <= 3; ++m)
        for (std::int64_t s = 1; s <= 3; ++s) body(m, s);
}

// What one rank has: its rows of its heads, in the merge's own words.
template <class Out, lse_base OutBase>
struct owned_result {
    std::vector<Out> out;           // [rows][heads][width]
    std::vector<lse<OutBase>> lses; // [rows][heads]
    std::uint64_t bytes_sent = 0;

    bool same_bits(const owned_result& other) const {
        if (out.empty()) return other.out.empty();
        return std::memcmp(out.data(), other.out.data(), out.size() * sizeof(Out)) == 0 &&
               std::memcmp(lses.data(), other.lses.data(), lses.size() * sizeof(float)) == 0;
    }
};

template <class Out, lse_base OutBase, lse_base Base, class Merge, class Comm, class P>
owned_result<Out, OutBase> merge_on_owner(const Merge& merge, Comm& comm, const grid& of,
                                          const plain::partials<P>& from, const run_options& options) {
    exchange_shape shape = of.shape();
    shape.partial_bytes = sizeof(P);
    shape.partial_type = scalar_type_of<P>;
    shape.dense_partials = options.dense_partials;
    nan_workspace workspace(carved_bytes<P, Base>(merge, shape));
    carver memory(workspace.data());
    const auto buffers = merge.template carve<P, Base>(memory, shape);
    write_partials(from, static_cast<std::size_t>(comm.rank()), merge.partials(shape, comm.rank(), buffers));

    const float nothing = std::numeric_limits<float>::quiet_NaN();
    owned_result<Out, OutBase> result;
    result.out.assign(static_cast<std::size_t>(of.rows * of.heads * of.width), Out(nothing));
    result.lses.assign(static_cast<std::size_t>(of.rows * of.heads), lse<OutBase>{nothing});
    merge_call<Out, OutBase> call;
    call.shape = shape;
    call.rank = comm.rank();
    call.live = from.live.data();
    call.live_stride = from.rows;
    call.sinks = options.sinks ? from.sinks.data() : nullptr;
    call.first_head = call.lse_first_head = comm.rank() / of.s * of.heads;
    call.out = dense_view(result.out.data(), of.rows, of.heads, of.width);
    call.lse_out = dense_view(result.lses.data(), of.rows, of.heads, 1);
    cpu_backend backend;
    merge.run(comm, backend, call, buffers, {});
    result.bytes_sent = comm.bytes_sent();
    return result;
}

template <class Out, lse_base OutBase, lse_base Base, class Merge, class P>
std::vector<owned_result<Out, OutBase>> run_owned(const Merge& merge, const grid& of, const plain::partials<P>& from,
                                                  const run_options& options) {
    std::vector<owned_result<Out, OutBase>> all(static_cast<std::size_t>(from.count));
    const auto run = [&](auto& comm) {
        all[static_cast<std::size_t>(comm.rank())] = merge_on_owner<Out, OutBase, Base>(merge, comm, of, from, options);
    };
    run_local_ranks(static_cast<int>(from.count), {std::chrono::seconds(60), check_level::collective},
                    [&](local_communicator& comm) {
                        if (options.over == transport::peers) {
                            run(comm);
                        } else if (options.over == transport::bytes) {
                            bytes_only moved(comm);
                            run(moved);
                        } else if constexpr (std::is_same_v<P, float>) {
                            adding added(comm);
                            run(added);
                        }
                    });
    return all;
}

// Whether every rank has the definition's merge of its own rows (those of pcp coordinate g mod s) and heads (g / s).
template <lse_base Base, lse_base OutBase, class Out, class P>
bool has_own_states(const grid& of, const plain::partials<P>& from, bool sinks,
                    const std::vector<owned_result<Out, OutBase>>& got, double bound) {
    const double factor = OutBase == Base ? 1.0 : (OutBase == lse_base::natural ? std::log(2.0) : 1 / std::log(2.0));
    plain::relative_error error;
    bool right = true;
    for (std::int64_t g = 0; g < of.ranks(); ++g) {
        const auto& rank = got[static_cast<std::size_t>(g)];
        std::size_t at = 0;
        for (std::int64_t row = 0; row < of.rows; ++row)
            for (std::int64_t head = 0; head < of.heads; ++head, ++at) {
                const plain::merged expected =
                    from.expect(g % of.s * of.rows + row, g / of.s * of.heads + head, plain_base<Base>, sinks);
                right = right && plain::near_lse(rank.lses[at].value, expected.lse * factor);
                for (std::size_t d = 0; d < expected.out.size(); ++d) {
                    const double value = plain::number(rank.out[at * expected.out.size() + d]);
                    error.add(value, expected.out[d]);
                    right = right && (expected.lse != -plain::infinity || value == 0);
                }
            }
    }
    return right && error.value() <= bound;
}

template <class P, lse_base Base, lse_base OutBase, class Merge>
void check_owned(const Merge& merge, const grid& of, std::uint32_t seed, run_options options) {
    CAPTURE(std::string(merge.name()));
    CAPTURE(of.m);
    CAPTURE(of.s);
    CAPTURE(of.rows);
    const plain::partials<P> from(of.ranks(), of.all_rows(), of.all_heads(), of.width, seed);
    options.over = transport::peers;
    const auto peers = run_owned<float, OutBase, Base>(merge, of, from, options);
    CHECK(has_own_states<Base>(of, from, options.sinks, peers, bound_of<Merge, P, float>(merge)));
    options.over = transport::bytes;
    const auto bytes = run_owned<float, OutBase, Base>(merge, of, from, options);
    exchange_shape shape = of.shape();
    shape.partial_bytes = sizeof(P);
    collective_schedule schedule;
    merge.schedule(shape, schedule);
    for (std::size_t g = 0; g < peers.size(); ++g) {
        CHECK(peers[g].same_bits(bytes[g]));
        CHECK(peers[g].bytes_sent == schedule.bytes_sent());
        CHECK(bytes[g].bytes_sent == schedule.bytes_sent());
    }
    if constexpr (std::is_same_v<P, float>) {
        options.over = transport::adding;
        const auto added = run_owned<float, OutBase, Base>(merge, of, from, options);
        CHECK(has_own_states<Base>(of, from, options.sinks, added, bound_of<Merge, P, float>(merge)));
    }
}

// The value of column d of a row of all ranks and of a head of the whole group.
float value(std::int64_t row, std::int64_t head, std::int64_t d) {
    return static_cast<float>(row * 1000 + head * 10 + d);
}

template <class Comm>
void check_query_gather(Comm& comm, const grid& of, bool dense) {
    const std::int64_t pitch = dense ? of.width : of.width + 1;
    std::vector<float> own(static_cast<std::size_t>(of.rows * (of.heads * pitch + 2)), -1);
    head_view<float> q = dense_view(own.data(), of.rows, of.heads, of.width);
    if (!dense) q = {own.data(), of.rows, of.heads, of.width, of.heads, 0, of.heads * pitch + 2, pitch};
    const std::int64_t first_row = comm.rank() % of.s * of.rows;
    const std::int64_t first_head = comm.rank() / of.s * of.heads;
    for (std::int64_t row = 0; row < of.rows; ++row)
        for (std::int64_t head = 0; head < of.heads; ++head)
            for (std::int64_t d = 0; d < of.width; ++d)
                q.at(row, head)[d] = value(first_row + row, first_head + head, d);
    std::vector<float> gathered(static_cast<std::size_t>(of.all_rows() * of.all_heads() * of.width) + 1, -7);
    cpu_backend backend;
    const auto all = gather_queries(&comm, backend, head_view<const float>(q), gathered.data(), 0, {}, of.s);
    int wrong = all.rows == of.all_rows() && all.heads == of.all_heads() && all.width == of.width ? 0 : 1;
    for (std::int64_t row = 0; row < of.all_rows(); ++row)
        for (std::int64_t head = 0; head < of.all_heads(); ++head)
            for (std::int64_t d = 0; d < of.width; ++d) wrong += all.at(row, head)[d] == value(row, head, d) ? 0 : 1;
    CHECK(wrong == 0);
    CHECK(gathered.back() == -7);
}

constexpr merge_kind kinds[] = {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a};

} // namespace

TEST_CASE_TEMPLATE("Every rank is left with its own rows of its own heads, merged exactly", Merge, merge::ag_rs,
                   merge::ag_ar, merge::a2a) {
    std::uint32_t seed = 700;
    for_each_grid([&](std::int64_t m, std::int64_t s) {
        if (m * s == 1) return;
        for (const std::int64_t rows : {1, 4}) {
            ++seed;
            check_owned<float, lse_base::natural, lse_base::natural>(Merge{}, {m, s, rows, 2, 5}, seed,
                                                                     {.sinks = seed % 2 == 0});
            check_owned<float, lse_base::natural, lse_base::natural>(Merge{}, {m, s, rows, 3, 6}, seed,
                                                                     {.sinks = seed % 2 == 1, .dense_partials = true});
        }
        check_owned<bf16, lse_base::natural, lse_base::binary>(Merge{}, {m, s, 2, 1, 7}, ++seed, {.sinks = true});
        check_owned<bf16, lse_base::binary, lse_base::natural>(Merge{}, {m, s, 3, 2, 8}, ++seed, {});
    });
}

TEST_CASE("No rows at all are merged too: every rank makes the calls") {
    for (const merge_kind kind : kinds)
        check_owned<float, lse_base::natural, lse_base::natural>(merge::dynamic{kind}, {2, 3, 0, 2, 5}, 1, {});
}

TEST_CASE("AG+AR leaves all heads of the own rows where they are asked for, and their LSEs") {
    const grid of{2, 2, 3, 2, 5};
    const plain::partials<float> from(4, of.all_rows(), of.all_heads(), of.width, 77);
    run_local_ranks(4, {}, [&](local_communicator& comm) {
        const exchange_shape shape = of.shape();
        nan_workspace workspace(carved_bytes<float, lse_base::natural>(merge::ag_ar{}, shape));
        carver memory(workspace.data());
        const auto buffers = merge::ag_ar::carve<float, lse_base::natural>(memory, shape);
        write_partials(from, static_cast<std::size_t>(comm.rank()),
                       merge::ag_ar::partials(shape, comm.rank(), buffers));
        std::vector<float> out(static_cast<std::size_t>(of.rows * of.all_heads() * of.width));
        std::vector<natural_lse> lses(static_cast<std::size_t>(of.rows * of.all_heads()));
        merge_call<float, lse_base::natural> call;
        call.shape = shape;
        call.rank = comm.rank();
        call.live = from.live.data();
        call.live_stride = from.rows;
        call.out = dense_view(out.data(), of.rows, of.all_heads(), of.width);
        call.lse_out = dense_view(lses.data(), of.rows, of.all_heads(), 1);
        cpu_backend backend;
        merge::ag_ar::run(comm, backend, call, buffers, {});
        plain::relative_error error;
        for (std::int64_t row = 0; row < of.rows; ++row)
            for (std::int64_t head = 0; head < of.all_heads(); ++head) {
                const auto at = static_cast<std::size_t>(row * of.all_heads() + head);
                const plain::merged expected =
                    from.expect(comm.rank() % of.s * of.rows + row, head, plain::base::e, false);
                CHECK(plain::near_lse(lses[at].value, expected.lse));
                for (std::size_t d = 0; d < 5; ++d) error.add(out[at * 5 + d], expected.out[d]);
            }
        CHECK(error.value() <= 1e-6);
    });
}

TEST_CASE("A schedule of spread rows sends what the formulas say, and gathers no heads again") {
    for_each_grid([](std::int64_t m, std::int64_t s) {
        for (const merge_kind kind : kinds)
            for (const std::int64_t rows : {0, 1, 7})
                for (const std::int64_t heads : {1, 4})
                    for (const bool merged_lse : {false, true}) {
                        exchange_shape shape = grid{m, s, rows, heads, 24}.shape();
                        shape.query_width = 40;
                        shape.partial_bytes = 4;
                        shape.merged_lse = merged_lse;
                        const auto others = static_cast<std::uint64_t>(m * s - 1);
                        const auto states = static_cast<std::uint64_t>(rows * heads);
                        const std::uint64_t all_states = states * static_cast<std::uint64_t>(m * s);
                        const exchange_bytes got = exchange(merge::dynamic{kind}, shape);
                        const bool gathers_lse = kind != merge_kind::a2a;
                        const std::uint64_t vector = kind == merge_kind::a2a ? 24 * 4 + 4 : 24 * 4;
                        CHECK(got.gather_q == others * states * 40 * 2);
                        CHECK(got.gather_lse == (gathers_lse ? others * all_states * 4 : 0));
                        CHECK(got.outputs == others * states * vector * (kind == merge_kind::ag_ar ? 2 : 1));
                        CHECK(got.regather == 0);
                        CHECK(got.total == got.gather_q + got.gather_lse + got.outputs);
                        CHECK(got.collectives == (m * s == 1 ? 0 : (gathers_lse ? 3 : 2)));
                    }
    });
}

TEST_CASE("Queries are gathered over the KV group where rows are spread, over its tp ranks where they are not") {
    exchange_shape shape = grid{3, 2, 5, 4, 8}.shape();
    shape.query_type = scalar_type::bf16;
    const collective_call spread = query_gather(shape);
    CHECK(spread.op == collective_op::all_gather);
    CHECK(spread.group == group_role::kv);
    CHECK(spread.type == scalar_type::bf16);
    CHECK(spread.size == 6);
    CHECK(spread.bytes == 5 * 4 * 11 * 2);
    CHECK(std::string(spread.what) == "queries");
    shape.row_owners = 1; // the same ten rows on all six ranks
    const collective_call replicated = query_gather(shape);
    CHECK(replicated.group == group_role::query);
    CHECK(replicated.size == 3);
    CHECK(replicated.bytes == 10 * 4 * 11 * 2);
    CHECK(query_gather(grid{1, 1, 5, 4, 8}.shape()).size == 1);
}

TEST_CASE("Gathered queries are the rows of all PCP ranks and the heads of all tp ranks, in order") {
    for_each_grid([](std::int64_t m, std::int64_t s) {
        for (const bool dense : {true, false})
            run_local_ranks(static_cast<int>(m * s), {}, [&](local_communicator& comm) {
                const grid of{m, s, 3, 2, 4};
                if (of.ranks() == 1) return;
                check_query_gather(comm, of, dense);
                bytes_only moved(comm);
                check_query_gather(moved, of, dense);
                const std::uint64_t sent = query_gather(grid{m, s, 3, 2, 1}.shape()).bytes_sent(); // 4 wide, 2 bytes
                CHECK(comm.bytes_sent() == 2 * 2 * sent);
            });
    });
}

TEST_CASE("A message has every state of its rank's rows and heads once, densely") {
    for_each_grid([](std::int64_t m, std::int64_t s) {
        for (const std::int64_t pitch : {0, 7}) {
            const grid of{m, s, 3, 2, 5};
            const exchange_shape shape = of.shape();
            const std::int64_t step = pitch == 0 ? of.width : pitch;
            CHECK(shape.scatters());
            float* const none = nullptr;
            const auto view = message_view(shape, none, of.width, pitch);
            CHECK(view.rows == of.all_rows());
            CHECK(view.heads == of.all_heads());
            CHECK(view.width == of.width);
            std::int64_t next = 0;
            for (std::int64_t g = 0; g < of.ranks(); ++g) {
                CHECK(shape.first_owned_row(g) == g % s * of.rows);
                CHECK(scattered_heads(shape, g) == head_range{g / s * of.heads, (g / s + 1) * of.heads});
                for (std::int64_t row = 0; row < of.rows; ++row)
                    for (std::int64_t head = 0; head < of.heads; ++head, next += step)
                        CHECK(view.offset(g % s * of.rows + row, g / s * of.heads + head) == next);
            }
        }
    });
}
