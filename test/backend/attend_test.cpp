// Attention on the CPU against attention in double, for every instruction set that this processor has.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <support/instruction_sets.hpp>

#include <ctxpar/backend/cpu.hpp>

#include "attend_case.hpp"

using namespace ctxpar;
using ctxpar_test::instruction_sets;
using plain::attend_request;
using plain::attend_sizes;
using plain::course;
using plain::interval;

namespace {

// Queries and cache are of type T.
template <class T>
using case_of = plain::attend_case<T, T>;

// Says law(T()) for fp32, and for bf16, which a matrix unit has kernels of its own for.
template <class Law>
void in_each_type(const Law& law) {
    law(float());
    law(bf16());
}

template <class T>
void check_everywhere(const plain::attend_case<T, T>& given, std::int64_t max_splits = 1, double lse_bound = 1.0) {
    const std::vector<plain::merged> expected = given.expect_all();
    for (const cpu::isa set : instruction_sets()) {
        CAPTURE(std::string(name_of(set)));
        const auto error = plain::error_of(expected, given.template run<float>({1, set}, max_splits));
        CHECK(error.out <= plain::attend_bound<float>());
        CHECK(error.lse <= lse_bound);
        CHECK(error.empty_right);
    }
}

// Two requests with the last `rows` and one row, as verify steps have them.
std::vector<attend_request> two_requests(std::int64_t keys, std::int64_t rows) {
    attend_request first{keys, {}};
    for (std::int64_t i = 0; i < rows; ++i)
        first.rows.push_back(interval(0, std::max<std::int64_t>(0, keys - rows + i + 1)));
    return {first, {keys / 3 + 1, {interval(0, keys / 3 + 1)}}};
}

// Rows with intervals that start and end anywhere, some with a prefix, a tail mask, or nothing at all.
std::vector<attend_request> any_requests(std::mt19937& random, std::int64_t longest) {
    const auto upto = [&](std::int64_t n) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n + 1));
    };
    std::vector<attend_request> requests;
    for (int r = 0; r < 3; ++r) {
        attend_request one{upto(longest), {}};
        std::int64_t lo = 0;
        std::int64_t hi = upto(one.keys);
        for (int i = 0; i < 4; ++i) {
            hi += upto(one.keys - hi);
            lo += upto(std::min<std::int64_t>(hi - lo, 70));
            visible_keys row = interval(lo, hi);
            if (random() % 3 == 0) row.prefix = upto(lo);
            if (random() % 3 == 0) {
                row.tail = hi - upto(std::min<std::int64_t>(hi, 64));
                row.tail_bits = (std::uint64_t{random()} << 32) | random();
            }
            one.rows.push_back(row);
        }
        requests.push_back(one);
    }
    return requests;
}

// Sizes whose width is that of both keys and values.
attend_sizes wide(std::int64_t width, std::int64_t kv_heads = 2, std::int64_t group = 3) {
    attend_sizes sizes;
    sizes.kv_heads = kv_heads;
    sizes.group = group;
    sizes.query_width = sizes.value_width = width;
    return sizes;
}

// A width for each way to walk over the keys: rows are widened into a buffer, or read where they lie.
constexpr std::int64_t both_ways[] = {20, 32};

constexpr float inf = std::numeric_limits<float>::infinity();

} // namespace

TEST_CASE("Attention of any head width is that in double") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        for (const std::int64_t width : {1, 5, 16, 17, 32, 64, 80, 96, 128, 256}) {
            CAPTURE(width);
            check_everywhere(attend_case(wide(width), two_requests(301, 3), course::random, 50));
        }
        attend_sizes uneven = wide(24);
        uneven.value_width = 40;
        check_everywhere(attend_case(uneven, two_requests(100, 2), course::random, 51));
        uneven.value_width = 3;
        check_everywhere(attend_case(uneven, two_requests(100, 2), course::random, 52));
        for (const auto& [keys, values] : {std::pair{32, 96}, std::pair{96, 32}, std::pair{192, 128}}) {
            uneven.query_width = keys;
            uneven.value_width = values;
            check_everywhere(attend_case(uneven, two_requests(100, 2), course::random, 52));
        }
    });
}

