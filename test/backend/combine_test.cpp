// Weighted sums of vectors, and rounding many numbers at a time as one by one.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <support/instruction_sets.hpp>

#include <ctxpar/backend/cpu/attend.hpp>
#include <ctxpar/backend/cpu/combine.hpp>

using namespace ctxpar;
using ctxpar_test::instruction_sets;

namespace {

float from_bits(std::uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

// All numbers of `bits` are rounded, as a sum of one vector.
template <class Out>
std::int64_t count_of_wrong(cpu::isa set, const std::vector<float>& numbers) {
    std::vector<Out> got(numbers.size());
    const float* const part = numbers.data();
    const float one = 1.0F;
    cpu::combine_of<float, Out>(set)(&part, &one, 1, static_cast<std::int64_t>(numbers.size()), got.data());
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        const bool same = got[i].bits == Out(numbers[i]).bits;
        const bool both_nan = std::isnan(numbers[i]) && std::isnan(static_cast<float>(got[i]));
        wrong += same || both_nan ? 0 : 1;
    }
    return wrong;
}

template <class P, class Out>
void check_sums() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (const cpu::isa set : instruction_sets()) {
        CAPTURE(std::string(name_of(set)));
        for (const std::int64_t width : {1, 3, 4, 15, 16, 17, 63, 64, 65, 512, 576}) {
            for (const std::int64_t count : {1, 2, 8, 17}) {
                const auto columns = static_cast<std::size_t>(width);
                std::vector<std::vector<P>> parts(static_cast<std::size_t>(count), std::vector<P>(columns));
                std::vector<const P*> pointers;
                std::vector<float> weights;
                for (auto& part : parts) {
                    for (P& x : part) x = static_cast<P>(normal(random));
                    pointers.push_back(part.data());
                    weights.push_back(std::fabs(normal(random)) / static_cast<float>(count));
                }
                std::vector<Out> out(columns + 1, Out(-7.0F));
                cpu::combine_of<P, Out>(set)(pointers.data(), weights.data(), count, width, out.data());
                double largest = 0;
                for (std::size_t d = 0; d < columns; ++d) {
                    double wanted = 0;
                    double size = 0;
                    for (std::size_t i = 0; i < parts.size(); ++i) {
                        wanted +=
                            static_cast<double>(weights[i]) * static_cast<double>(static_cast<float>(parts[i][d]));
                        size += std::fabs(static_cast<double>(weights[i]) *
                                          static_cast<double>(static_cast<float>(parts[i][d])));
                    }
                    const double rounding = sizeof(Out) == 2 ? std::fabs(wanted) / 250 : 0.0;
                    const double apart = std::fabs(static_cast<double>(static_cast<float>(out[d])) - wanted);
                    largest = std::max(largest, apart / (1e-6 * size + rounding + 1e-7));
                }
                CHECK(largest <= 1.0);
                CHECK(static_cast<float>(out[columns]) == -7.0F); // nothing is written behind
            }
        }
    }
}

} // namespace

TEST_CASE("Weighted sums of vectors are those in double, whatever the width") {
    check_sums<float, float>();
    check_sums<bf16, bf16>();
    check_sums<bf16, float>();
    check_sums<f16, f16>();
    check_sums<float, bf16>();
}

TEST_CASE("Many numbers are rounded as one by one") {
    std::vector<float> numbers;
    for (std::uint64_t bits = 0; bits < 0x100000000ULL; bits += 997) numbers.push_back(from_bits(std::uint32_t(bits)));
    for (std::uint32_t high = 0; high < 0x10000U; high += 3) // around ties of both types
        for (const std::uint32_t low : {0x0fffU, 0x1000U, 0x1001U, 0x2fffU, 0x3000U, 0x7fffU, 0x8000U, 0x8001U})
            numbers.push_back(from_bits(high << 16 | low));
    for (const float x : {65503.9F, 65504.0F, 65519.9F, 65520.0F, 65536.0F, 0x1p-24F, 0x1p-25F, 0x1.8p-25F, 0x1p-14F})
        numbers.push_back(x);
    for (const cpu::isa set : instruction_sets()) {
        CAPTURE(std::string(name_of(set)));
        CHECK(count_of_wrong<bf16>(set, numbers) == 0);
        CHECK(count_of_wrong<f16>(set, numbers) == 0);
    }
}

TEST_CASE("Any number of splits becomes one state") {
    std::mt19937 random(8);
    std::normal_distribution<float> normal;
    for (const std::int64_t splits : {2, 255, 256, 257, 600}) {
        CAPTURE(splits);
        constexpr std::int64_t heads = 2;
        constexpr std::int64_t width = 20;
        const auto states = static_cast<std::size_t>(splits * heads);
        std::vector<float> parts(states * width);
        std::vector<natural_lse> lses(states);
        for (float& x : parts) x = normal(random);
        for (std::size_t i = 0; i < states; ++i) lses[i] = i % 7 == 3 ? natural_lse{} : natural_lse{normal(random)};
        std::vector<double> wanted(heads * width, 0.0);
        std::vector<double> total(heads, 0.0);
        for (std::size_t s = 0; s < static_cast<std::size_t>(splits); ++s) {
            for (std::size_t h = 0; h < heads; ++h) {
                const double weight = std::exp(static_cast<double>(lses[s * heads + h].value));
                total[h] += weight;
                for (std::size_t d = 0; d < width; ++d)
                    wanted[h * width + d] += weight * static_cast<double>(parts[(s * heads + h) * width + d]);
            }
        }
        std::vector<float> out(heads * width);
        std::vector<natural_lse> lse_out(heads);
        attend_args<float, float, float, lse_base::natural> args;
        args.out = dense_view(out.data(), 1, heads, width);
        args.lse_out = dense_view(lse_out.data(), 1, heads, 1);
        args.scratch.split_out = parts.data();
        args.scratch.split_lse = lses.data();
        cpu::combine_splits(cpu::best_isa(), args, 0, splits);
        for (std::size_t h = 0; h < heads; ++h) {
            CHECK(lse_out[h].value == doctest::Approx(std::log(total[h])).epsilon(1e-6));
            for (std::size_t d = 0; d < width; ++d)
                CHECK(std::fabs(static_cast<double>(out[h * width + d]) - wanted[h * width + d] / total[h]) < 1e-6);
        }
    }
}
