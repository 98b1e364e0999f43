// A checked pair of deployments between which KV is transferred, and who sends what: a target rank gets each of its
// heads, of the tokens of one source shard, from one source rank.
//
//   sources(s, l, h)  the source ranks of shard s that hold layer l and head h, in rank order
//   targets(l, h)     the target ranks that hold them, of any shard, in rank order
//   source of target rank j = sources(s, l, h)[place of j in targets(l, h), mod how many sources there are]
//
// So replicas share the work, every target row is written once, and both sides find the same answer by themselves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/reshard.hpp>
#include <ctxpar/layout/transfer_side.hpp>

namespace ctxpar::inline v0_1 {

namespace detail {

constexpr const char* name_of(scale_kind kind) {
    return kind == scale_kind::tensor ? "tensor" : (kind == scale_kind::head ? "head" : "token");
}

// A rank in a sentence.
struct named_rank {
    const transfer_rank& rank;
    const char* side; // "source" or "target"
    std::int64_t number;
};

inline constexpr const char* part_names[num_kv_parts] = {"keys", "values", "scales of the keys",
                                                         "scales of the values"};

// The heads that a plane tells apart.
constexpr std::int64_t rows_of(const transfer_plane& plane, std::int64_t heads) {
    return plane.head_stride == 0 ? 1 : heads;
}

// Bytes from the first to the last of a page's rows. The strides have been checked.
constexpr std::int64_t page_extent(const transfer_plane& plane, std::int64_t page_size, std::int64_t heads) {
    return (page_size - 1) * plane.token_stride + (heads - 1) * plane.head_stride + plane.row_bytes;
}

inline void check_place(const named_rank& of, const memory_place& place, std::int64_t more, std::int64_t extent,
                        const char* what) {
    const auto regions = static_cast<std::int64_t>(of.rank.regions.size());
    require(place.region >= 0 && place.region < regions, "region", "the ", what, " of ", of.side, " rank ", of.number,
            " lie in memory region ", place.region, "; it has ", regions, " regions, counted from 0");
    const std::int64_t bytes = of.rank.regions[static_cast<std::size_t>(place.region)].bytes;
    require(place.offset >= 0 && more >= 0 && place.offset <= bytes && more <= bytes - place.offset &&
                extent <= bytes - place.offset - more,
            "region", "the ", what, " of ", of.side, " rank ", of.number, " take ", extent, " bytes from offset ",
            place.offset, " + ", more, " of memory region ", place.region, ", which has ", bytes, " bytes");
}

// The rows of one plane: disjoint, and inside the rank's regions in every layer.
inline void check_plane(const named_rank& of, kv_part part) {
    const transfer_rank& rank = of.rank;
    const transfer_geometry& geometry = rank.geometry;
    const transfer_plane& plane = geometry.plane(part);
    const char* const what = part_names[static_cast<std::size_t>(part)];
    if (plane.row_bytes == 0 || geometry.pages == 0) return;
    const std::span<const memory_place> pages = rank.pages_of(part);
    const bool is_scale = part == kv_part::key_scales || part == kv_part::value_scales;
    const std::int64_t heads = is_scale ? rows_of(plane, rank.heads.count()) : rank.heads.count();
    const std::int64_t strided_pages = pages.empty() ? geometry.pages : 1;
    const bool disjoint = plane.row_bytes > 0 && rows_are_disjoint({{{strided_pages, plane.page_stride},
                                                                     {geometry.page_size, plane.token_stride},
                                                                     {heads, plane.head_stride}}},
                                                                   plane.row_bytes);
    require(disjoint, "stride", "the ", what, " of ", of.side, " rank ", of.number, " have strides of ",
            plane.page_stride, " (page), ", plane.token_stride, " (token) and ", plane.head_stride,
            " (head) bytes for ", geometry.pages, " pages of ", geometry.page_size, " tokens and ", heads, " heads of ",
            plane.row_bytes, " bytes; rows must not overlap and offsets must fit 63 bits");
    const std::int64_t extent = page_extent(plane, geometry.page_size, heads);
    std::int64_t last = 0; // the last place of a layer inside its pages
    for (const transfer_layer& layer : rank.layers) {
        const memory_place& begin = layer.plane(part);
        if (pages.empty()) check_place(of, begin, (geometry.pages - 1) * plane.page_stride, extent, what);
        require(begin.offset >= 0, "region", "the ", what, " of ", of.side, " rank ", of.number, " begin at offset ",
                begin.offset, "; offsets must be at least 0");
        last = std::max(last, begin.offset);
    }
    require(pages.empty() || static_cast<std::int64_t>(pages.size()) == geometry.pages, "pages", "the ", what, " of ",
            of.side, " rank ", of.number, " have ", pages.size(), " places of pages for ", geometry.pages, " pages");
    for (const memory_place& page : pages) check_place(of, page, last, extent, what);
}

inline void check_rank_alone(const named_rank& of, const transfer_side& side) {
    const transfer_rank& rank = of.rank;
    const transfer_geometry& geometry = rank.geometry;
    const bool same = rank.part.law() == side.law && rank.block_size == side.block_size;
    require(same, "layout", of.side, " rank ", of.number, " has a cache of ", rank.part.ranks, " ranks, interleave ",
            rank.part.interleave, ", in blocks of ", rank.block_size, " tokens; it was offered to a transfer for ",
            side.law.ranks, " ranks, interleave ", side.law.interleave, ", in blocks of ", side.block_size);
    require(rank.part.rank >= 0 && rank.part.rank < side.law.ranks, "shard", of.side, " rank ", of.number, " is shard ",
            rank.part.rank, " of ", side.law.ranks, "; shards are counted from 0");
    constexpr std::int64_t most_heads = std::int64_t{1} << 20;
    require(rank.heads.first >= 0 && rank.heads.last > rank.heads.first && rank.heads.last <= most_heads, "heads",
            of.side, " rank ", of.number, " holds KV heads [", rank.heads.first, ", ", rank.heads.last,
            "); it must hold at least one, and heads are counted from 0 to ", most_heads);
    const auto layers = static_cast<std::int64_t>(rank.layers.size());
    require(rank.first_layer >= 0 && rank.first_layer <= largest_index - layers, "layers", of.side, " rank ", of.number,
            " holds ", layers, " layers from layer ", rank.first_layer, "; layers are counted from 0");
    require(geometry.pages >= 0 && geometry.page_size >= 1 && geometry.key_width >= 1 && geometry.value_width >= 1 &&
                geometry.pages <= largest_index / geometry.page_size,
            "size", of.side, " rank ", of.number, " has ", geometry.pages, " pages of ", geometry.page_size,
            " tokens, keys of ", geometry.key_width, " and values of ", geometry.value_width,
            " elements; pages may be 0, the rest must be at least 1, and slots must fit 63 bits");
    const bool has_keys = geometry.plane(kv_part::keys).row_bytes > 0;
    require(has_keys && (geometry.plane(kv_part::values).row_bytes > 0) != geometry.values_in_keys, "values_in_keys",
            of.side, " rank ", of.number, " has keys of ", geometry.plane(kv_part::keys).row_bytes, " and values of ",
            geometry.plane(kv_part::values).row_bytes, " bytes a head, and its values are ",
            geometry.values_in_keys ? "" : "not ", "a part of its keys; such values have no bytes, others have some");
    for (const memory_region& region : rank.regions)
        require(region.bytes >= 0 &&
                    region.base <= std::numeric_limits<std::uint64_t>::max() - static_cast<std::uint64_t>(region.bytes),
                "region", of.side, " rank ", of.number, " has a memory region of ", region.bytes, " bytes at address ",
                region.base, "; regions must end within 64 bits");
    for (const kv_part part : {kv_part::keys, kv_part::values, kv_part::key_scales, kv_part::value_scales})
        check_plane(of, part);
}

// What must be the same on all ranks of both sides, or bytes would mean something else after the transfer.
inline void check_same_rows(const named_rank& a, const named_rank& b) {
    const transfer_geometry& x = a.rank.geometry;
    const transfer_geometry& y = b.rank.geometry;
    require(x.element == y.element, "element", a.side, " rank ", a.number, " stores ", ctxpar::name_of(x.element),
            " and ", b.side, " rank ", b.number, " ", ctxpar::name_of(y.element), "; a transfer changes no element");
    require(x.values_in_keys == y.values_in_keys, "values_in_keys", "values are ", x.values_in_keys ? "" : "not ",
            "a part of the keys on ", a.side, " rank ", a.number, " and ", y.values_in_keys ? "" : "not ", "on ",
            b.side, " rank ", b.number);
    require(x.key_width == y.key_width && x.value_width == y.value_width, "width", "keys and values have ", x.key_width,
            " and ", x.value_width, " elements on ", a.side, " rank ", a.number, ", ", y.key_width, " and ",
            y.value_width, " on ", b.side, " rank ", b.number);
    require(x.key_scale == y.key_scale && x.value_scale == y.value_scale, "scale_kind",
            "keys and values have scales per ", name_of(x.key_scale), " and per ", name_of(x.value_scale), " on ",
            a.side, " rank ", a.number, ", per ", name_of(y.key_scale), " and per ", name_of(y.value_scale), " on ",
            b.side, " rank ", b.number);
    for (std::size_t part = 0; part < num_kv_parts; ++part)
        require(x.planes[part].row_bytes == y.planes[part].row_bytes, "width", "the ", part_names[part], " have ",
                x.planes[part].row_bytes, " bytes a token and head on ", a.side, " rank ", a.number, ", ",
                y.planes[part].row_bytes, " on ", b.side, " rank ", b.number);
    const auto differ = [](float p, float q) { return p < q || q < p; }; // a factor in memory is not known
    require(!differ(x.key_factor, y.key_factor) && !differ(x.value_factor, y.value_factor), "scale",
            "the factors of the whole tensor differ between ", a.side, " rank ", a.number, " and ", b.side, " rank ",
            b.number, "; stored numbers would mean something else");
}

} // namespace detail

// Once for a pair of deployments. It refers to both descriptions, which must outlive it.
class transfer_link {
public:
    // config_error "ranks" (no ranks), "layout" (a rank of another N, I or B than its side), "shard", "heads", "layers"
    // (some are held by one side only, or by no rank of a shard), "size", "region", "pages", "stride", "element",
    // "values_in_keys", "width", "scale_kind", "scale".
    transfer_link(const transfer_side& from, const transfer_side& to) : from_(from), to_(to) {
        make_reshard(from.law, to.law);
        check_block_size(from.block_size);
        check_block_size(to.block_size);
        require(!from.ranks.empty() && !to.ranks.empty(), "ranks", "a transfer from ", from.ranks.size(), " ranks to ",
                to.ranks.size(), " ranks was asked for; both must be at least 1");
        for_each_rank([](const detail::named_rank& of, const transfer_side& side) { check_rank_alone(of, side); });
        const detail::named_rank first{from.ranks[0], "source", 0};
        for_each_rank([&](const detail::named_rank& of, const transfer_side&) { check_same_rows(first, of); });
        check_held();
    }

