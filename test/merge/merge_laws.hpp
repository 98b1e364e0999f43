// The merge law as every policy must keep it, over both kinds of transport: doctest checks to be called from the test
// of each policy.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include <support/plain_merge.hpp>
#include <support/plain_numbers.hpp>

#include "merge_runs.hpp"

namespace ctxpar_test {

template <lse_base Base>
constexpr plain::base plain_base = Base == lse_base::natural ? plain::base::e : plain::base::two;

// Whether every rank has the merge of the definition: outputs in relative L2 (the whole of all ranks), each LSE by
// itself, rows without keys exactly, and a NaN wherever the definition has one and nowhere else.
template <lse_base Base, class Out, lse_base OutBase, class P>
bool is_merged(const plain::partials<P>& from, bool sinks, const results<Out, OutBase>& got, double bound) {
    const double factor = OutBase == Base ? 1.0 : (OutBase == lse_base::natural ? std::log(2.0) : 1 / std::log(2.0));
    plain::relative_error error;
    bool right = true;
    for (const auto& rank : got) {
        for (std::int64_t row = 0; row < from.rows; ++row) {
            for (std::int64_t head = 0; head < from.heads; ++head) {
                const plain::merged expected = from.expect(row, head, plain_base<Base>, sinks);
                if (head >= rank.lse_heads.first && head < rank.lse_heads.last) {
                    const auto at =
                        static_cast<std::size_t>(row * rank.lse_heads.count() + head - rank.lse_heads.first);
                    right = right && plain::near_lse(rank.lses[at].value, expected.lse * factor);
                }
                if (head < rank.heads.first || head >= rank.heads.last) continue;
                const std::int64_t at = (row * rank.heads.count() + head - rank.heads.first) * from.width;
                for (std::int64_t d = 0; d < from.width; ++d) {
                    const double value = plain::number(rank.out[static_cast<std::size_t>(at + d)]);
                    error.add(value, expected.out[static_cast<std::size_t>(d)]);
                    right = right && (expected.lse != -plain::infinity || value == 0);
                }
            }
        }
    }
    return right && error.value() <= bound;
}

// How far a policy may be from the definition. fp32 partials: 1e-6. Where partials cross as 16-bit numbers A2A still
// adds them in fp32 as they are, while the AG forms round each scaled part, and AG+AR its sum too: relative L2 of one
// rounding is at most 2^-9 for bf16 and 2^-12 for f16, of independent parts together no more than twice that.
template <class Merge, class P, class Out>
double bound_of(const Merge& merge) {
    const bool rounds_parts = sizeof(P) == 2 && std::string(merge.name()) != "a2a";
    const bool rounds_shares =
        sizeof(Out) == 2 && leaves_partial_sums(merge); // which are rounded before they are added
    const double part = rounds_parts ? std::ldexp(1.0, -1 - plain::format_of<P>().mantissa_bits) : 0.0;
    return plain::merge_bound<Out>() + part + (rounds_shares ? plain::merge_bound<Out>() : 0.0);
}

// Over every transport: the ranks' results are right, and moving bytes gives the bits of reading peers in place.
template <class P, class Out, lse_base Base, lse_base OutBase, class Merge>
void check_merge(const Merge& merge, const plain::partials<P>& from, run_options options) {
    CAPTURE(from.count);
    CAPTURE(from.heads);
    CAPTURE(from.width);
    CAPTURE(options.sinks);
    CAPTURE(options.dense_partials);
    options.over = transport::peers;
    const auto peers = run_merge<Out, OutBase, Base>(merge, from, options);
    CHECK(is_merged<Base>(from, options.sinks, peers, bound_of<Merge, P, Out>(merge)));
    options.over = transport::bytes;
    const auto bytes = run_merge<Out, OutBase, Base>(merge, from, options);
    CHECK(same_bits(peers, bytes));
    if constexpr (std::is_same_v<P, float> && Base == OutBase) { // one instance is enough, and saves compiling
        options.over = transport::adding;
        const auto added = run_merge<Out, OutBase, Base>(merge, from, options);
        CHECK(is_merged<Base>(from, options.sinks, added, bound_of<Merge, P, Out>(merge)));
    }

    collective_schedule schedule;
    merge.schedule(shape_of(from), schedule);
    for (const auto& rank : peers) CHECK(rank.bytes_sent == schedule.bytes_sent());
    for (const auto& rank : bytes) CHECK(rank.bytes_sent == schedule.bytes_sent());
}

// Heads for `ranks` ranks: a number that they divide, or one that they do not.
template <class Merge>
std::vector<std::int64_t> head_counts(const Merge& merge, std::int64_t ranks) {
    if (merge.scatters_heads()) return {3 * ranks};
    return {3, 2 * ranks};
}

template <class P, class Out, lse_base Base, lse_base OutBase, class Merge>
void check_random_merges(const Merge& merge) {
    std::uint32_t seed = 90;
    for (const std::int64_t ranks : {2, 3, 4, 8}) {
        for (const std::int64_t width : {1, 6, 17, 80}) {
            for (const std::int64_t heads : head_counts(merge, ranks)) {
                const plain::partials<P> from(ranks, 5, heads, width, ++seed);
                check_merge<P, Out, Base, OutBase>(merge, from, {.sinks = seed % 2 == 0});
                check_merge<P, Out, Base, OutBase>(merge, from, {.sinks = seed % 3 == 0, .dense_partials = true});
            }
        }
    }
}

// Every example of the merge law, one head a rank, two rows that are alike.
template <lse_base Base, class Merge>
void check_examples(const Merge& merge) {
    for (const plain::example& one : plain::examples()) {
        if (one.b != plain_base<Base>) continue;
        CAPTURE(one.name);
        const auto ranks = static_cast<std::int64_t>(one.lse.size());
        plain::partials<float> from(ranks, 2, ranks, static_cast<std::int64_t>(one.width()), 1);
        for (std::size_t i = 0; i < one.lse.size(); ++i) {
            std::fill(from.lse[i].begin(), from.lse[i].end(), static_cast<float>(one.lse[i]));
            for (std::size_t at = 0; at < from.out[i].size(); ++at)
                from.out[i][at] = static_cast<float>(one.out[i][at % one.width()]);
            from.live[2 * i] = from.live[2 * i + 1] = one.empty(i) ? 0 : 1;
        }
        const double unit = Base == lse_base::natural ? 1.0 : std::log(2.0);
        if (one.sink) std::fill(from.sinks.begin(), from.sinks.end(), static_cast<float>(*one.sink * unit));
        for (const transport over : {transport::peers, transport::bytes, transport::adding}) {
            const run_options options{over, one.sink.has_value(), false, !one.lengths.empty()};
            int wrong = 0;
            for (const auto& rank : run_merge<float, Base, Base>(merge, from, options)) {
                for (const auto& lse : rank.lses) wrong += plain::near_lse(lse.value, one.merged_lse) ? 0 : 1;
                for (std::size_t at = 0; at < rank.out.size(); ++at) {
                    const double expected = one.merged_out[at % one.width()];
                    wrong += plain::near(rank.out[at], expected, 2e-6 * std::fabs(expected)) ? 0 : 1;
                }
            }
            CHECK(wrong == 0);
        }
    }
}

// A part that is alone with its weight for some row keeps its bits; rows without keys anywhere are empty.
template <class P, class Merge>
void check_lone_parts(const Merge& merge) {
    plain::partials<P> from(3, 4, 3, 6, 2);
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t row = 0; row < 4; ++row) {
            from.live[i * 4 + row] = i == row ? 1 : 0; // row i has keys on rank i, row 3 nowhere
            for (std::size_t head = 0; head < 3; ++head) {
                if (i == row) from.lse[i][row * 3 + head] = 0.1F + static_cast<float>(head);
                for (std::size_t d = 0; i == row && d < 6; ++d)
                    from.out[i][(row * 3 + head) * 6 + d] = static_cast<P>(0.3F * static_cast<float>(i + d + head + 1));
            }
        }
    int wrong = 0;
    for (const auto& rank : run_merge<P, lse_base::natural, lse_base::natural>(merge, from, {})) {
        for (std::size_t row = 0; row < 4; ++row) {
            for (std::int64_t head = rank.heads.first; head < rank.heads.last; ++head) {
                const auto h = static_cast<std::size_t>(head);
                const P* got = rank.out.data() +
                               (static_cast<std::int64_t>(row) * rank.heads.count() + head - rank.heads.first) * 6;
                const bool same = row == 3 ? std::all_of(got, got + 6, [](P x) { return plain::number(x) == 0; })
                                           : std::memcmp(got, &from.out[row][(row * 3 + h) * 6], 6 * sizeof(P)) == 0;
                wrong += same ? 0 : 1;
            }
            for (std::int64_t head = rank.lse_heads.first; head < rank.lse_heads.last; ++head) {
                const float lse =
                    rank.lses[static_cast<std::size_t>(static_cast<std::int64_t>(row) * rank.lse_heads.count() + head -
                                                       rank.lse_heads.first)]
                        .value;
                wrong += lse == (row == 3 ? -INFINITY : 0.1F + static_cast<float>(head)) ? 0 : 1;
            }
        }
    }
    CHECK(wrong == 0);
}

