// Merging, scaling, summing and packing partial states on the CPU, against double.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include <support/plain_merge.hpp>
#include <support/plain_numbers.hpp>

#include <ctxpar/backend/cpu.hpp>

#include "plain_partials.hpp"

using namespace ctxpar;

namespace {

constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

template <lse_base Base>
constexpr plain::base plain_base = Base == lse_base::natural ? plain::base::e : plain::base::two;

// Merged outputs and LSEs, in memory that was full of NaN.
template <class Out, lse_base Base>
struct result {
    std::vector<Out> out;
    std::vector<lse<Base>> lses;

    result(std::int64_t rows, std::int64_t heads, std::int64_t width)
        : out(static_cast<std::size_t>(rows * heads * width), Out(quiet_nan)),
          lses(static_cast<std::size_t>(rows * heads), lse<Base>{quiet_nan}) {}

    bool operator==(const result& other) const {
        return std::memcmp(out.data(), other.out.data(), out.size() * sizeof(Out)) == 0 &&
               std::memcmp(lses.data(), other.lses.data(), lses.size() * sizeof(float)) == 0;
    }
};

template <class Out, lse_base OutBase, class P, lse_base Base>
result<Out, OutBase> merge(const merge_parts<P, Base>& parts, std::int64_t threads = 1) {
    result<Out, OutBase> to(parts.out.rows, parts.out.heads, parts.out.width);
    cpu_backend backend({.threads = threads});
    backend.merge(parts, dense_view(to.out.data(), parts.out.rows, parts.out.heads, parts.out.width),
                  dense_view(to.lses.data(), parts.out.rows, parts.out.heads, 1), {});
    return to;
}

// Compares with the definition: the output in relative L2, every LSE by itself, and empties exactly.
template <class Out, lse_base OutBase, class P, lse_base Base>
bool is_merged(const plain::partials<P>& from, bool with_sinks, const result<Out, OutBase>& got, double bound) {
    plain::relative_error error;
    bool right = true;
    const double factor = OutBase == Base ? 1.0 : (OutBase == lse_base::natural ? std::log(2.0) : 1 / std::log(2.0));
    for (std::int64_t row = 0; row < from.rows; ++row) {
        for (std::int64_t head = 0; head < from.heads; ++head) {
            const plain::merged expected = from.expect(row, head, plain_base<Base>, with_sinks);
            const std::size_t at = from.at(row, head);
            right = right && plain::near_lse(got.lses[at].value, expected.lse * factor);
            for (std::size_t d = 0; d < expected.out.size(); ++d) {
                const double value = plain::number(got.out[at * expected.out.size() + d]);
                error.add(value, expected.out[d]);
                right = right && (expected.lse != -plain::infinity || value == 0);
            }
        }
    }
    return right && error.value() <= bound;
}

template <class P, lse_base Base>
void check_merges(std::int64_t parts, std::int64_t width, std::uint32_t seed, float offset) {
    const plain::partials<P> from(parts, 5, 3, width, seed, offset);
    for (const bool with_sinks : {false, true}) {
        const plain::part_list<P, Base> list(from, with_sinks);
        CAPTURE(parts);
        CAPTURE(width);
        CAPTURE(offset);
        const auto same = merge<float, Base>(list.parts);
        CHECK(is_merged<float, Base, P, Base>(from, with_sinks, same, plain::merge_bound<float>()));
        CHECK((merge<float, Base>(list.parts, 3) == same));
        const auto natural = merge<bf16, lse_base::natural>(list.parts);
        CHECK(is_merged<bf16, lse_base::natural, P, Base>(from, with_sinks, natural, plain::merge_bound<bf16>()));
        const auto binary = merge<f16, lse_base::binary>(list.parts);
        CHECK(is_merged<f16, lse_base::binary, P, Base>(from, with_sinks, binary, plain::merge_bound<f16>()));
    }
}

// An example as parts of one row and head.
template <lse_base Base>
plain::partials<float> partials_of(const plain::example& one) {
    plain::partials<float> from(static_cast<std::int64_t>(one.lse.size()), 1, 1, static_cast<std::int64_t>(one.width()),
                                0);
    for (std::size_t i = 0; i < one.lse.size(); ++i) {
        from.lse[i][0] = static_cast<float>(one.lse[i]);
        for (std::size_t d = 0; d < one.width(); ++d) from.out[i][d] = static_cast<float>(one.out[i][d]);
        from.live[i] = one.empty(i) ? 0 : 1;
    }
    if (one.sink) from.sinks[0] = static_cast<float>(Base == lse_base::natural ? *one.sink : *one.sink * std::log(2.0));
    return from;
}

// Each LSE behind its vector, at pitch width + extra.
template <class P, lse_base Base>
struct packed_list {
    std::vector<std::vector<P>> memory;
    std::vector<const void*> outs;
    merge_parts<P, Base> parts;