    const transfer_side& from() const { return from_; }
    const transfer_side& to() const { return to_; }
    const transfer_rank& source(std::int64_t rank) const { return from_.ranks[static_cast<std::size_t>(rank)]; }
    const transfer_rank& target(std::int64_t rank) const { return to_.ranks[static_cast<std::size_t>(rank)]; }
    std::int64_t num_sources() const { return static_cast<std::int64_t>(from_.ranks.size()); }
    std::int64_t num_targets() const { return static_cast<std::int64_t>(to_.ranks.size()); }

    // The source rank from which target rank `rank`, which holds them, gets a head of a layer, of the tokens of one
    // source shard.
    std::int64_t source_of(std::int64_t rank, std::int64_t source_shard, std::int64_t layer, std::int64_t head) const {
        std::int64_t place = 0, count = 0;
        for (std::int64_t i = 0; i < rank; ++i) place += holds(target(i), layer, head) ? 1 : 0;
        const auto is_source = [&](const transfer_rank& each) {
            return each.part.rank == source_shard && holds(each, layer, head);
        };
        for (const transfer_rank& each : from_.ranks) count += is_source(each) ? 1 : 0;
        if (count > 0) place %= count;
        for (std::int64_t i = 0; count > 0 && i < num_sources(); ++i)
            if (is_source(source(i)) && place-- == 0) return i;
        return -1;
    }

