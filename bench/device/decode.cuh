// Decode steps through the public decoder, compared and timed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <thrust/copy.h>

#include <ctxpar/cuda.cuh>

#include "alone.hpp"
#include "cache.cuh"
#include "measure.hpp"
#include "reference.hpp"

namespace bench {

// One step: every request has as many query rows; lengths differ by `ragged` tokens from one request to the next.
struct decode_case {
    std::int64_t requests;
    std::int64_t tokens; // of the longest request, new ones included
    std::int64_t rows = 1;
    std::int64_t ragged = 0;
};

template <class Attention, class Backend>
class decode_bench {
public:
    using policy = ctxpar::policy<Attention, ctxpar::interleave<1>, ctxpar::merge::a2a>;
    using decoder = ctxpar::decoder<policy, Backend, alone>;

    decode_bench(const attention_numbers& all, const decode_case& asked)
        : all_(all), asked_(asked), made_({nullptr}, shape_of(all, asked)), cache_(all, asked.requests),
          lengths_(static_cast<std::size_t>(asked.requests)), counts_(lengths_.size()),
          memory_(made_.workspace_bytes()), out_(static_cast<std::size_t>(rows() * all.q_heads * all.value_width)) {
        thrust::universal_vector<std::int64_t> old; // tokens before the step
        for (std::int64_t request = 0; request < asked.requests; ++request) {
            const std::int64_t length = std::max(asked.rows, asked.tokens - request * asked.ragged);
            lengths_[static_cast<std::size_t>(request)] = length;
            old.push_back(length - asked.rows);
            counts_[static_cast<std::size_t>(request)] = asked.rows;
            for (std::int64_t i = 0; i < asked.rows; ++i) {
                requests_.push_back(request);
                positions_.push_back(length - asked.rows + i);
            }
        }
        cache_.fill(old);
    }

    std::int64_t rows() const { return asked_.requests * asked_.rows; }

    // Bytes of keys and values that the rows of a step look at, each once.
    double kv_bytes() const {
        const double width = static_cast<double>(all_.latent ? all_.query_width : all_.query_width + all_.value_width);
        double tokens = 0.0;
        for (const std::int64_t length : lengths_) tokens += static_cast<double>(length);
        return tokens * static_cast<double>(all_.kv_heads) * width * sizeof(ctxpar::bf16);
    }
    double flops() const {
        double tokens = 0.0;
        for (const std::int64_t length : lengths_) tokens += static_cast<double>(length * asked_.rows);
        return 2.0 * tokens * static_cast<double>(all_.q_heads * (all_.query_width + all_.value_width));
    }

    measurement run(bool timed) {
        const new_rows rows_of_step(all_, requests_, positions_);
        const ctxpar::decode_step step = plan();
        append(step, rows_of_step);
        decode(step, rows_of_step);
        ctxpar::cuda::check(cudaDeviceSynchronize(), "decode");
        measurement one;
        one.bytes = kv_bytes();
        one.flops = flops();
        one.error = error();
        one.bound = bound_of_attention<Backend>();
        if (made_.check(step).bad_entries != 0) one.error = std::nan("");
        if (timed) one.seconds = seconds_of([&] { decode(step, rows_of_step); });
        return one;
    }

private:
    static ctxpar::decode_shape shape_of(const attention_numbers& all, const decode_case& asked) {
        ctxpar::decode_shape shape;
        shape.q_heads = all.q_heads;
        shape.kv_heads = all.kv_heads;
        shape.max_requests = asked.requests;
        shape.max_rows = asked.requests * asked.rows;
        shape.longest = asked.tokens;
        shape.pool_blocks = asked.requests * ((all.room + paged_cache::block - 1) / paged_cache::block);
        shape.output = ctxpar::scalar_type::f32;
        shape.max_splits = 32;
        return shape;
    }

    ctxpar::decode_step plan() {
        ctxpar::decode_batch batch;
        batch.requests = asked_.requests;
        batch.lengths = ctxpar::index_of(thrust::raw_pointer_cast(lengths_.data()));
        batch.query_rows = ctxpar::index_of(thrust::raw_pointer_cast(counts_.data()));
        batch.table = cache_.table();
        return made_.plan(batch, ctxpar::step_bounds{rows(), asked_.tokens},
                          ctxpar::workspace{thrust::raw_pointer_cast(memory_.data()), memory_.size()}, nullptr);
    }

