// The merge of N partial states, as ranks would have received them: [rows][heads][width] in fp32 or bf16, with their
// LSEs beside them, made into one output. Compared with what memcpy copies: it reads all parts and writes the result.
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <ctxpar/backend/cpu.hpp>

#include "machine.hpp"
#include "reference.hpp"
#include "suite.hpp"

namespace bench {
namespace {

struct merge_case {
    std::int64_t parts = 8;
    std::int64_t rows = 128;
    std::int64_t heads = 128;
    std::int64_t width = 512;
    std::int64_t threads = 1;

    std::int64_t vectors() const { return rows * heads; }
    std::string name(const char* type) const {
        return std::string("merge/") + type + part("parts", parts) + part("rows", rows) + part("heads", heads) +
               part("width", width) + part("threads", threads);
    }
};

template <class P>
class merge_of final : public prepared {
public:
    merge_of(const merge_case& what, const plan_of_run& run)
        : case_(what), cpus_(static_cast<int>(what.threads)), best_(run.best.of(cpus_)),
          backend_(ctxpar::cpu_options{what.threads}), lses_(static_cast<std::size_t>(what.parts * what.vectors())),
          out_(static_cast<std::size_t>(what.vectors() * what.width)),
          lse_out_(static_cast<std::size_t>(what.vectors())) {
        const auto in_caches =
            std::max<std::int64_t>(std::int64_t{1} << 30, 2 * static_cast<std::int64_t>(cache_bytes()));
        regions_ = run.smoke ? 1 : std::max<std::int64_t>(1, in_caches / region_bytes());
        base_ = numbers(static_cast<std::size_t>(regions_ * region_bytes()));
        for (std::size_t i = 0; i < lses_.size(); ++i) lses_[i] = {3.0F * random_number(31, i)};
    }

    std::string verify() override {
        run(0);
        comparison compared;
        for (std::int64_t vector = 0; vector < case_.vectors(); vector += 1 + case_.vectors() / 500) {
            double sum = 0.0;
            for (std::int64_t p = 0; p < case_.parts; ++p) sum += std::exp(lse(p, vector));
            for (std::int64_t d = 0; d < case_.width; ++d) {
                double expected = 0.0;
                for (std::int64_t p = 0; p < case_.parts; ++p)
                    expected += std::exp(lse(p, vector)) / sum * number(p, vector * case_.width + d);
                compared.add(static_cast<double>(out_[static_cast<std::size_t>(vector * case_.width + d)]), expected);
            }
            compared.add(static_cast<double>(lse_out_[static_cast<std::size_t>(vector)].value), std::log(sum));
        }
        error_ = compared.relative_l2();
        if (error_ <= 1e-6) return {};
        char text[120];
        std::snprintf(text, sizeof(text), "relative L2 error %.2g, at most 1e-6 is right", error_);
        return text;
    }

    void run(std::int64_t iteration) override {
        const void* outs[ctxpar::max_merge_parts];
        const void* lses[ctxpar::max_merge_parts];
        for (std::int64_t p = 0; p < case_.parts; ++p) {
            outs[p] = part_of(iteration % regions_, p);
            lses[p] = lses_.data() + p * case_.vectors();
        }
        ctxpar::merge_parts<P, ctxpar::lse_base::natural> parts;
        parts.out_parts = outs;
        parts.lse_parts = lses;
        parts.count = case_.parts;
        parts.out = ctxpar::dense_view<const P>(nullptr, case_.rows, case_.heads, case_.width);
        parts.lse_in = ctxpar::dense_view<const ctxpar::natural_lse>(nullptr, case_.rows, case_.heads, 1);
        backend_.merge(parts, ctxpar::dense_view(out_.data(), case_.rows, case_.heads, case_.width),
                       ctxpar::dense_view(lse_out_.data(), case_.rows, case_.heads, 1), {});
    }

    void report(benchmark::State& state) override {
        const double bytes = static_cast<double>(case_.vectors()) *
                             (static_cast<double>(case_.parts) *
                                  static_cast<double>(case_.width * static_cast<std::int64_t>(sizeof(P)) + 4) +
                              static_cast<double>(case_.width * 4 + 4));
        rate(state, "copy_GB_per_s", bytes, "of_copy", best_.copy_bytes);
        state.counters["cpus"] = cpus_;
        state.counters["error"] = error_;
        state.SetLabel(ctxpar::cpu::name_of(backend_.instructions()));
    }

private:
    std::int64_t part_elements() const { return case_.vectors() * case_.width; }
    std::int64_t region_bytes() const { return case_.parts * part_elements() * static_cast<std::int64_t>(sizeof(P)); }
    const std::byte* part_of(std::int64_t region, std::int64_t p) const {
        return base_ + region * region_bytes() + p * part_elements() * static_cast<std::int64_t>(sizeof(P));
    }
    double lse(std::int64_t p, std::int64_t vector) const {
        return static_cast<double>(lses_[static_cast<std::size_t>(p * case_.vectors() + vector)].value);
    }
    double number(std::int64_t p, std::int64_t element) const {
        if constexpr (std::is_same_v<P, float>)
            return static_cast<double>(reinterpret_cast<const float*>(part_of(0, p))[element]);
        return static_cast<double>(bf16_value(reinterpret_cast<const std::uint16_t*>(part_of(0, p))[element]));
    }

    merge_case case_;
    int cpus_;
    ceiling best_;
    ctxpar::cpu_backend backend_;
    std::vector<ctxpar::natural_lse> lses_;
    std::vector<float> out_;
    std::vector<ctxpar::natural_lse> lse_out_;
    std::int64_t regions_ = 1;
    std::byte* base_ = nullptr;
    double error_ = 0.0;
};

template <class P>
void add_case(const plan_of_run& run, const char* type, merge_case what) {
    if (run.smoke) what.rows = 3;
    add(run, what.name(type),
        static_cast<double>(what.parts * what.vectors() * what.width) * static_cast<double>(sizeof(P)),
        [what, &run] { return std::make_unique<merge_of<P>>(what, run); });
}

} // namespace

void add_merge(const plan_of_run& run) {
    for (const std::int64_t parts : {2, 4, 8, 16}) {
        merge_case what;
        what.parts = parts;
        what.threads = run.cpus;
        add_case<float>(run, "fp32", what);
        add_case<ctxpar::bf16>(run, "bf16", what);
    }
    merge_case one;
    add_case<float>(run, "fp32", one);
    merge_case gqa{8, 32, 64, 128, run.cpus};
    add_case<float>(run, "fp32", gqa);
}

} // namespace bench
