// From slots of two pools to bytes: transfers that are as long as both sides are contiguous.
//
// A part of a cache (keys, values, scales) goes in one of three orders, by how its rows lie on both sides:
//
//   heads of a token follow one another, or one head    tokens by slot, all heads at once
//   tokens of a head follow one another over pages      head by head, tokens by slot
//   neither (HND pages, or NHD and HND)                 page by page, head by head; a whole HND page at once
//
// Where the values of a page follow its keys, whole pages of both go at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <ctxpar/layout/mesh.hpp>
#include <ctxpar/layout/transfer_link.hpp>
#include <ctxpar/layout/transfer_side.hpp>
#include <ctxpar/layout/transfer_slots.hpp>

namespace ctxpar::inline v0_1 {

// `bytes` bytes from a region of the source rank to a region of the target rank; at least 1.
struct transfer {
    memory_place src;
    memory_place dst;
    std::int64_t bytes = 0;

    friend constexpr bool operator==(const transfer&, const transfer&) = default;
};

static_assert(std::is_trivially_copyable_v<transfer>);

namespace detail {

// Joins transfers that follow one another on both sides.
template <class Visit>
class transfer_joiner {
public:
    explicit transfer_joiner(const Visit& visit) : visit_(visit) {}

    void add(const memory_place& src, const memory_place& dst, std::int64_t bytes) {
        const bool follows = src.region == open_.src.region && src.offset - open_.bytes == open_.src.offset &&
                             dst.region == open_.dst.region && dst.offset - open_.bytes == open_.dst.offset;
        if (!follows) {
            flush();
            open_ = {src, dst, 0};
        }
        open_.bytes += bytes;
    }
    void flush() {
        if (open_.bytes > 0) visit_(static_cast<const transfer&>(open_));
        open_.bytes = 0;
    }

private:
    const Visit& visit_;
    transfer open_;
};

// The rows of one part of a layer on one side, of the heads that go.
struct part_rows {
    transfer_plane plane;
    memory_place begin; // of row (0, 0, first head that goes), or the offset in a page
    std::span<const memory_place> pages;

    part_rows(const transfer_rank& rank, kv_part part, std::int64_t layer, std::int64_t first_head)
        : plane(rank.geometry.plane(part)), begin(rank.layer(layer).plane(part)), pages(rank.pages_of(part)) {
        begin.offset += (first_head - rank.heads.first) * plane.head_stride;
    }

    memory_place at(std::int64_t page, std::int64_t token, std::int64_t head) const {
        const std::int64_t inside = begin.offset + token * plane.token_stride + head * plane.head_stride;
        if (pages.empty()) return {begin.region, inside + page * plane.page_stride};
        const memory_place& place = pages[static_cast<std::size_t>(page)];
        return {place.region, place.offset + inside};
    }
    bool heads_follow(std::int64_t heads) const { return heads == 1 || plane.head_stride == plane.row_bytes; }
    // Whether a page of these heads is [head][token] without gaps.
    bool is_hnd(std::int64_t page_size) const {
        return plane.token_stride == plane.row_bytes && plane.head_stride == page_size * plane.row_bytes;
    }
    // Tokens until a slot lies elsewhere than a stride behind the slot before it.
    size_divisor even_tokens(std::int64_t page_size) const {
        const bool even = pages.empty() && plane.page_stride == page_size * plane.token_stride;
        return even ? size_divisor::endless() : size_divisor(page_size);
    }
};

// Tokens that lie in one page on either side.
struct page_piece {
    std::int64_t src_page, src_token, dst_page, dst_token, count;
};

template <class Visit>
void cut_at_pages(std::int64_t src_slot, std::int64_t dst_slot, std::int64_t count, const size_divisor& src_pages,
                  const size_divisor& dst_pages, const Visit& visit) {
    page_piece piece{src_pages.quotient(src_slot), 0, dst_pages.quotient(dst_slot), 0, 0};
    piece.src_token = src_pages.rest(src_slot, piece.src_page);
    piece.dst_token = dst_pages.rest(dst_slot, piece.dst_page);
    for (; count > 0; count -= piece.count) {
        piece.count = std::min({count, src_pages.size() - piece.src_token, dst_pages.size() - piece.dst_token});
        visit(static_cast<const page_piece&>(piece));
        piece.src_token += piece.count;
        piece.dst_token += piece.count;
        if (piece.src_token == src_pages.size()) ++piece.src_page, piece.src_token = 0;
        if (piece.dst_token == dst_pages.size()) ++piece.dst_page, piece.dst_token = 0;
    }
}

// One part of the heads that go, on both sides.
class part_pair {
public:
    part_pair(const transfer_rank& from, const transfer_rank& to, kv_part part, std::int64_t layer,
              const head_range& heads)
        : src_(from, part, layer, heads.first), dst_(to, part, layer, heads.first), heads_(heads.count()),
          src_pages_(src_.even_tokens(from.geometry.page_size)), dst_pages_(dst_.even_tokens(to.geometry.page_size)),
          row_bytes_(src_.plane.row_bytes) {
        const bool is_scale = part == kv_part::key_scales || part == kv_part::value_scales;
        if (is_scale && dst_.plane.head_stride == 0) heads_ = 1; // one for all heads of the target
        if (src_.heads_follow(heads_) && dst_.heads_follow(heads_)) {
            row_bytes_ *= heads_;
            heads_ = 1;
        }
        tokens_follow_ = src_.plane.token_stride == row_bytes_ && dst_.plane.token_stride == row_bytes_;
        const std::int64_t size = src_pages_.size();
        head_by_head_ = tokens_follow_ && size == largest_index && dst_pages_.size() == size;
        if (size == largest_index || dst_pages_.size() != size) return;
        const bool whole = heads_ == 1 ? tokens_follow_ : src_.is_hnd(size) && dst_.is_hnd(size);
        if (whole) page_bytes_ = heads_ * size * row_bytes_;
    }

