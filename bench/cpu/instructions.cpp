// One decode step over 2,048 tokens of GQA, 64 query and 8 KV heads of 128 in bf16, by the instruction set that is
// named; its instructions are counted by valgrind, which runs nothing wider than AVX2.
//
//   instructions_bench [portable | avx2]    the widest that this processor has
//
// What counted_step calls is counted: plan, append and decode. Prints which path ran, and compares its result.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/comm/local.hpp>
#include <ctxpar/decode.hpp>
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/policy.hpp>

#include "random.hpp"

namespace {

using namespace ctxpar;

using decoder_type = decoder<policy<gqa<bf16, 128>, interleave<16>, merge::a2a>, cpu_backend, local_communicator>;

constexpr std::int64_t tokens = 2048, q_heads = 64, kv_heads = 8, width = 128, block = 16;

void fill(std::vector<bf16>& to, std::uint64_t stream) {
    for (std::size_t i = 0; i < to.size(); ++i)
        to[i] = bf16::from_bits(bench::bf16_bits(bench::random_number(stream, i)));
}

struct inputs {
    std::vector<bf16> pool, q, k, v;
    std::vector<float> out;
    std::vector<std::int32_t> ids;

    inputs()
        : pool(2 * tokens * kv_heads * width), q(q_heads * width), k(kv_heads * width), v(kv_heads * width),
          out(q_heads * width) {
        fill(pool, 1);
        fill(q, 2);
        fill(k, 3);
        fill(v, 4);
        for (std::int64_t i = 0; i < tokens / block; ++i)
            ids.push_back(static_cast<std::int32_t>(i * 79 % (tokens / block)));
    }
};

} // namespace

// Named so that valgrind can be told to count what it calls.
extern "C" [[gnu::noinline]] void counted_step(decoder_type& decoder, const workspace& memory,
                                               const decode_batch& batch, inputs& data) {
    const auto cache = stacked_kv(data.pool.data(), tokens / block, block, kv_heads, width, width);
    const decode_step step = decoder.plan(batch, memory, {});
    decoder.append(step, dense_view<const bf16>(data.k.data(), 1, kv_heads, width),
                   dense_view<const bf16>(data.v.data(), 1, kv_heads, width), cache, {});
    decoder.decode(step, dense_view<const bf16>(data.q.data(), 1, q_heads, width), cache,
                   dense_view(data.out.data(), 1, q_heads, width), {}, {});
}

namespace {

// In double precision, over the pool as it lies there. The largest relative error of two heads.
double error_of(const inputs& data) {
    const auto number = [](bf16 stored) { return static_cast<double>(static_cast<float>(stored)); };
    double difference = 0.0, size = 0.0;
    for (const std::int64_t head : {std::int64_t{0}, q_heads - 1}) {
        std::vector<double> output(width);
        double sum = 0.0;
        for (std::int64_t p = 0; p < tokens; ++p) {
            const std::int64_t slot = data.ids[static_cast<std::size_t>(p / block)] * block + p % block;
            const std::int64_t row = (slot * kv_heads + head / (q_heads / kv_heads)) * width;
            double logit = 0.0;
            for (std::int64_t d = 0; d < width; ++d)
                logit += number(data.q[static_cast<std::size_t>(head * width + d)]) *
                         number(data.pool[static_cast<std::size_t>(row + d)]);
            const double weight = std::exp(logit / std::sqrt(static_cast<double>(width)));
            sum += weight;
            for (std::int64_t d = 0; d < width; ++d)
                output[static_cast<std::size_t>(d)] +=
                    weight * number(data.pool[static_cast<std::size_t>(tokens * kv_heads * width + row + d)]);
        }
        for (std::int64_t d = 0; d < width; ++d) {
            const double expected = output[static_cast<std::size_t>(d)] / sum;
            const double got = static_cast<double>(data.out[static_cast<std::size_t>(head * width + d)]);
            difference += (got - expected) * (got - expected);
            size += expected * expected;
        }
    }
    return std::sqrt(difference / size);
}

} // namespace

int main(int count, char** arguments) {
    cpu_options options;
    if (count > 1) {
        const std::string wanted = arguments[1];
        if (wanted != "portable" && wanted != "avx2") {
            std::fprintf(stderr, "usage: instructions_bench [portable | avx2]\n");
            return 2;
        }
        options.instructions = wanted == "avx2" ? cpu::isa::avx2 : cpu::isa::portable;
    }
    cpu_backend backend(options);
    local_world world(1);
    local_communicator comm = world.rank(0);
    decode_shape shape;
    shape.q_heads = q_heads;
    shape.kv_heads = kv_heads;
    shape.longest = tokens;
    shape.output = scalar_type::f32;
    decoder_type decoder({&comm}, shape, {}, backend);
    const host_workspace memory(decoder.workspace_bytes());
    inputs data;
    const std::int64_t length = tokens;
    decode_batch batch;
    batch.requests = 1;
    batch.lengths = index_of(&length);
    batch.table = table_2d(data.ids.data(), 1, tokens / block, block);
    counted_step(decoder, memory, batch, data);
    const double error = error_of(data);
    std::printf("path %s, relative L2 error %.1e\n", cpu::name_of(backend.instructions()), error);
    const bool exact = std::is_same_v<cpu_backend::p_type, float>;
    return error <= (exact ? 2e-6 : 4e-3) ? 0 : 1;
}