TEST_CASE("Attention over latent rows is that in double") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        attend_sizes sizes;
        sizes.latent = true;
        for (const auto& [latent, rope] :
             {std::pair{512, 64}, std::pair{64, 32}, std::pair{20, 9}, std::pair{16, 1}, std::pair{7, 20}}) {
            sizes.query_width = latent + rope;
            sizes.value_width = latent;
            sizes.group = latent > 100 ? 5 : 19;
            check_everywhere(attend_case(sizes, two_requests(180, 2), course::random, 53));
        }
    });
}

TEST_CASE("Any number of rows and heads is served, whatever it divides by") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        for (const auto& [rows, group] :
             {std::pair{1, 1}, std::pair{1, 2}, std::pair{3, 1}, std::pair{1, 5}, std::pair{2, 3}, std::pair{11, 3},
              std::pair{33, 1}, std::pair{1, 33}, std::pair{1, 40}, std::pair{8, 5}, std::pair{40, 2}, std::pair{1, 4},
              std::pair{2, 4}, std::pair{4, 4}, std::pair{17, 1}}) {
            CAPTURE(rows);
            CAPTURE(group);
            for (const std::int64_t width : both_ways)
                check_everywhere(attend_case(wide(width, 2, group), two_requests(77, rows), course::random, 54));
        }
    });
}

TEST_CASE("However scores follow each other, the softmax is exact") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        for (const course kind : {course::random, course::rising, course::falling, course::one_huge, course::equal}) {
            CAPTURE(static_cast<int>(kind));
            for (const std::int64_t keys : {1, 31, 32, 33, 1023, 1024, 1025, 3000})
                for (const std::int64_t width : both_ways) // a score of 60 is itself good to a few ulp only
                    check_everywhere(attend_case(wide(width, 1, 3), two_requests(keys, 2), kind, 55), 1,
                                     kind == course::one_huge ? 2.0 : 1.0);
        }
    });
}

TEST_CASE("Intervals, prefixes and tail masks may start and end anywhere") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        std::mt19937 random(56);
        for (int round = 0; round < 60; ++round) {
            const std::int64_t longest = round % 4 == 0 ? 2500 : 200;
            attend_sizes sizes = wide(round % 5 < 2 ? 9 : 32, 1 + round % 4, 1 + round % 3);
            sizes.page_size = round % 3 == 0 ? 16 : 5;
            sizes.order = round % 2 == 0 ? page_order::nhd : page_order::hnd;
            check_everywhere(attend_case(sizes, any_requests(random, longest), course::random, 57,
                                         plain::scaled::not_at_all, round % 3));
        }
    });
}

TEST_CASE("Keys are all seen, seen in part and all seen again") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        visible_keys row = interval(200, 512);
        row.prefix = 100;
        for (const std::int64_t group : {5, 16, 40}) {
            CAPTURE(group);
            check_everywhere(attend_case(wide(32, 2, group), {{512, {row}}}, course::random, 58));
        }
    });
}

TEST_CASE("Blocks of a table may be smaller than pages, and lie in any order") {
    in_each_type([](auto type) {
        for (const std::int64_t block : {1, 4, 16, 32}) {
            CAPTURE(block);
            for (const page_order order : {page_order::nhd, page_order::hnd}) {
                attend_sizes sizes = wide(64, 2, 3);
                sizes.page_size = 32;
                sizes.block_size = block;
                sizes.order = order;
                check_everywhere(case_of<decltype(type)>(sizes, two_requests(301, 2), course::random, 72));
            }
        }
        // Few pages, so that blocks that follow each other in the sequence often share one.
        attend_sizes sizes = wide(64, 1, 6);
        sizes.page_size = 128;
        sizes.block_size = 4;
        check_everywhere(case_of<decltype(type)>(sizes, two_requests(128, 1), course::random, 73));
    });
}