    // Calls visit(head_range) for the heads of a layer that a target rank gets from a source rank.
    template <class Visit>
    void heads_between(std::int64_t src, std::int64_t dst, std::int64_t layer, Visit&& visit) const {
        if (!source(src).holds_layer(layer) || !target(dst).holds_layer(layer)) return;
        head_range open{-1, -1};
        const std::int64_t first = std::max(source(src).heads.first, target(dst).heads.first);
        const std::int64_t last = std::min(source(src).heads.last, target(dst).heads.last);
        for (std::int64_t head = first; head < last; ++head) {
            if (source_of(dst, source(src).part.rank, layer, head) != src) continue;
            if (open.last == head) {
                ++open.last;
                continue;
            }
            if (open.first >= 0) visit(open);
            open = {head, head + 1};
        }
        if (open.first >= 0) visit(open);
    }

private:
    static bool holds(const transfer_rank& rank, std::int64_t layer, std::int64_t head) {
        return rank.holds_layer(layer) && rank.holds_head(head);
    }

    template <class Visit>
    void for_each_rank(const Visit& visit) const {
        for (const transfer_side* side : {&from_, &to_})
            for (std::size_t i = 0; i < side->ranks.size(); ++i)
                visit(detail::named_rank{side->ranks[i], side == &from_ ? "source" : "target",
                                         static_cast<std::int64_t>(i)},
                      *side);
    }