    void append(const ctxpar::decode_step& step, const new_rows& from) {
        const auto part = [&](const thrust::device_vector<ctxpar::bf16>& vector, std::int64_t first, std::int64_t width,
                              std::int64_t pitch) {
            return ctxpar::head_view<const ctxpar::bf16>{thrust::raw_pointer_cast(vector.data()) + first,
                                                         rows(),
                                                         all_.kv_heads,
                                                         width,
                                                         all_.kv_heads,
                                                         0,
                                                         all_.kv_heads * pitch,
                                                         pitch};
        };
        const std::int64_t rest = all_.query_width - all_.value_width;
        if (all_.latent) {
            made_.append(step, part(from.k, 0, all_.value_width, all_.query_width),
                         part(from.k, all_.value_width, rest, all_.query_width), cache_.view(), nullptr);
        } else {
            made_.append(step, part(from.k, 0, all_.query_width, all_.query_width),
                         part(from.v, 0, all_.value_width, all_.value_width), cache_.view(), nullptr);
        }
    }

    void decode(const ctxpar::decode_step& step, const new_rows& from) {
        const ctxpar::bf16* const q = thrust::raw_pointer_cast(from.q.data());
        made_.decode(step, ctxpar::dense_view(q, rows(), all_.q_heads, all_.query_width),
                     ctxpar::kv_view<const ctxpar::bf16>(cache_.view()),
                     ctxpar::dense_view(thrust::raw_pointer_cast(out_.data()), rows(), all_.q_heads, all_.value_width),
                     ctxpar::layer_options<>{}, nullptr);
    }

    // A few heads of the first, a middle and the last row.
    double error() const {
        const double scale = Attention().default_scale();
        std::vector<float> got(out_.size());
        thrust::copy(out_.begin(), out_.end(), got.begin());
        comparison compared;
        for (const std::int64_t row : {std::int64_t{0}, rows() / 2, rows() - 1})
            for (const std::int64_t head : {std::int64_t{0}, all_.q_heads / 2 + 1, all_.q_heads - 1}) {
                const auto at = static_cast<std::size_t>(row);
                const std::vector<double> expected =
                    attend_again(all_, requests_[at], row, head, positions_[at] + 1, scale);
                for (std::int64_t d = 0; d < all_.value_width; ++d)
                    compared.add(got[static_cast<std::size_t>((row * all_.q_heads + head) * all_.value_width + d)],
                                 expected[static_cast<std::size_t>(d)]);
            }
        return compared.relative_l2();
    }

    attention_numbers all_;
    decode_case asked_;
    decoder made_;
    paged_cache cache_;
    thrust::universal_vector<std::int64_t> lengths_, counts_;     // [requests]
    thrust::universal_vector<std::int64_t> requests_, positions_; // [rows]
    thrust::device_vector<std::byte> memory_;
    thrust::device_vector<float> out_;
};

// All cases of one attention; `all` without its room.
template <class Attention, class Backend = ctxpar::cuda_backend>
void decode_cases(const char* name, attention_numbers all, bool small, const budget& left, results& to) {
    const auto run = [&](const decode_case& asked, bool timed) {
        all.room = asked.tokens;
        measurement one = decode_bench<Attention, Backend>(all, asked).run(timed);
        one.what = std::string(name) + ", " + std::to_string(asked.requests) + " x " + std::to_string(asked.tokens) +
                   (asked.rows > 1 ? ", " + std::to_string(asked.rows) + " rows" : std::string());
        to.push_back(one);
        return one;
    };
    run({3, 300, 1, 97}, false);
    run({2, 129, 3, 40}, false);
    if (small) return;
    run({3, 9000, 2, 4100}, false);
    double rate = 0.0; // bytes a second, of the case before
    for (const std::int64_t requests : {1, 8, 32})
        for (const std::int64_t tokens : {4096, 16384, 65536, 131072}) {
            const std::int64_t width = all.latent ? all.query_width : all.query_width + all.value_width;
            const double bytes = static_cast<double>(requests * tokens * all.kv_heads * width) * sizeof(ctxpar::bf16);
            std::size_t free = 0;
            std::size_t total = 0;
            ctxpar::cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
            measurement left_out;
            left_out.what = std::string(name) + ", " + std::to_string(requests) + " x " + std::to_string(tokens);
            if (bytes * 1.1 > static_cast<double>(free)) {
                left_out.note = "left out: the cache does not fit";
                to.push_back(left_out);
            } else if (rate > 0.0 && !left.allows(bytes / rate)) {
                left_out.note = "left out: it would take too long";
                to.push_back(left_out);
            } else {
                rate = bytes / run({requests, tokens}, true).seconds;
            }
        }
}

} // namespace bench
