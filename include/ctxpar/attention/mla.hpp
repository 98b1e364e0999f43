// Multi-head latent attention, absorbed: every query head attends one shared row of latent + rope per token, whose
// first `latent` elements are also the value.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <ctxpar/attention/gqa.hpp>

namespace ctxpar::inline v0_1 {

// Latent and Rope are widths of the cached row (512 and 64 in DeepSeek-V3). A query row is [latent | rope] wide after
// absorption, an output row Latent wide. NopeDim is the width of a key without rope before absorption; only the
// default softmax scale, 1 / sqrt(NopeDim + Rope), depends on it.
template <class Element, std::int64_t Latent, std::int64_t Rope, class KvElement = Element, std::int64_t NopeDim = 128>
struct mla {
    static_assert(element_type<Element>, "ctxpar::mla: Element must be float, bf16 or f16");
    static_assert(element_type<KvElement>, "ctxpar::mla: KvElement must be float, bf16, f16, fp8_e4m3 or fp8_e5m2");

    using element = Element;
    using kv_element = KvElement;
    static constexpr attention_kind kind = attention_kind::mla;
    static constexpr bool values_in_keys = true;

    constexpr mla() = default;
    constexpr mla(std::int64_t latent_width, std::int64_t rope_width) requires(Latent == dynamic && Rope == dynamic)
        : latent_{latent_width}, rope_{rope_width} {}

    constexpr std::int64_t latent() const { return latent_.value; }
    constexpr std::int64_t rope() const { return rope_.value; }
    constexpr std::int64_t query_width() const { return latent() + rope(); }
    constexpr std::int64_t value_width() const { return latent(); }
    float default_scale() const { return 1.0F / std::sqrt(static_cast<float>(NopeDim + rope())); }

private:
    [[no_unique_address]] detail::width<Latent, 0> latent_;
    [[no_unique_address]] detail::width<Rope, 1> rope_;
};

static_assert(attention_policy<mla<bf16, 512, 64>> && attention_policy<mla<f16, dynamic, dynamic>>);
static_assert(std::is_empty_v<mla<bf16, 512, 64>>);

} // namespace ctxpar::inline v0_1
