// Moving rows on the CPU: activations by index, cached rows by slot. What arrives is what was sent, bit for bit, and
// nothing beside it changes.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <support/plain_numbers.hpp>

#include <ctxpar/backend/cpu.hpp>

#include "plain_partials.hpp"

using namespace ctxpar;

namespace {

using numbers = std::vector<std::int64_t>;

std::int64_t at_most(std::mt19937_64& random, std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
}

template <class T>
bool same_bits(const T* a, const T* b, std::int64_t count) {
    return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(T)) == 0;
}

// Any bits at all, NaNs of any payload among them.
template <class T>
std::vector<T> random_bits(std::mt19937_64& random, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& value : values) {
        const std::uint64_t bits = random();
        std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
    }
    return values;
}

// Rows and heads of vectors in memory of random bits, in one of the ways in which views lay them out.
template <class T>
struct area {
    static constexpr int layouts = 4;
    static constexpr std::int64_t heads = 6;

    std::vector<T> memory;
    head_view<T> view;

    area(std::mt19937_64& random, int layout, std::int64_t rows, std::int64_t width)
        : memory(random_bits<T>(random, 2 * (rows + 1) * heads * (width + 3))) {
        T* const base = memory.data() + 1;
        view = dense_view(base, rows, heads, width);
        if (layout == 1) view = blocked_view(base, 3, rows, 2, width, width + 2);
        if (layout == 2) view = {base, rows, heads, width, heads, 0, width, (rows + 1) * width};      // [heads][rows]
        if (layout == 3) view = {base, rows, heads, width, 4, 1, 2 * heads * (width + 2), width + 2}; // with gaps
        if (layout == 3) view.block_stride = 4 * (width + 2) + 1;
    }
    head_view<const T> constant() const { return view; }
};

// Elements that do not hold what `expected(row)` points to ([heads][width], or null: T{}; the same: as before), and
// elements between the rows that changed.
template <class T, class Expected>
int wrong_elements(const area<T>& got, const area<T>& before, const Expected& expected) {
    std::vector<T> wanted = before.memory;
    const std::vector<T> nothing(static_cast<std::size_t>(got.view.width), T{});
    for (std::int64_t row = 0; row < got.view.rows; ++row)
        for (std::int64_t head = 0; head < got.view.heads; ++head) {
            const T* const from = expected(row, head);
            std::copy_n(from == nullptr ? nothing.data() : from, got.view.width,
                        wanted.data() + 1 + got.view.offset(row, head));
        }
    int wrong = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) wrong += same_bits(&wanted[i], &got.memory[i], 1) ? 0 : 1;
    return wrong;
}

// A copy of an area, whose view is of its own memory.
template <class T>
area<T> copy_of(const area<T>& from) {
    area<T> to = from;
    to.view.base = to.memory.data() + 1;
    return to;
}

template <class T, class Index>
void check_copies(std::mt19937_64& random, int from_layout, int to_layout, std::int64_t width, std::int64_t threads) {
    const area<T> from(random, from_layout, 5, width);
    const area<T> before(random, to_layout, 9, width);
    std::vector<Index> rows; // duplicates and holes
    for (int i = 0; i < 9; ++i) rows.push_back(static_cast<Index>(at_most(random, 5) - 1));
    rows[2] = rows[7] = 3;
    rows[4] = -1;
    area<T> to = copy_of(before);
    cpu_backend({.threads = threads}).copy_rows(from.constant(), index_of(rows.data()), to.view, {});
    CHECK(wrong_elements(to, before, [&](std::int64_t row, std::int64_t head) -> const T* {
              const auto source = static_cast<std::int64_t>(rows[static_cast<std::size_t>(row)]);
              return source < 0 ? nullptr : from.view.at(source, head);
          }) == 0);
}

template <class T, class Index>
void check_places(std::mt19937_64& random, int from_layout, int to_layout, std::int64_t width, std::int64_t threads) {
    const area<T> from(random, from_layout, 7, width);
    const area<T> before(random, to_layout, 9, width);
    std::vector<Index> all(9);
    std::iota(all.begin(), all.end(), Index{0});
    std::shuffle(all.begin(), all.end(), random);
    std::vector<Index> rows(all.begin(), all.begin() + 7);
    rows[1] = rows[6] = -1;
    area<T> to = copy_of(before);
    cpu_backend backend({.threads = threads});
    backend.place_rows(from.constant(), index_of(rows.data()), to.view, {});
    CHECK(wrong_elements(to, before, [&](std::int64_t row, std::int64_t head) -> const T* {
              const auto source = std::find(rows.begin(), rows.end(), static_cast<Index>(row));
              return source == rows.end() ? before.view.at(row, head) : from.view.at(source - rows.begin(), head);
          }) == 0);

    area<T> back(random, from_layout, 7, width); // copying by the same index is the way back
    const area<T> back_before = copy_of(back);
    backend.copy_rows(to.constant(), index_of(rows.data()), back.view, {});
    CHECK(wrong_elements(back, back_before, [&](std::int64_t row, std::int64_t head) -> const T* {
              return rows[static_cast<std::size_t>(row)] < 0 ? nullptr : from.view.at(row, head);
          }) == 0);
}