    packed_list(const plain::partials<P>& from, const merge_parts<P, Base>& separate) : parts(separate) {
        const std::int64_t pitch = from.width + static_cast<std::int64_t>(sizeof(float) / sizeof(P));
        cpu_backend backend;
        for (std::size_t i = 0; i < from.out.size(); ++i) {
            memory.emplace_back(static_cast<std::size_t>(from.rows * from.heads * pitch), P(quiet_nan));
            const auto* lses = reinterpret_cast<const lse<Base>*>(from.lse[i].data());
            backend.pack(dense_view(from.out[i].data(), from.rows, from.heads, from.width),
                         dense_view(lses, from.rows, from.heads, 1),
                         blocked_view(memory[i].data(), 1, from.rows, from.heads, from.width, pitch), {});
            outs.push_back(memory[i].data());
        }
        const P* none = nullptr;
        parts.out_parts = outs.data();
        parts.lse_parts = nullptr;
        parts.out = blocked_view(none, 1, from.rows, from.heads, from.width, pitch);
    }
};

template <lse_base Base>
void check_example(const plain::example& one) {
    CAPTURE(one.name);
    const plain::partials<float> from = partials_of<Base>(one);
    plain::part_list<float, Base> list(from, one.sink.has_value());
    if (one.lengths.empty()) list.parts.live = nullptr;
    const packed_list<float, Base> packed(from, list.parts);
    for (const auto& got : {merge<float, Base>(list.parts), merge<float, Base>(packed.parts)}) {
        CHECK(plain::near_lse(got.lses[0].value, one.merged_lse));
        for (std::size_t d = 0; d < one.width(); ++d)
            CHECK(plain::near(got.out[d], one.merged_out[d], 2e-6 * std::fabs(one.merged_out[d])));
    }
}

} // namespace

TEST_CASE_TEMPLATE("Every example of the merge law comes out of the CPU's merge", Tag, natural_lse, binary_lse) {
    for (const plain::example& one : plain::examples())
        if (one.b == plain_base<Tag::base>) check_example<Tag::base>(one);
}

TEST_CASE_TEMPLATE("Merging any number of parts, of any width and type, is the merge in double", P, float, bf16, f16) {
    std::uint32_t seed = 20;
    for (const std::int64_t parts : {1, 2, 3, 4, 8, 64})
        for (const std::int64_t width : {1, 17, 64, 80, 192}) {
            check_merges<P, lse_base::natural>(parts, width, ++seed, 0.0F);
            check_merges<P, lse_base::binary>(parts, width, ++seed, 0.0F);
        }
    for (const float offset : {1e4F, -1e4F}) check_merges<P, lse_base::natural>(4, 65, ++seed, offset);
}