TEST_CASE("Requests without rows, rows without keys and steps without requests are legal") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        const attend_request no_rows{50, {}};
        const attend_request no_keys{0, {interval(0, 0), interval(0, 0)}};
        const attend_request sees_nothing{50, {interval(7, 7), interval(7, 9)}};
        for (const std::int64_t width : both_ways) {
            check_everywhere(attend_case(wide(width), {no_rows, no_keys, sees_nothing}, course::random, 58,
                                         plain::scaled::not_at_all, 2));
            check_everywhere(attend_case(wide(width), {no_keys}, course::random, 59));
            check_everywhere(attend_case(wide(width), {}, course::random, 60, plain::scaled::not_at_all, 2));
            check_everywhere(attend_case(wide(width), {}, course::random, 60));
        }
    });
}

TEST_CASE("A scale and a soft cap act on every score") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        for (const float cap : {0.0F, 0.5F, 30.0F})
            for (const float scale : {0.25F, -0.125F, 1.0F}) {
                for (const std::int64_t width : both_ways) {
                    attend_case given(wide(width), two_requests(300, 3), course::random, 61);
                    given.options.scale = scale / static_cast<float>(width);
                    given.options.soft_cap = cap;
                    check_everywhere(given);
                }
            }
    });
}

TEST_CASE("A score of -inf has no weight, and a row of such scores is empty") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        for (const std::int64_t width : both_ways) {
            attend_case given(wide(width, 1, 2), {{40, {interval(0, 20), interval(0, 40)}}}, course::random, 62);
            for (std::int64_t row = 0; row < 2; ++row)
                for (std::int64_t head = 0; head < 2; ++head) given.query(row, head)[3] = decltype(type)(1.0F);
            for (std::int64_t j = 0; j < 30; ++j) given.key(0, j, 0)[3] = decltype(type)(-inf);
            CHECK(given.expect(0, 0, 0).lse == -plain::infinity);
            check_everywhere(given);
        }
    });
}

namespace {

// What is not finite in a key or value of request 0 reaches its second KV head in the rows that see it, and no other.
template <class T>
void check_broken(const std::vector<attend_request>& requests, std::int64_t width, std::int64_t at, bool in_values,
                  float broken) {
    CAPTURE(width);
    CAPTURE(at);
    CAPTURE(in_values);
    case_of<T> given(wide(width, 2, 3), requests, course::random, 63);
    (in_values ? given.value(0, at, 1) : given.key(0, at, 1))[7] = T(broken);
    for (std::int64_t head = 0; head < 6 && !in_values; ++head)
        for (std::int64_t row = 0; row < 3; ++row) given.query(row, head)[7] = T(1.0F); // +inf, not -inf
    for (const cpu::isa set : instruction_sets()) {
        const auto got = given.template run<float>({1, set});
        int wrong = 0;
        for (std::int64_t row = 0; row < 4; ++row) {
            for (std::int64_t head = 0; head < 6; ++head) {
                const bool hit =
                    row < 3 && head >= 3 && plain::row_sees_key(requests[0].rows[static_cast<std::size_t>(row)], at);
                const float lse = got.lse[static_cast<std::size_t>(row * 6 + head)].value;
                wrong += std::isnan(lse) == (hit && !in_values) ? 0 : 1;
                for (std::int64_t d = 0; d < width; ++d) {
                    const bool here = hit && (!in_values || d == 7);
                    const float o = got.out[static_cast<std::size_t>((row * 6 + head) * width + d)];
                    wrong += std::isfinite(o) == !here ? 0 : 1;
                }
            }
        }
        CHECK(wrong == 0);
    }
}

} // namespace

TEST_CASE("NaN in a key or value that a row sees is visible in that row, and in no other") {
    const std::vector<attend_request> requests = {{70, {interval(0, 50), interval(10, 60), interval(40, 70)}},
                                                  {30, {interval(0, 30)}}};
    in_each_type([&](auto type) {
        for (const float broken : {std::numeric_limits<float>::quiet_NaN(), inf})
            for (const bool in_values : {false, true})
                for (const std::int64_t at : {3, 20, 45, 55, 69}) // first, first two, all three, last two, last row
                    for (const std::int64_t width : both_ways)
                        check_broken<decltype(type)>(requests, width, at, in_values, broken);
    });
}