    // Bytes of a page of the heads that go, where it is one piece and the same on both sides; else 0.
    std::int64_t page_bytes() const { return page_bytes_; }
    const part_rows& src() const { return src_; }
    const part_rows& dst() const { return dst_; }
    const size_divisor& src_pages() const { return src_pages_; }
    const size_divisor& dst_pages() const { return dst_pages_; }

    bool is_whole(const page_piece& piece) const {
        return piece.count == src_pages_.size() && piece.count == dst_pages_.size();
    }

    template <class Visit>
    void add_piece(const page_piece& piece, std::int64_t first_head, std::int64_t last_head,
                   transfer_joiner<Visit>& joiner) const {
        for (std::int64_t head = first_head; head < last_head; ++head) {
            if (tokens_follow_) {
                joiner.add(src_.at(piece.src_page, piece.src_token, head),
                           dst_.at(piece.dst_page, piece.dst_token, head), piece.count * row_bytes_);
                continue;
            }
            for (std::int64_t i = 0; i < piece.count; ++i)
                joiner.add(src_.at(piece.src_page, piece.src_token + i, head),
                           dst_.at(piece.dst_page, piece.dst_token + i, head), row_bytes_);
        }
    }
    // All heads of a piece.
    template <class Visit>
    void add_piece(const page_piece& piece, transfer_joiner<Visit>& joiner) const {
        if (page_bytes_ == 0 || !is_whole(piece)) return add_piece(piece, 0, heads_, joiner);
        joiner.add(src_.at(piece.src_page, 0, 0), dst_.at(piece.dst_page, 0, 0), page_bytes_);
    }

    template <class Visit>
    void add_all(const slot_plan& slots, std::int64_t src_shard, std::int64_t dst_shard,
                 transfer_joiner<Visit>& joiner) const {
        const auto add = [&](std::int64_t first_head, std::int64_t last_head, bool by_head) {
            slots.for_each(src_shard, dst_shard, [&](std::int64_t src, std::int64_t dst, std::int64_t count) {
                cut_at_pages(src, dst, count, src_pages_, dst_pages_, [&](const page_piece& piece) {
                    by_head ? add_piece(piece, first_head, last_head, joiner) : add_piece(piece, joiner);
                });
            });
        };
        if (!head_by_head_) return add(0, heads_, false);
        for (std::int64_t head = 0; head < heads_; ++head) add(head, head + 1, true);
    }

private:
    part_rows src_, dst_;
    std::int64_t heads_;
    size_divisor src_pages_, dst_pages_; // where pages follow one another, all slots are one
    std::int64_t row_bytes_;             // of all heads where they follow one another
    bool tokens_follow_ = false;
    bool head_by_head_ = false;
    std::int64_t page_bytes_ = 0;
};

// Whether the values of every page follow its keys, all heads of the rank going. Their pages are the same.
inline bool values_follow_keys(const part_rows& keys, const part_rows& values, std::int64_t page_bytes) {
    if (keys.plane.page_stride != values.plane.page_stride) return false;
    return keys.begin.region == values.begin.region && values.begin.offset - page_bytes == keys.begin.offset;
}

// visit(const transfer&) for all parts of some heads of one layer, from one rank to another.
template <class Visit>
void for_each_transfer_of_layer(const slot_plan& slots, const transfer_rank& from, const transfer_rank& to,
                                std::int64_t layer, const head_range& heads, const Visit& visit) {
    transfer_joiner<Visit> joiner(visit);
    const std::int64_t src_shard = from.part.rank, dst_shard = to.part.rank;
    const auto has = [&](kv_part part) { return from.geometry.plane(part).row_bytes > 0; };
    const part_pair keys(from, to, kv_part::keys, layer, heads);
    const auto add = [&](kv_part part) {
        if (has(part)) part_pair(from, to, part, layer, heads).add_all(slots, src_shard, dst_shard, joiner);
    };
    bool joint = false;
    const bool same_pages = from.value_pages.empty() && to.value_pages.empty();
    if (has(kv_part::values) && same_pages && keys.page_bytes() > 0) {
        const part_pair values(from, to, kv_part::values, layer, heads);
        joint = values.page_bytes() > 0 && values_follow_keys(keys.src(), values.src(), keys.page_bytes()) &&
                values_follow_keys(keys.dst(), values.dst(), keys.page_bytes());
        if (joint)
            slots.for_each(src_shard, dst_shard, [&](std::int64_t src, std::int64_t dst, std::int64_t count) {
                cut_at_pages(src, dst, count, keys.src_pages(), keys.dst_pages(), [&](const page_piece& piece) {
                    keys.add_piece(piece, joiner);
                    values.add_piece(piece, joiner);
                });
            });
    }
    if (!joint) {
        keys.add_all(slots, src_shard, dst_shard, joiner);
        add(kv_part::values);
    }
    add(kv_part::key_scales);
    add(kv_part::value_scales);
    joiner.flush();
}

} // namespace detail

} // namespace ctxpar::inline v0_1
