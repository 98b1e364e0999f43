// Grouped-query attention as a policy: element types and head sizes. MHA and MQA are its two ends.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include <ctxpar/core/numeric.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/mesh.hpp>

namespace ctxpar::inline v0_1 {

// What a type must have to stand in a policy's attention slot. Widths are in elements of one head.
//
//   element       type of Q, new K and V, and of O where it is not asked for in fp32
//   kv_element    type in which the cache stores keys and values
//   kind          gqa, or mla (one KV head, replicated over TP)
//   query_width   width of a query and of a key row
//   value_width   width of a value and of an output row
//   values_in_keys  the values are the first value_width elements of the key rows (MLA)
//   default_scale softmax scale where a call gives none
template <class A>
concept attention_policy = element_type<typename A::element> && element_type<typename A::kv_element> &&
    requires(const A policy) {
    { A::kind } -> std::convertible_to<attention_kind>;
    { A::values_in_keys } -> std::convertible_to<bool>;
    { policy.query_width() } -> std::convertible_to<std::int64_t>;
    { policy.value_width() } -> std::convertible_to<std::int64_t>;
    { policy.default_scale() } -> std::convertible_to<float>;
};

// Widths of an attention policy that its type alone says; 0 where a value says them.
template <class A>
constexpr std::int64_t fixed_query_width() {
    if constexpr (requires { typename std::integral_constant<std::int64_t, A{}.query_width()>; }) {
        return A{}.query_width();
    } else {
        return 0;
    }
}
template <class A>
constexpr std::int64_t fixed_value_width() {
    if constexpr (requires { typename std::integral_constant<std::int64_t, A{}.value_width()>; }) {
        return A{}.value_width();
    } else {
        return 0;
    }
}

namespace detail {
// A width that is a type, or a value where it is `dynamic`.
template <std::int64_t Size, int Tag>
struct width {
    static_assert(Size >= 1, "ctxpar: a head width is at least 1, or ctxpar::dynamic");
    static constexpr std::int64_t value = Size;
};
template <int Tag>
struct width<dynamic, Tag> {
    std::int64_t value = 0;
};
} // namespace detail

// Any number of query heads a KV head, any head size; keys and values may differ in width. With dynamic widths:
// gqa<bf16, dynamic>{query_width} or {query_width, value_width}.
template <class Element, std::int64_t QueryDim, std::int64_t ValueDim = QueryDim, class KvElement = Element>
struct gqa {
    static_assert(element_type<Element>, "ctxpar::gqa: Element must be float, bf16 or f16");
    static_assert(element_type<KvElement>, "ctxpar::gqa: KvElement must be float, bf16, f16, fp8_e4m3 or fp8_e5m2");

    using element = Element;
    using kv_element = KvElement;
    static constexpr attention_kind kind = attention_kind::gqa;
    static constexpr bool values_in_keys = false;

    constexpr gqa() = default;
    constexpr explicit gqa(std::int64_t query_dim) requires(QueryDim == dynamic && ValueDim == dynamic)
        : query_{query_dim}, value_{query_dim} {}
    constexpr gqa(std::int64_t query_dim, std::int64_t value_dim) requires(QueryDim == dynamic && ValueDim == dynamic)
        : query_{query_dim}, value_{value_dim} {}

    constexpr std::int64_t query_width() const { return query_.value; }
    constexpr std::int64_t value_width() const { return value_.value; }
    float default_scale() const { return 1.0F / std::sqrt(static_cast<float>(query_width())); }

private:
    [[no_unique_address]] detail::width<QueryDim, 0> query_;
    [[no_unique_address]] detail::width<ValueDim, 1> value_;
};

static_assert(attention_policy<gqa<bf16, 128>> && attention_policy<gqa<f16, dynamic>>);
static_assert(fixed_query_width<gqa<bf16, 128, 64>>() == 128 && fixed_value_width<gqa<bf16, 128, 64>>() == 64);
static_assert(fixed_query_width<gqa<bf16, dynamic>>() == 0);
static_assert(attention_policy<gqa<bf16, 128, 128, fp8_e4m3>> && std::is_empty_v<gqa<bf16, 128>>);

} // namespace ctxpar::inline v0_1
