// The form of a merge in which each part is scaled by its own weight and the scaled parts add up, and plain copies.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <support/plain_merge.hpp>
#include <support/plain_numbers.hpp>

#include <ctxpar/backend/cpu.hpp>

#include "plain_partials.hpp"

using namespace ctxpar;

namespace {

constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

// Every part scaled, in memory of its own or in place, and the merged LSEs that part 0 wrote.
template <class P>
struct scaled_parts {
    std::vector<std::vector<P>> out;
    std::vector<natural_lse> lses;

    scaled_parts(const plain::partials<P>& from, bool with_sinks, bool in_place)
        : lses(static_cast<std::size_t>(from.rows * from.heads), natural_lse{quiet_nan}) {
        plain::part_list<P, lse_base::natural> list(from, with_sinks);
        list.parts.out_parts = nullptr; // only LSEs are looked at
        cpu_backend backend({.threads = 2});
        for (std::size_t i = 0; i < from.out.size(); ++i) {
            out.push_back(in_place ? from.out[i] : std::vector<P>(from.out[i].size(), P(quiet_nan)));
            const P* own = in_place ? out.back().data() : from.out[i].data();
            const auto lse_out = dense_view(i == 0 ? lses.data() : nullptr, from.rows, from.heads, 1);
            backend.scale(list.parts, static_cast<std::int64_t>(i), dense_view(own, from.rows, from.heads, from.width),
                          dense_view(out.back().data(), from.rows, from.heads, from.width), {}, lse_out, {});
        }
    }
    std::vector<float> sum(const plain::partials<P>& from) const {
        std::vector<const void*> pointers;
        for (const auto& one : out) pointers.push_back(one.data());
        std::vector<float> to(out[0].size(), quiet_nan);
        const P* none = nullptr;
        cpu_backend backend;
        backend.sum_parts(pointers.data(), from.count, dense_view(none, from.rows, from.heads, from.width),
                          dense_view(to.data(), from.rows, from.heads, from.width), {});
        return to;
    }
};

} // namespace

TEST_CASE_TEMPLATE("Parts scaled by their weights add up to the merge, in place or not", P, float, bf16) {
    for (const std::int64_t count : {1, 3, 8})
        for (const std::int64_t width : {1, 64, 80})
            for (const bool with_sinks : {false, true}) {
                const plain::partials<P> from(count, 5, 3, width, 40);
                const scaled_parts<P> apart(from, with_sinks, false);
                const scaled_parts<P> in_place(from, with_sinks, true);
                CHECK(std::memcmp(apart.out[0].data(), in_place.out[0].data(), apart.out[0].size() * sizeof(P)) == 0);
                const std::vector<float> sum = apart.sum(from);
                CHECK(sum == in_place.sum(from));
                plain::relative_error error;
                bool right = true;
                for (std::int64_t row = 0; row < 5; ++row)
                    for (std::int64_t head = 0; head < 3; ++head) {
                        const plain::merged expected = from.expect(row, head, plain::base::e, with_sinks);
                        right = right && plain::near_lse(apart.lses[from.at(row, head)].value, expected.lse);
                        for (std::size_t d = 0; d < expected.out.size(); ++d)
                            error.add(sum[from.at(row, head) * expected.out.size() + d], expected.out[d]);
                    }
                CHECK(right);
                CHECK(error.value() <= 1e-6 + (sizeof(P) == 2 ? std::ldexp(1.0, -8) : 0.0)); // rounded parts
            }
}

