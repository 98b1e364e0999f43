// Decode by ggml's flash attention on its CPU backend, over contiguous f16 caches of [request][head][token][width].
// ggml computes where the tensors lie; a step is one graph of one operation.
#include <array>
#include <cmath>

#include <ggml-cpu.h>
#include <ggml.h>

#include "problem.hpp"

namespace {

using contexts = std::unique_ptr<ggml_context, decltype(&ggml_free)>;

ggml_tensor* tensor(ggml_context* context, ggml_type type, const std::array<std::int64_t, 4>& sizes, void* data) {
    ggml_tensor* const made = ggml_new_tensor_4d(context, type, sizes[0], sizes[1], sizes[2], sizes[3]);
    made->data = data;
    return made;
}

// Keys and values of one cache, and the graph that decodes over it.
class cache {
public:
    using elements = peers::memory<ggml_fp16_t>;

    cache(const peers::problem<ggml_fp16_t>& inputs, std::int64_t index, float* queries, float* out)
        : keys_(count(inputs.given())), values_(count(inputs.given())),
          context_(ggml_init({16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}), ggml_free) {
        const peers::options& given = inputs.given();
        fill(inputs, index);
        ggml_context* const context = context_.get();
        const std::array sizes{peers::width, given.tokens, peers::kv_heads, given.batch};
        ggml_tensor* const q =
            tensor(context, GGML_TYPE_F32, {peers::width, 1, peers::query_heads, given.batch}, queries);
        ggml_tensor* const attended =
            ggml_flash_attn_ext(context, q, tensor(context, GGML_TYPE_F16, sizes, keys_.data()),
                                tensor(context, GGML_TYPE_F16, sizes, values_.data()), nullptr,
                                1.0F / std::sqrt(float(peers::width)), 0, 0);
        attended->data = out; // [batch][1][query_heads][width]
        graph_ = ggml_new_graph(context);
        ggml_build_forward_expand(graph_, attended);
        plan_ = ggml_graph_plan(graph_, static_cast<int>(given.threads), nullptr);
        work_.resize(plan_.work_size);
    }

    void decode() {
        plan_.work_data = work_.data();
        if (ggml_graph_compute(graph_, &plan_) != GGML_STATUS_SUCCESS) throw std::runtime_error("ggml failed");
    }

private:
    static std::int64_t count(const peers::options& given) {
        return given.batch * peers::kv_heads * given.tokens * peers::width;
    }
    void fill(const peers::problem<ggml_fp16_t>& inputs, std::int64_t index) {
        std::int64_t at = 0;
        for (std::int64_t request = 0; request < inputs.given().batch; ++request)
            for (std::int64_t head = 0; head < peers::kv_heads; ++head)
                for (std::int64_t token = 0; token < inputs.given().tokens; ++token, at += peers::width)
                    inputs.copy_token(index, request, token, head, keys_.data() + at, values_.data() + at);
    }

    elements keys_, values_;
    contexts context_;
    ggml_cgraph* graph_ = nullptr;
    ggml_cplan plan_{};
    std::vector<std::uint8_t> work_;
};

void measure(const peers::options& given) {
    if (given.type != "f16") throw std::invalid_argument("--type is f16");
    ggml_cpu_init();
    const peers::problem<ggml_fp16_t> inputs(given, ggml_fp32_to_fp16);
    std::vector<float> queries = inputs.queries();
    std::vector<float> out(queries.size());
    std::vector<std::unique_ptr<cache>> caches;
    for (std::int64_t i = 0; i < given.caches; ++i)
        caches.push_back(std::make_unique<cache>(inputs, i, queries.data(), out.data()));
    peers::run(
        given, "ggml", [&](std::int64_t i) { caches[static_cast<std::size_t>(i)]->decode(); },
        [&] { return out.data(); });
}

} // namespace

int main(int argc, char** argv) {
    try {
        measure(peers::parse(argc, argv));
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "%s\n", problem.what());
        return 1;
    }
}