TEST_CASE("Parts merge to the same in any order, to rounding") {
    const plain::partials<float> from(4, 5, 3, 20, 30);
    plain::part_list<float, lse_base::natural> list(from, true);
    const auto first = merge<float, lse_base::natural>(list.parts);
    std::vector<std::size_t> order = {0, 1, 2, 3};
    do {
        std::vector<std::uint8_t> live;
        for (std::size_t i = 0; i < 4; ++i) {
            list.outs[i] = from.out[order[i]].data();
            list.lses[i] = from.lse[order[i]].data();
            for (std::size_t row = 0; row < 5; ++row) live.push_back(from.live[order[i] * 5 + row]);
        }
        list.parts.live = live.data();
        const auto other = merge<float, lse_base::natural>(list.parts);
        plain::relative_error error;
        for (std::size_t i = 0; i < first.out.size(); ++i) error.add(other.out[i], first.out[i]);
        CHECK(error.value() <= 1e-6);
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("Merging in two steps is merging at once") {
    const plain::partials<float> from(6, 5, 3, 20, 31);
    const plain::part_list<float, lse_base::natural> list(from, false);
    for (std::int64_t cut = 1; cut < 6; ++cut) {
        std::vector<result<float, lse_base::natural>> halves;
        std::vector<const void*> outs, lses;
        for (const bool second : {false, true}) {
            auto part = list.parts;
            const std::int64_t skip = second ? cut : 0;
            part.count = second ? 6 - cut : cut;
            part.out_parts += skip;
            part.lse_parts += skip;
            part.live += skip * part.live_stride;
            halves.push_back(merge<float, lse_base::natural>(part));
        }
        for (const auto& half : halves) {
            outs.push_back(half.out.data());
            lses.push_back(half.lses.data());
        }
        auto both = list.parts;
        both.count = 2;
        both.out_parts = outs.data();
        both.lse_parts = lses.data();
        both.live = nullptr; // what is empty says so by its LSE
        CHECK(is_merged<float, lse_base::natural, float, lse_base::natural>(
            from, false, merge<float, lse_base::natural>(both), 1e-6));
    }
}

TEST_CASE_TEMPLATE("One part with weight keeps its bits, and the payload of the others is not read", P, float, bf16) {
    plain::partials<P> from(3, 4, 2, 9, 32);
    for (std::size_t i = 0; i < 12; ++i) from.live[i] = i / 4 == 1 ? 1 : 0;
    for (std::size_t i = 0; i < from.lse[1].size(); ++i) {
        from.lse[1][i] = 0.1F + static_cast<float>(i);
        for (std::size_t d = 0; d < 9; ++d)
            from.out[1][i * 9 + d] = static_cast<P>(0.3F * static_cast<float>(i + d + 1));
    }
    plain::part_list<P, lse_base::natural> list(from, false);
    list.outs[0] = list.outs[2] = nullptr;
    const auto got = merge<P, lse_base::natural>(list.parts);
    CHECK(std::memcmp(got.out.data(), from.out[1].data(), got.out.size() * sizeof(P)) == 0);
    CHECK(std::memcmp(got.lses.data(), from.lse[1].data(), got.lses.size() * sizeof(float)) == 0);
}

TEST_CASE("64 shards of bf16 are added in fp32 and rounded once") {
    const auto merged_of = [](float even, float odd) {
        plain::partials<bf16> from(64, 1, 1, 2, 33);
        std::fill(from.live.begin(), from.live.end(), std::uint8_t{1});
        for (std::size_t i = 0; i < 64; ++i) {
            from.lse[i][0] = 1.25F;
            from.out[i].assign(2, bf16(i % 2 == 0 ? even : odd));
        }
        const plain::part_list<bf16, lse_base::natural> list(from, false);
        return merge<float, lse_base::natural>(list.parts).out[1];
    };
    CHECK(merged_of(1.0F, 2.0F) == 1.5F);              // a chain of bf16 sums would give 1.484375
    CHECK(merged_of(1.0F, 1.0078125F) == 1.00390625F); // and here 1.0
}

TEST_CASE_TEMPLATE("An LSE may lie behind its vector, at any alignment", P, float, bf16, f16) {
    for (const std::int64_t width : {1, 2, 5, 17, 64, 81}) {
        const plain::partials<P> from(4, 5, 3, width, 34);
        const plain::part_list<P, lse_base::natural> list(from, true);
        const packed_list<P, lse_base::natural> packed(from, list.parts);
        CHECK((merge<float, lse_base::natural>(packed.parts) == merge<float, lse_base::natural>(list.parts)));
        // Raw bits, also those of an LSE that is NaN.
        const std::size_t pitch = static_cast<std::size_t>(width) + sizeof(float) / sizeof(P);
        bool same = true;
        for (std::size_t i = 0; i < 15; ++i)
            same = same && std::memcmp(&packed.memory[2][i * pitch + static_cast<std::size_t>(width)], &from.lse[2][i],
                                       sizeof(float)) == 0;
        CHECK(same);
    }
}

TEST_CASE("Output, LSE and parts may lie in blocks and head-major") {
    const plain::partials<float> from(3, 5, 6, 4, 35);
    const plain::part_list<float, lse_base::natural> list(from, true);
    const auto dense = merge<float, lse_base::natural>(list.parts);
    std::vector<float> out(5 * 6 * 7, quiet_nan);
    std::vector<natural_lse> lses(30, natural_lse{quiet_nan});
    const auto out_view = blocked_view(out.data(), 3, 5, 2, 4, 7);
    const auto lse_view = head_major_view(lses.data(), 5, 6);
    cpu_backend backend;
    backend.merge(list.parts, out_view, lse_view, {});
    int wrong = 0;
    for (std::size_t row = 0; row < 5; ++row)
        for (std::size_t head = 0; head < 6; ++head) {
            const float* block = out.data() + (head / 2) * 5 * 2 * 7 + row * 2 * 7 + (head % 2) * 7;
            wrong += std::equal(block, block + 4, dense.out.data() + (row * 6 + head) * 4) ? 0 : 1;
            wrong += std::isnan(block[4]) && std::isnan(block[6]) ? 0 : 1; // the pitch is not written
            wrong += lses[head * 5 + row].value == dense.lses[row * 6 + head].value ? 0 : 1;
        }
    CHECK(wrong == 0);
    backend.merge(list.parts, out_view, head_view<natural_lse>{}, {}); // nobody wants the LSE
}