// Ranks may hold the parts in any order.
template <class Merge>
void check_any_order(const Merge& merge) {
    const plain::partials<float> from(4, 5, 4, 10, 3);
    plain::partials<float> turned = from;
    for (std::size_t turn = 1; turn < 4; ++turn) {
        std::rotate(turned.out.begin(), turned.out.begin() + 1, turned.out.end());
        std::rotate(turned.lse.begin(), turned.lse.begin() + 1, turned.lse.end());
        std::rotate(turned.live.begin(), turned.live.begin() + 5, turned.live.end());
        const auto got = run_merge<float, lse_base::natural, lse_base::natural>(merge, turned, {.sinks = true});
        CHECK(is_merged<lse_base::natural>(from, true, got, 1e-6));
    }
}

// 64 shards; in bf16 too, whose equal weights a chain of bf16 sums would lose. The sum is rounded where it crosses as
// bf16 once more, in AG+AR.
template <class Merge>
void check_64_shards(const Merge& merge) {
    const plain::partials<float> from(64, 2, 64, 3, 4);
    CHECK(is_merged<lse_base::natural>(
        from, true, run_merge<float, lse_base::natural, lse_base::natural>(merge, from, {.sinks = true}), 1e-6));
    for (const float odd : {2.0F, 1.0078125F}) {
        plain::partials<bf16> equal(64, 1, 64, 2, 5);
        std::fill(equal.live.begin(), equal.live.end(), std::uint8_t{1});
        for (std::size_t i = 0; i < 64; ++i) {
            std::fill(equal.lse[i].begin(), equal.lse[i].end(), 1.25F);
            std::fill(equal.out[i].begin(), equal.out[i].end(), bf16(i % 2 == 0 ? 1.0F : odd));
        }
        const float mean = (1.0F + odd) / 2;
        const double expected = std::string(merge.name()) == "ag_ar" ? plain::number(bf16(mean)) : mean;
        int wrong = 0;
        for (const auto& rank : run_merge<float, lse_base::natural, lse_base::natural>(merge, equal, {}))
            for (const float out : rank.out) wrong += out == expected ? 0 : 1;
        CHECK(wrong == 0);
    }
}

} // namespace ctxpar_test