TEST_CASE("NaN in a latent row is visible in the rows that see it, and in no other") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        for (const std::int64_t latent : both_ways) {
            attend_sizes sizes;
            sizes.latent = true;
            sizes.query_width = latent == 32 ? 64 : 26;
            sizes.value_width = latent;
            sizes.group = 5;
            for (const std::int64_t column :
                 {std::int64_t{3}, latent + 3}) { // in the latent part, the value, and in the rope part
                attend_case given(sizes, {{40, {interval(0, 39), interval(0, 40), interval(5, 40)}}}, course::random,
                                  68);
                given.key(0, 39, 0)[column] = decltype(type)(std::numeric_limits<float>::quiet_NaN());
                for (const cpu::isa set : instruction_sets()) {
                    const auto got = given.template run<float>({1, set});
                    const auto width = static_cast<std::size_t>(latent);
                    for (std::size_t at = 0; at < 15; ++at) CHECK(std::isnan(got.lse[at].value) == (at >= 5));
                    for (std::size_t at = 0; at < 15 * width; ++at) CHECK(std::isnan(got.out[at]) == (at >= 5 * width));
                }
            }
        }
    });
}

namespace {

// Many rows that see the first keys and a window that moves along, six heads each: several blocks of pairs share the
// tiles of an item.
attend_request moving_windows() {
    attend_request one{300, {}};
    for (std::int64_t i = 0; i < 90; ++i) {
        visible_keys row = interval(std::max<std::int64_t>(0, i * 3 - 60), i * 3 + 30);
        row.prefix = std::min<std::int64_t>(row.lo, 4);
        one.rows.push_back(row);
    }
    return one;
}

// With one number of key or value `at` broken, rows that don't see it keep their bits.
template <class T>
void check_apart(plain::attend_case<T, T>& given, std::int64_t at, bool in_values) {
    CAPTURE(at);
    CAPTURE(in_values);
    const std::int64_t width = given.sizes().value_width;
    T& number = (in_values ? given.value(0, at, 0) : given.key(0, at, 0))[7];
    for (const cpu::isa set : instruction_sets()) {
        const auto clean = given.template run<float>({1, set});
        const T before = std::exchange(number, T(std::numeric_limits<float>::quiet_NaN()));
        const auto got = given.template run<float>({1, set});
        number = before;
        int wrong = 0;
        for (std::int64_t row = 0; row < given.rows(); ++row) {
            const bool hit = plain::row_sees_key(given.requests()[0].rows[static_cast<std::size_t>(row)], at);
            for (std::int64_t d = 0; d < given.heads() * width; ++d) {
                const auto place = static_cast<std::size_t>(row * given.heads() * width + d);
                const bool broken = hit && (!in_values || d % width == 7);
                wrong += std::isnan(got.out[place]) == broken ? 0 : 1;
                if (!hit) wrong += got.out[place] == clean.out[place] ? 0 : 1;
                if (hit && !broken) wrong += std::fabs(got.out[place] - clean.out[place]) <= 1e-5F ? 0 : 1;
            }
        }
        CHECK(wrong == 0);
    }
}

} // namespace

TEST_CASE("Pairs that share keys keep apart what they see") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        for (const std::int64_t width : both_ways) {
            attend_sizes sizes = wide(width, 1, 6);
            attend_case given(sizes, {moving_windows()}, course::random, 69);
            check_everywhere(given);
            for (const std::int64_t at : {0, 7, 100, 153, 296})
                for (const bool in_values : {false, true}) check_apart(given, at, in_values);
            sizes.latent = true;
            sizes.query_width = width + 10;
            check_everywhere(attend_case(sizes, {moving_windows()}, course::rising, 70));
            given.options.soft_cap = 0.3F;
            check_everywhere(given);
            const attend_request few{300, {interval(0, 200), interval(100, 300)}};
            attend_case streamed(wide(width, 1, 6), {few}, course::random, 71);
            attend_case steep(wide(width, 1, 6), {few}, course::rising, 72); // the sums so far shrink at every step
            steep.options.scale *= 4.0F;
            for (const std::int64_t at : {3, 50, 130, 250, 283})
                for (const bool in_values : {false, true}) {
                    check_apart(streamed, at, in_values);
                    check_apart(steep, at, in_values);
                }
        }
    });
}