TEST_CASE("A broken LSE on one rank makes the scaled parts of every rank NaN, for its row and head only") {
    plain::partials<float> from(3, 2, 2, 4, 41);
    for (auto& live : from.live) live = 1;
    for (auto& lses : from.lse) lses.assign(4, 0.5F);
    for (auto& outs : from.out) outs.assign(16, 1.0F);
    for (const float broken : {quiet_nan, std::numeric_limits<float>::infinity()}) {
        from.lse[1][2] = broken; // row 1, head 0
        const scaled_parts<float> scaled(from, false, true);
        for (std::size_t i = 0; i < 3; ++i)
            for (std::size_t d = 0; d < 16; ++d) CHECK(std::isnan(scaled.out[i][d]) == (d / 4 == 2));
        CHECK(std::isnan(scaled.lses[2].value));
        CHECK_FALSE(std::isnan(scaled.lses[1].value));
    }
    from.live[1 * 2 + 1] = 0; // without keys for row 1 the broken part is no part
    const scaled_parts<float> scaled(from, false, true);
    CHECK(scaled.out[1][8] == 0.0F);
    CHECK(scaled.out[0][8] == 0.5F);
}

TEST_CASE("The merged LSE goes out for the heads that are asked for, in the base that is asked for") {
    const plain::partials<float> from(3, 4, 5, 2, 42);
    const plain::part_list<float, lse_base::natural> list(from, true);
    std::vector<binary_lse> lses(4 * 2 + 1, binary_lse{77});
    std::vector<float> scaled(4 * 5 * 2);
    cpu_backend backend;
    backend.scale(list.parts, 1, dense_view(from.out[1].data(), 4, 5, 2), dense_view(scaled.data(), 4, 5, 2), {0, 2},
                  dense_view(lses.data(), 4, 2, 1), {});
    for (std::int64_t row = 0; row < 4; ++row)
        for (std::int64_t head = 2; head < 4; ++head) {
            const double expected = from.expect(row, head, plain::base::e, true).lse / std::log(2.0);
            CHECK(plain::near_lse(lses[static_cast<std::size_t>(row * 2 + head - 2)].value, expected));
        }
    CHECK(lses.back().value == 77);
}

TEST_CASE("Sums are taken in the order of the parts, in fp32") {
    const std::vector<float> values = {1e8F, 1.0F, -1e8F, 3.0F, 0x1p-30F};
    std::vector<const void*> pointers;
    for (const float& value : values) pointers.push_back(&value);
    const float* none = nullptr;
    float in_order = 0;
    for (const float value : values) in_order += value;
    float got = quiet_nan;
    cpu_backend backend;
    backend.sum_parts(pointers.data(), 5, dense_view(none, 1, 1, 1), dense_view(&got, 1, 1, 1), {});
    CHECK(got == in_order);
    CHECK(got == 3.0F); // the 1 is lost beside 1e8, the last is lost beside 3
    bf16 rounded;
    backend.sum_parts(pointers.data(), 2, dense_view(none, 1, 1, 1), dense_view(&rounded, 1, 1, 1), {});
    CHECK(plain::number(rounded) == plain::number(bf16(1e8F)));
}

TEST_CASE("A copy takes the heads that are asked for and converts") {
    std::vector<float> from(2 * 5 * 3);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i) + 0.3F;
    std::vector<bf16> to(2 * 2 * 4, bf16(77.0F));
    std::vector<float> same(2 * 2 * 3, quiet_nan);
    const auto view = dense_view(static_cast<const float*>(from.data()), 2, 5, 3);
    cpu_backend backend;
    backend.copy(view, 1, blocked_view(to.data(), 1, 2, 2, 3, 4), {});
    backend.copy(view, 1, dense_view(same.data(), 2, 2, 3), {});
    for (std::size_t row = 0; row < 2; ++row)
        for (std::size_t head = 0; head < 2; ++head)
            for (std::size_t d = 0; d < 4; ++d) {
                const bf16 got = to[(row * 2 + head) * 4 + d];
                const float expected = d < 3 ? from[row * 15 + (head + 1) * 3 + d] : 77.0F;
                CHECK(plain::number(got) == plain::number(bf16(expected)));
                if (d < 3) CHECK(same[(row * 2 + head) * 3 + d] == expected);
            }
}
