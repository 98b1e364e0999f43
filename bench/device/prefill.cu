// Prefill of many rows behind a context, through the public prefiller.
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <thrust/copy.h>

#include <ctxpar/cuda.cuh>

#include "alone.hpp"
#include "cache.cuh"
#include "measure.hpp"
#include "reference.hpp"

namespace bench {
namespace {

using policy = ctxpar::policy<ctxpar::gqa<ctxpar::bf16, 128>, ctxpar::interleave<1>, ctxpar::merge::a2a>;

constexpr attention_numbers sizes{64, 8, 128, 128, false, 0};

// (row, key) pairs of `rows` rows behind `context` tokens.
double pairs(std::int64_t context, std::int64_t rows) {
    const auto count = static_cast<double>(rows);
    return count * static_cast<double>(context) + count * (count + 1.0) / 2.0;
}

template <class Backend>
std::string name_of() {
    return std::is_same_v<typename Backend::p_type, float> ? "prefill GQA, " : "prefill GQA, P rounded, ";
}

ctxpar::prefill_shape shape_of(const attention_numbers& all, std::int64_t rows, const paged_cache& cache) {
    ctxpar::prefill_shape shape;
    shape.q_heads = all.q_heads;
    shape.kv_heads = all.kv_heads;
    shape.max_rows = rows;
    shape.max_decode_rows = 0;
    shape.longest = all.room;
    shape.pool_blocks = cache.pool_blocks();
    shape.output = ctxpar::scalar_type::f32;
    return shape;
}

double error_of(const attention_numbers& all, std::int64_t context, std::int64_t rows,
                const thrust::device_vector<float>& out) {
    comparison compared;
    std::vector<float> got(static_cast<std::size_t>(all.value_width));
    for (const std::int64_t row : {std::int64_t{0}, rows / 3, rows - 1})
        for (const std::int64_t head : {std::int64_t{0}, all.q_heads / 2 + 1, all.q_heads - 1}) {
            const std::vector<double> expected =
                attend_again(all, 0, row, head, context + row + 1, ctxpar::gqa<ctxpar::bf16, 128>().default_scale());
            thrust::copy_n(out.begin() + (row * all.q_heads + head) * all.value_width, all.value_width, got.begin());
            for (std::size_t d = 0; d < got.size(); ++d) compared.add(got[d], expected[d]);
        }
    return compared.relative_l2();
}

template <class Backend>
measurement prefill_once(std::int64_t context, std::int64_t rows, bool timed) {
    attention_numbers all = sizes;
    all.room = context + rows;
    paged_cache cache(all, 1);
    const thrust::universal_vector<std::int64_t> computed(1, context), tokens(1, rows);
    cache.fill(computed);
    ctxpar::prefiller<policy, Backend, alone> made({nullptr}, shape_of(all, rows, cache));
    thrust::device_vector<std::byte> memory(made.workspace_bytes());
    thrust::universal_vector<std::int64_t> requests(static_cast<std::size_t>(rows), 0), positions(requests.size());
    for (std::int64_t i = 0; i < rows; ++i) positions[static_cast<std::size_t>(i)] = context + i;
    const new_rows from(all, requests, positions);
    thrust::device_vector<float> out(static_cast<std::size_t>(rows * all.q_heads * all.value_width));

    ctxpar::prefill_batch batch;
    batch.requests = 1;
    batch.computed = ctxpar::index_of(thrust::raw_pointer_cast(computed.data()));
    batch.tokens = ctxpar::index_of(thrust::raw_pointer_cast(tokens.data()));
    batch.table = cache.table();
    const ctxpar::prefill_step step =
        made.plan(batch, ctxpar::workspace{thrust::raw_pointer_cast(memory.data()), memory.size()}, nullptr);
    const auto view = [&](const thrust::device_vector<ctxpar::bf16>& vector, std::int64_t heads, std::int64_t width) {
        return ctxpar::dense_view(thrust::raw_pointer_cast(vector.data()), rows, heads, width);
    };
    made.append(step, view(from.k, all.kv_heads, all.query_width), view(from.v, all.kv_heads, all.value_width),
                cache.view(), nullptr);
    const auto attend = [&] {
        made.attend(step, view(from.q, all.q_heads, all.query_width), ctxpar::kv_view<const ctxpar::bf16>(cache.view()),
                    ctxpar::dense_view(thrust::raw_pointer_cast(out.data()), rows, all.q_heads, all.value_width),
                    ctxpar::layer_options<>{}, nullptr);
    };
    attend();
    ctxpar::cuda::check(cudaDeviceSynchronize(), "prefill");

    measurement one;
    one.what = name_of<Backend>() + std::to_string(rows) + " rows behind " + std::to_string(context);
    one.flops = 2.0 * pairs(context, rows) * static_cast<double>(all.q_heads * (all.query_width + all.value_width));
    one.error = error_of(all, context, rows, out);
    one.bound = bound_of_attention<Backend>();
    if (timed) one.seconds = seconds_of(attend);
    return one;
}

template <class Backend>
void prefill_cases(bool small, const budget& left, results& to) {
    to.push_back(prefill_once<Backend>(37, 75, false));
    to.push_back(prefill_once<Backend>(0, 130, false));
    if (small) return;
    double rate = 0.0; // pairs a second, of the case before
    for (const auto& [context, rows] : {std::pair{0, 1024}, {0, 4096}, {0, 8192}, {32768, 4096}, {131072, 4096}}) {
        if (rate > 0.0 && !left.allows(pairs(context, rows) / rate)) {
            measurement left_out;
            left_out.what = name_of<Backend>() + std::to_string(rows) + " rows behind " + std::to_string(context);
            left_out.note = "left out: it would take too long";
            to.push_back(left_out);
            continue;
        }
        to.push_back(prefill_once<Backend>(context, rows, true));
        rate = pairs(context, rows) / to.back().seconds;
    }
}

} // namespace

void prefill(bool small, const budget& left, results& to) {
    prefill_cases<ctxpar::cuda_backend>(small, left, to);
    prefill_cases<ctxpar::rounding_cuda_backend>(small, left, to);
}

} // namespace bench
