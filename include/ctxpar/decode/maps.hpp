// Linear maps of heads inside a decode, so that what travels is narrower than what attention works on. For MLA: queries
// travel before they are absorbed and partial outputs behind W_UV: 192 and 128 numbers a head in place of 576 and 512.
//
// It is exact because a merge only weighs: sum_r w_r * O_r is mapped to sum_r w_r * (O_r W) for any W of that head. The
// price is that every rank holds, and reads, the weights of all Hg heads of its group.
//
//   decoder.decode(step, q, cache, out, options, head_maps{absorb, up_project}, stream);      or no_map{} for either
//
// Each is a callable of the engine, which gives its work to the stream and does not wait:
//
//   queries(head_view<const E> [R][Hg][unmapped_query_width], head_view<E> [R][Hg][dq], stream)
//   values(head_view<const I> [R][Hg][dv], head_view<P> [R][Hg][mapped_width], stream)
//
// E is the policy's element, P the type in which partials cross ranks, and I is float, or values' own `input` where it
// names the policy's element; a partial is then rounded before it is mapped too. Head h is head
// mesh::gathered_heads(rank).first + h of the model; views may be strided and are not read or written between heads.
// Each (row, head) is mapped by itself: what lies in a row without keys, which may be NaN, must not reach another row.
#pragma once

#include <concepts>
#include <type_traits>

#include <ctxpar/core/error.hpp>
#include <ctxpar/core/view.hpp>
#include <ctxpar/decode/shape.hpp>

namespace ctxpar::inline v0_1 {

// In the place of a map: heads stay as they are.
struct no_map {};

template <class Queries = no_map, class Values = no_map>
struct head_maps {
    [[no_unique_address]] Queries queries{};
    [[no_unique_address]] Values values{};
};

template <class Queries, class Values>
head_maps(Queries, Values) -> head_maps<Queries, Values>;

namespace detail {

template <class Map>
inline constexpr bool is_map = !std::is_same_v<Map, no_map>;

// What a map of values is shown.
template <class Map>
struct map_input {
    using type = float;
};
template <class Map>
    requires requires {
        typename Map::input;
    }
struct map_input<Map> {
    using type = typename Map::input;
};

// The callables of a call are those that the shape has room for: config_error "map".
template <class Queries, class Values>
void check_maps(const head_maps<Queries, Values>&, const decode_shape& shape) {
    const auto check = [](const char* what, const char* field, bool given, std::int64_t width) {
        require(given == (width > 0), "map", "decode was given ", given ? "a map" : "no map", " of ", what,
                " and the decode shape has ", field, " ", width, "; it must be 0 without a map and the width with one");
    };
    check("queries", "unmapped_query_width", is_map<Queries>, shape.unmapped_query_width);
    check("values", "mapped_width", is_map<Values>, shape.mapped_width);
}

// Widths as they travel, and as the caller has them in q and out.
template <class Policy>
std::int64_t query_width_of(const Policy& policy, const decode_shape& shape) {
    return shape.unmapped_query_width > 0 ? shape.unmapped_query_width : policy.attention.query_width();
}
template <class Policy>
std::int64_t value_width_of(const Policy& policy, const decode_shape& shape) {
    return shape.mapped_width > 0 ? shape.mapped_width : policy.attention.value_width();
}

} // namespace detail

} // namespace ctxpar::inline v0_1
