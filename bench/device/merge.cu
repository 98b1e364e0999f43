// The merge of 8 partial states, from where ranks would have put them: apart from their LSEs, and as A2A packs them.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <thrust/copy.h>
#include <thrust/device_vector.h>

#include <ctxpar/cuda.cuh>

#include "measure.hpp"
#include "numbers.cuh"
#include "reference.hpp"

namespace bench {
namespace {

constexpr std::int64_t ranks = 8;

struct merge_case {
    std::int64_t rows;
    std::int64_t heads;
    std::int64_t width;
    bool packed; // each LSE behind its vector
};

float part_number(std::int64_t part, std::int64_t vector, std::int64_t d, std::int64_t width) {
    return number(5, (part * 1'000'000'000 + vector) * width + d);
}
float part_lse(std::int64_t part, std::int64_t vector) {
    return 3.0F * number(6, vector * ranks + part); // shards are nats apart
}

// The parts of all ranks: [ranks][vectors][pitch], and their LSEs [ranks][vectors].
struct merge_input {
    std::vector<float> outs, lses;
    std::int64_t pitch;

    explicit merge_input(const merge_case& asked)
        : lses(static_cast<std::size_t>(ranks * asked.rows * asked.heads)),
          pitch(asked.width + (asked.packed ? 1 : 0)) {
        const std::int64_t vectors = asked.rows * asked.heads;
        outs.resize(static_cast<std::size_t>(ranks * vectors * pitch));
        for (std::int64_t part = 0; part < ranks; ++part)
            for (std::int64_t vector = 0; vector < vectors; ++vector) {
                float* const to = outs.data() + (part * vectors + vector) * pitch;
                for (std::int64_t d = 0; d < asked.width; ++d) to[d] = part_number(part, vector, d, asked.width);
                const float lse = part_lse(part, vector);
                if (asked.packed) to[asked.width] = lse;
                lses[static_cast<std::size_t>(part * vectors + vector)] = lse;
            }
    }
};

double error_of(const merge_case& asked, const std::vector<float>& got) {
    comparison compared;
    const std::int64_t vectors = asked.rows * asked.heads;
    for (std::int64_t vector = 0; vector < vectors; vector += 1 + vectors / 500) {
        double sum = 0.0;
        for (std::int64_t part = 0; part < ranks; ++part) sum += std::exp(static_cast<double>(part_lse(part, vector)));
        for (std::int64_t d = 0; d < asked.width; ++d) {
            double expected = 0.0;
            for (std::int64_t part = 0; part < ranks; ++part)
                expected += std::exp(static_cast<double>(part_lse(part, vector))) / sum *
                            static_cast<double>(part_number(part, vector, d, asked.width));
            compared.add(got[static_cast<std::size_t>(vector * asked.width + d)], expected);
        }
    }
    return compared.relative_l2();
}

measurement merge_once(const merge_case& asked, bool timed) {
    const std::int64_t vectors = asked.rows * asked.heads;
    const merge_input in(asked);
    const thrust::device_vector<float> outs(in.outs.begin(), in.outs.end());
    thrust::device_vector<ctxpar::natural_lse> lses(in.lses.size());
    ctxpar::cuda::check(cudaMemcpy(thrust::raw_pointer_cast(lses.data()), in.lses.data(),
                                   in.lses.size() * sizeof(float), cudaMemcpyHostToDevice),
                        "cudaMemcpy");
    thrust::device_vector<float> out(static_cast<std::size_t>(vectors * asked.width));
    thrust::device_vector<ctxpar::natural_lse> lse_out(static_cast<std::size_t>(vectors));
    const void* out_parts[ranks];
    const void* lse_parts[ranks];
    for (std::int64_t part = 0; part < ranks; ++part) {
        out_parts[part] = thrust::raw_pointer_cast(outs.data()) + part * vectors * in.pitch;
        lse_parts[part] = thrust::raw_pointer_cast(lses.data()) + part * vectors;
    }
    ctxpar::merge_parts<float, ctxpar::lse_base::natural> parts;
    parts.out_parts = out_parts;
    parts.lse_parts = asked.packed ? nullptr : lse_parts;
    parts.count = ranks;
    parts.out = ctxpar::blocked_view<const float>(nullptr, 1, asked.rows, asked.heads, asked.width, in.pitch);
    parts.lse_in = ctxpar::dense_view<const ctxpar::natural_lse>(nullptr, asked.rows, asked.heads, 1);
    ctxpar::cuda_backend backend;
    const auto merge = [&] {
        backend.merge(
            parts, ctxpar::dense_view(thrust::raw_pointer_cast(out.data()), asked.rows, asked.heads, asked.width),
            ctxpar::dense_view(thrust::raw_pointer_cast(lse_out.data()), asked.rows, asked.heads, 1), nullptr);
    };
    merge();
    ctxpar::cuda::check(cudaDeviceSynchronize(), "merge");
    std::vector<float> got(out.size());
    thrust::copy(out.begin(), out.end(), got.begin());

    measurement one;
    one.what = std::string("merge N=8 ") + (asked.packed ? "packed" : "apart") + ", " + std::to_string(asked.rows) +
               " x " + std::to_string(asked.heads) + " x " + std::to_string(asked.width);
    one.bytes = static_cast<double>(vectors) * (ranks + 1) * static_cast<double>((asked.width + 1) * sizeof(float));
    one.error = error_of(asked, got);
    one.bound = 1e-6;
    if (timed) one.seconds = seconds_of(merge);
    return one;
}

} // namespace

void merge(bool small, const budget&, results& to) {
    for (const bool packed : {false, true}) {
        to.push_back(merge_once({3, 5, 72, packed}, false));
        if (small) continue;
        to.push_back(merge_once({32, 8, 128, packed}, true));
        to.push_back(merge_once({4096, 8, 128, packed}, true));
        to.push_back(merge_once({1024, 16, 512, packed}, true));
    }
}

} // namespace bench