namespace {

template <class T>
void check_splits(const plain::attend_case<T, T>& given) {
    const auto whole = given.template run<float>();
    for (const std::int64_t splits : {1, 2, 3, 8}) {
        check_everywhere(given, splits);
        const auto got = given.template run<float>({}, splits);
        plain::relative_error apart;
        for (std::size_t i = 0; i < whole.out.size(); ++i) apart.add(got.out[i], whole.out[i]);
        CHECK(apart.value() <= 1e-6);
    }
}

} // namespace

TEST_CASE("Splits of the keys change nothing beyond rounding") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        const std::vector<attend_request> requests = {{14000, {interval(0, 13998), interval(100, 14000)}},
                                                      {5000, {interval(4100, 5000)}},
                                                      {9000, {{10, 5000, 9000, 9000, 0}}},
                                                      {3, {interval(0, 3)}}};
        for (const course kind : {course::random, course::rising}) {
            for (const std::int64_t width : both_ways) check_splits(attend_case(wide(width, 1, 3), requests, kind, 64));
        }
    });
}

TEST_CASE("A sum over very many keys is as good as one over few") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        constexpr std::int64_t keys = 131072;
        for (const std::int64_t width : both_ways) {
            attend_sizes sizes = wide(width, 1, 1);
            sizes.page_size = 1024;
            attend_case given(sizes, {{keys, {interval(0, keys)}}}, course::equal, 71,
                              plain::scaled::tensor); // so that weights are not 1
            for (std::int64_t j = 0; j < keys; ++j)   // so that all roundings go the same way
                for (std::int64_t d = 0; d < width; ++d)
                    given.value(0, j, 0)[d] = decltype(type)(0.1F + 0.001F * static_cast<float>(d));
            check_everywhere(given);
        }
    });
}

TEST_CASE("The number of threads changes no bit") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        std::mt19937 random(65);
        auto requests = any_requests(random, 4000);
        requests.push_back({6000, {interval(0, 6000)}});
        attend_request many{3000, {}};
        for (std::int64_t i = 0; i < 33; ++i) many.rows.push_back(interval(i * 5, 2960 + i));
        const auto check = [](const attend_case& given) {
            for (const cpu::isa set : {cpu::best_isa(), instruction_sets().back()}) {
                for (const std::int64_t splits : {1, 4}) {
                    if (set == cpu::isa::amx && splits == 1) continue; // emulation takes its time
                    const auto one = given.template run<float>({1, set}, splits);
                    if (set != cpu::isa::amx) CHECK((given.template run<float>({2, set}, splits) == one));
                    CHECK((given.template run<float>({5, set}, splits) == one)); // items take fewer KV heads, or pairs
                }
            }
        };
        for (const std::int64_t width : both_ways) {
            check(attend_case(wide(width, 5, 2), requests, course::random, 66));
            check(attend_case(wide(width, 2, 5), {many, {3000, {interval(0, 3000)}}}, course::random, 66));
        }
    });
}

TEST_CASE("A request has the same bits alone and in a batch") {
    in_each_type([](auto type) {
        using attend_case = case_of<decltype(type)>;
        std::mt19937 random(67);
        auto requests = any_requests(random, 6000);
        requests.push_back({9000, {interval(0, 9000)}});
        for (const std::int64_t width : both_ways) {
            const attend_case given(wide(width, 2, 5), requests, course::random, 67);
            const auto w = static_cast<std::size_t>(width);
            for (const cpu::isa set : instruction_sets()) {
                const auto batch = given.template run<float>({1, set}, 4);
                for (std::size_t r = 0; r < requests.size(); ++r) {
                    const auto alone = given.template run<float>({2, set}, 4, static_cast<std::int64_t>(r));
                    const auto first = static_cast<std::size_t>(given.first_row(r) * given.heads());
                    CHECK(std::memcmp(alone.out.data(), batch.out.data() + first * w,
                                      alone.out.size() * sizeof(float)) == 0);
                    CHECK(std::memcmp(alone.lse.data(), batch.lse.data() + first, alone.lse.size() * sizeof(float)) ==
                          0);
                }
            }
        }
    });
}