    // Every shard of both sides holds every layer and head, and scales that all heads of a rank share have one source.
    void check_held() const {
        head_range heads = from_.ranks[0].heads;
        std::int64_t layers_end = 0, layers_begin = detail::largest_index;
        for_each_rank([&](const detail::named_rank& of, const transfer_side&) {
            heads = {std::min(heads.first, of.rank.heads.first), std::max(heads.last, of.rank.heads.last)};
            layers_begin = std::min(layers_begin, of.rank.first_layer);
            layers_end = std::max(layers_end, of.rank.first_layer + static_cast<std::int64_t>(of.rank.layers.size()));
        });
        // Who holds a layer changes only where the layers of some rank begin or end.
        for_each_rank([&](const detail::named_rank& of, const transfer_side&) {
            const std::int64_t first = of.rank.first_layer;
            for (const std::int64_t layer : {first, first + static_cast<std::int64_t>(of.rank.layers.size())}) {
                if (layer < layers_begin || layer >= layers_end) continue;
                check_layer(from_, "source", layer, heads);
                check_layer(to_, "target", layer, heads);
                check_shared_scales(layer);
            }
        });
    }

    static void check_layer(const transfer_side& side, const char* name, std::int64_t layer, const head_range& heads) {
        for (std::int64_t part = 0; part < side.law.ranks; ++part) {
            const auto held = [&](auto&& what) {
                return std::any_of(side.ranks.begin(), side.ranks.end(), [&](const transfer_rank& rank) {
                    return rank.part.rank == part && rank.holds_layer(layer) && what(rank);
                });
            };
            require(held([](const transfer_rank&) { return true; }), "layers", "no ", name, " rank of shard ", part,
                    " holds layer ", layer, "; every shard of both sides must hold every layer");
            for (std::int64_t head = heads.first; head < heads.last; ++head)
                require(held([&](const transfer_rank& rank) { return rank.holds_head(head); }), "heads", "no ", name,
                        " rank of shard ", part, " holds KV head ", head, " of layer ", layer,
                        "; every shard of both sides must hold every head");
        }
    }

    void check_shared_scales(std::int64_t layer) const {
        for (std::int64_t dst = 0; dst < num_targets(); ++dst)
            for (const kv_part part : {kv_part::key_scales, kv_part::value_scales}) {
                const transfer_rank& rank = target(dst);
                const transfer_plane& plane = rank.geometry.plane(part);
                const bool shared = plane.row_bytes > 0 && plane.head_stride == 0 && rank.heads.count() > 1;
                if (!shared || !rank.holds_layer(layer)) continue;
                for (std::int64_t of = 0; of < from_.law.ranks; ++of) {
                    const std::int64_t src = source_of(dst, of, layer, rank.heads.first);
                    bool one = source(src).geometry.plane(part).head_stride == 0;
                    for (std::int64_t head = rank.heads.first; head < rank.heads.last; ++head)
                        one = one && source_of(dst, of, layer, head) == src;
                    require(one, "scale_kind", "target rank ", dst, " has one scale a token for KV heads [",
                            rank.heads.first, ", ", rank.heads.last,
                            "); it must get all of them from one source rank with such a scale");
                }
            }
    }

    transfer_side from_;
    transfer_side to_;
};

} // namespace ctxpar::inline v0_1