template <class Body>
void for_each_layout(Body body) {
    for (int from = 0; from < area<float>::layouts; ++from)
        for (int to = 0; to < area<float>::layouts; ++to) body(from, to);
}

template <class T>
float value_of(T) {
    return 0.0F;
}
template <lse_base Base>
float value_of(lse<Base> one) {
    return one.value;
}

template <lse_base Base>
bool merges_in_place(const plain::partials<float>& from, bool sinks, bool lengths) {
    plain::partials<float> place = from;
    const auto merge = [&](const plain::partials<float>& parts_of, float* out, lse<Base>* lses) {
        plain::part_list<float, Base> list(parts_of, sinks);
        if (!lengths) list.parts.live = nullptr;
        cpu_backend().merge(list.parts, dense_view(out, from.rows, from.heads, from.width),
                            dense_view(lses, from.rows, from.heads, 1), {});
    };
    std::vector<float> out(from.out[0].size());
    std::vector<lse<Base>> lses(from.lse[0].size());
    merge(from, out.data(), lses.data());
    merge(place, place.out[0].data(), reinterpret_cast<lse<Base>*>(place.lse[0].data()));
    bool same = same_bits(out.data(), place.out[0].data(), static_cast<std::int64_t>(out.size()));
    for (std::size_t i = 0; i < lses.size(); ++i) same = same && same_bits(&lses[i].value, &place.lse[0][i], 1);
    for (std::size_t i = 1; i < from.out.size(); ++i)
        same = same && same_bits(from.out[i].data(), place.out[i].data(), static_cast<std::int64_t>(out.size()));
    return same;
}

} // namespace

#define ROW_TYPES float, bf16, f16, fp8_e4m3, fp8_e5m2, natural_lse, binary_lse, std::int32_t

TEST_CASE_TEMPLATE("A copied row is the one that its index names, bit for bit, and for -1 it is empty", T, ROW_TYPES) {
    std::mt19937_64 random(31);
    for_each_layout([&](int from, int to) {
        for (const std::int64_t width : {1, 5}) {
            check_copies<T, std::int64_t>(random, from, to, width, 1);
            check_copies<T, std::int32_t>(random, from, to, width, 2);
        }
    });
}

TEST_CASE_TEMPLATE("A placed row goes where its index says, other rows stay, and copying takes it back", T, ROW_TYPES) {
    std::mt19937_64 random(32);
    for_each_layout([&](int from, int to) {
        for (const std::int64_t width : {1, 5}) {
            check_places<T, std::int64_t>(random, from, to, width, 1);
            check_places<T, std::int32_t>(random, from, to, width, 2);
        }
    });
}

TEST_CASE_TEMPLATE("Cleared rows are empty, and what lies between them stays", T, ROW_TYPES) {
    std::mt19937_64 random(33);
    for (int layout = 0; layout < area<T>::layouts; ++layout) {
        const area<T> before(random, layout, 4, 3);
        area<T> to = copy_of(before);
        cpu_backend().clear_rows(to.view, {});
        CHECK(wrong_elements(to, before, [](std::int64_t, std::int64_t) -> const T* { return nullptr; }) == 0);

        area<T> middle = copy_of(before);
        cpu_backend().clear_rows(middle.view.slice_rows(1, 2), {});
        CHECK(wrong_elements(middle, before, [&](std::int64_t row, std::int64_t head) -> const T* {
                  return row == 1 || row == 2 ? nullptr : before.view.at(row, head);
              }) == 0);
    }
}

TEST_CASE_TEMPLATE("An empty LSE is -inf in either base", T, natural_lse, binary_lse) {
    std::vector<T> lses(6, T{3});
    const std::array<std::int64_t, 2> rows = {-1, 0};
    const std::vector<T> given = {{1}, {2}, {3}};
    cpu_backend backend;
    backend.copy_rows(dense_view(given.data(), 1, 3, 1), index_of(rows.data()), dense_view(lses.data(), 2, 3, 1), {});
    for (std::size_t i = 0; i < 6; ++i)
        CHECK(value_of(lses[i]) == (i < 3 ? -std::numeric_limits<float>::infinity() : static_cast<float>(i - 2)));
    backend.clear_rows(dense_view(lses.data() + 3, 1, 3, 1), {});
    for (const T& one : lses) CHECK(value_of(one) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("No rows move nothing, and every operation is one launch") {
    cpu_backend backend;
    const std::uint64_t before = backend.launches();
    const head_view<const float> from;
    const head_view<float> to;
    const std::int64_t* const none = nullptr;
    backend.copy_rows(from, index_of(none), to, {});
    backend.place_rows(from, index_of(none), to, {});
    backend.clear_rows(to, {});
    backend.copy_kv(copy_kv_args<float, float>{}, {});
    CHECK(backend.launches() == before + 4);
}

TEST_CASE_TEMPLATE("A merge onto its first part has the bits of a merge elsewhere", Base, natural_lse, binary_lse) {
    std::uint32_t seed = 34;
    for (const std::int64_t parts : {1, 2, 3, 5})
        for (const std::int64_t width : {1, 17, 64, 65, 150})
            for (const bool sinks : {false, true}) {
                const plain::partials<float> from(parts, 6, 3, width, ++seed);
                CHECK(merges_in_place<Base::base>(from, sinks, true));
                CHECK(merges_in_place<Base::base>(from, sinks, false));
            }
}
