// All cases over communicators of every kind: what they call is found in operations.cu, or this program does not link.
#include <cstdio>

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/decode.hpp>

#include "../alone.hpp"
#include "cases.hpp"

namespace {

// Adds by itself.
struct adding : alone {
    static constexpr bool reproducible = true;
    void reduce_scatter(const void*, void*, std::size_t, ctxpar::scalar_type, cudaStream_t,
                        ctxpar::collective_note = {}) {}
    void all_reduce(const void*, void*, std::size_t, ctxpar::scalar_type, cudaStream_t, ctxpar::collective_note = {}) {}
};
static_assert(ctxpar::reducing_communicator<adding>);

// Reads what other ranks hold.
struct reading : alone {
    std::span<const void* const> publish(const void*, std::size_t, cudaStream_t, ctxpar::collective_note = {}) {
        return {};
    }
    void release(cudaStream_t) {}
};
static_assert(ctxpar::peer_communicator<reading>);

template <class Case, class Communicator>
void* all_of() {
    using decoder = ctxpar::decoder<typename Case::policy_type, typename Case::backend_type, Communicator>;
    using element = typename decoder::element;
    using kv_element = typename decoder::kv_element;
    using out = typename Case::out_type;
    static auto use = [](decoder& each, const ctxpar::workspace& memory, const ctxpar::head_view<const element>& rows,
                         const ctxpar::kv_view<kv_element>& cache, const ctxpar::head_view<out>& to) {
        const ctxpar::decode_step step = each.plan({}, memory, nullptr);
        each.append(step, rows, rows, cache, nullptr);
        each.decode(step, rows, ctxpar::kv_view<const kv_element>(cache), to, ctxpar::layer_options<Case::base>{},
                    nullptr);
        each.check(step);
    };
    static auto made = [](const ctxpar::groups<Communicator>& ranks, const ctxpar::decode_shape& shape) {
        return new decoder(ranks, shape);
    };
    static const void* volatile kept = nullptr;
    if (kept != nullptr) {
        decoder* const each = made({nullptr}, {});
        use(*each, {}, {}, {}, {});
        delete each;
    }
    return &use;
}

} // namespace

int main() {
    int decoders = 0;
#define CTXPAR_USE(name)                                                                                               \
    for (void* each : {all_of<cases::name, alone>(), all_of<cases::name, adding>(), all_of<cases::name, reading>()})   \
        decoders += each != nullptr ? 1 : 0;
    CTXPAR_CASES(CTXPAR_USE)
    std::printf("%d decoders call operations of another file\n", decoders);
    return decoders == 36 ? 0 : 1;
}
