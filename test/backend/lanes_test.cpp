// Vectors of floats against one number at a time, for every vector length and compiled for every instruction set that
// this processor has.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include <ctxpar/backend/cpu/isa.hpp>
#include <ctxpar/backend/cpu/lanes.hpp>

using namespace ctxpar;
using namespace ctxpar::cpu;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

// `work` has a template run<W>(), always inlined.
template <class Work>
CTXPAR_TARGET_AVX512 void on_avx512(Work& work) {
    work.template run<16>();
}
template <class Work>
CTXPAR_TARGET_AVX2 void on_avx2(Work& work) {
    work.template run<8>();
}
template <class Work>
void on_portable(Work& work) {
    work.template run<4>();
}

// Runs a fresh `Work` on every instruction set, and checks it by check(work).
template <class Work, class Check>
void on_every_isa(const Work& work, Check check) {
    for (const isa set : {isa::portable, isa::avx2, isa::avx512}) {
        if (!has(set)) continue;
        CAPTURE(std::string(name_of(set)));
        Work own = work;
        if (set == isa::portable) on_portable(own);
        if (set == isa::avx2) on_avx2(own);
        if (set == isa::avx512) on_avx512(own);
        check(own);
    }
}

template <class T>
T pattern(std::uint32_t bits) {
    if constexpr (std::is_same_v<T, float>) {
        return std::bit_cast<float>(bits * 0x9e3779b9U); // any of the 2^32
    } else {
        return T::from_bits(static_cast<decltype(T::bits)>(bits));
    }
}

bool same(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// Widens vectors that start at every multiple of four elements.
template <class T>
struct widen_all {
    std::vector<T> from;
    std::vector<float> to;

    template <int W>
    CTXPAR_INLINE void run() {
        to.assign(from.size(), -77.0F);
        floats<W> value;
        for (std::size_t i = 0; i + static_cast<std::size_t>(W) <= from.size(); i += 4) {
            widen<W>(from.data() + i, value);
            store<W>(value, to.data() + i);
        }
    }
};

// One row; the memory it is read from ends with it.
template <class T>
struct widen_one_row {
    std::shared_ptr<T[]> from;
    std::int64_t width = 0;
    std::vector<float> to = std::vector<float>(128, -77.0F);

    template <int W>
    CTXPAR_INLINE void run() {
        widen_row<W>(static_cast<const T*>(from.get()), width, to.data());
    }
};

struct exp_all {
    std::vector<float> values; // a multiple of 16

    template <int W>
    CTXPAR_INLINE void run() {
        floats<W> x;
        for (std::size_t i = 0; i < values.size(); i += static_cast<std::size_t>(W)) {
            load<W>(values.data() + i, x);
            exp_up_to_8<W>(x);
            store<W>(x, values.data() + i);
        }
    }
};

struct reductions {
    std::vector<float> values; // 16 x 16
    std::vector<float> across, sums, largest, chosen;
    int width = 0;

    template <int W>
    CTXPAR_INLINE void run() {
        width = W;
        floats<W> rows[W];
        floats<W> kept[W];
        for (int i = 0; i < W; ++i) {
            load<W>(values.data() + 16 * i, rows[i]);
            kept[i] = rows[i];
        }
        floats<W> total;
        add_across<W>(rows, total);
        floats<W> zero;
        fill<W>(-1.0F, zero);
        across.assign(16, 0);
        store<W>(total, across.data());
        for (int i = 0; i < W; ++i) {
            sums.push_back(sum_of<W>(kept[i]));
            largest.push_back(max_of<W>(kept[i]));
            floats<W> picked;
            select<W>(kept[i] > 0.0F, kept[i], zero, picked);
            chosen.resize(chosen.size() + 16);
            store<W>(picked, chosen.data() + 16 * i);
        }
    }
};

} // namespace

TEST_CASE_TEMPLATE("Widening gives the number of every bit pattern", T, float, bf16, f16, fp8_e4m3, fp8_e5m2) {
    widen_all<T> work;
    const std::uint32_t patterns = sizeof(T) == 1 ? 256 : 65536;
    for (std::uint32_t bits = 0; bits < patterns; ++bits) work.from.push_back(pattern<T>(bits));
    on_every_isa(work, [](const widen_all<T>& done) {
        int wrong = 0;
        for (std::size_t i = 0; i < done.from.size(); ++i)
            wrong += same(done.to[i], static_cast<float>(done.from[i])) ? 0 : 1;
        CHECK(wrong == 0);
    });
}

TEST_CASE_TEMPLATE("A widened row ends in zeros up to its padding, and nothing beyond the row is read or written", T,
                   float, bf16, f16, fp8_e4m3, fp8_e5m2) {
    std::mt19937 random(8);
    for (std::int64_t width = 1; width <= 100; ++width) {
        widen_one_row<T> work;
        work.width = width;
        work.from = std::shared_ptr<T[]>(new T[static_cast<std::size_t>(width)]);
        for (std::int64_t d = 0; d < width; ++d) work.from[d] = static_cast<T>(static_cast<float>(random() % 100));
        on_every_isa(work, [&](const widen_one_row<T>& done) {
            int wrong = 0;
            for (std::int64_t d = 0; d < 128; ++d) {
                const float padding = d < (width + 15) / 16 * 16 ? 0.0F : -77.0F;
                const float expected = d < width ? static_cast<float>(work.from[d]) : padding;
                wrong += same(done.to[static_cast<std::size_t>(d)], expected) ? 0 : 1;
            }
            CHECK(wrong == 0);
        });
    }
}

TEST_CASE("exp_up_to_8 is within 2 ulp from 8 down to -86") {
    exp_all work;
    for (std::uint32_t bits = 0; bits <= std::bit_cast<std::uint32_t>(86.0F); bits += 1999)
        work.values.push_back(-std::bit_cast<float>(bits));
    for (float x = 0; x < 86; x += 0.0371F) work.values.push_back(-x);
    for (float x = 0; x <= 8; x += 0.00037F) work.values.push_back(x);
    while (work.values.size() % 16 != 0) work.values.push_back(-86.0F);
    const std::vector<float> from = work.values;
    on_every_isa(work, [&](const exp_all& done) {
        double worst = 0;
        for (std::size_t i = 0; i < from.size(); ++i) {
            const double exact = std::exp(static_cast<double>(from[i]));
            const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
            worst = std::max(worst, std::fabs(done.values[i] - exact) / ulp);
        }
        CHECK(worst <= 2.0);
    });
}

TEST_CASE("exp_up_to_8 is exact at 0, 0 far below, and NaN for NaN") {
    exp_all work;
    work.values = {0.0F, -0.0F, -1e-45F, -1e-38F, -86.5F, -1e4F, -3.4e38F, -inf, std::nanf(""), -std::nanf("")};
    work.values.resize(16, -inf);
    on_every_isa(work, [](const exp_all& done) {
        for (std::size_t i = 0; i < 4; ++i) CHECK(done.values[i] == 1.0F);
        for (std::size_t i = 4; i < 8; ++i) CHECK(done.values[i] == 0.0F);
        CHECK(std::isnan(done.values[8]));
        CHECK(std::isnan(done.values[9]));
        for (std::size_t i = 10; i < 16; ++i) CHECK(done.values[i] == 0.0F);
    });
}

TEST_CASE("Sums and maxima take every lane, and a lane of a sum across is one vector's") {
    std::mt19937 random(9);
    reductions work;
    for (int i = 0; i < 256; ++i) // whole numbers, so that no order of adding rounds
        work.values.push_back(static_cast<float>(random() % 2001) - 1000);
    on_every_isa(work, [&](const reductions& done) {
        for (int i = 0; i < done.width; ++i) {
            const float* row = work.values.data() + 16 * i;
            float sum = 0;
            for (int x = 0; x < done.width; ++x) sum += row[x];
            const auto at = static_cast<std::size_t>(i);
            CHECK(done.across[at] == sum);
            CHECK(done.sums[at] == sum);
            CHECK(done.largest[at] == *std::max_element(row, row + done.width));
            for (int x = 0; x < done.width; ++x)
                CHECK(done.chosen[16 * at + static_cast<std::size_t>(x)] == (row[x] > 0 ? row[x] : -1.0F));
        }
    });
}

TEST_CASE("The largest lane passes over NaN, and is -inf where there is no number") {
    for (int at = 0; at < 4; ++at) {
        reductions work;
        work.values.assign(256, std::nanf(""));
        for (int i = 0; i < 16; ++i) work.values[static_cast<std::size_t>(16 * i + at)] = -5.0F;
        std::fill_n(work.values.begin(), 16, std::nanf(""));
        on_every_isa(work, [](const reductions& done) {
            CHECK(done.largest[0] == -inf);
            for (std::size_t i = 1; i < static_cast<std::size_t>(done.width); ++i) CHECK(done.largest[i] == -5.0F);
            CHECK(std::isnan(done.sums[1]));
        });
    }
}
