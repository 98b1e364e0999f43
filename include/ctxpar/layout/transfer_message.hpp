// A rank's description as the message that the other side gets: 64-bit numbers, in the machine's byte order.
//
//   a mark and version, the total count of numbers, the numbers of transfer_rank in the order of its members, and its
//   four arrays, each with its length before it
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <ctxpar/core/bits.hpp>
#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/layout/transfer_side.hpp>

namespace ctxpar::inline v0_1 {

namespace detail {

inline constexpr std::int64_t transfer_mark = 0x6374787061720001; // "ctxpar", version 1

// The largest value of an enumeration in a message.
constexpr std::int64_t last_of(scalar_type) {
    return static_cast<std::int64_t>(scalar_type::e5m2);
}
constexpr std::int64_t last_of(scale_kind) {
    return static_cast<std::int64_t>(scale_kind::token);
}

template <class T>
std::int64_t to_number(T value) {
    if constexpr (std::is_same_v<T, float>) {
        return static_cast<std::int64_t>(bits_as<std::uint32_t>(value));
    } else {
        return static_cast<std::int64_t>(value);
    }
}

template <class Place, class Visit>
void visit_place(Place& place, const Visit& visit) {
    visit(place.region);
    visit(place.offset);
}
template <class Region, class Visit>
void visit_region(Region& region, const Visit& visit) {
    visit(region.base);
    visit(region.bytes);
}
template <class Layer, class Visit>
void visit_layer(Layer& layer, const Visit& visit) {
    for (auto& place : layer.planes) visit_place(place, visit);
}

// visit(number) for every number of a description but those of its arrays.
template <class Rank, class Visit>
void visit_rank(Rank& rank, const Visit& visit) {
    auto& geometry = rank.geometry;
    visit(rank.part.ranks), visit(rank.part.rank), visit(rank.part.interleave), visit(rank.block_size);
    visit(rank.heads.first), visit(rank.heads.last), visit(rank.first_layer);
    visit(geometry.element), visit(geometry.values_in_keys), visit(geometry.key_width), visit(geometry.value_width);
    visit(geometry.pages), visit(geometry.page_size), visit(geometry.key_scale), visit(geometry.value_scale);
    visit(geometry.key_factor), visit(geometry.value_factor);
    for (auto& plane : geometry.planes)
        visit(plane.row_bytes), visit(plane.page_stride), visit(plane.token_stride), visit(plane.head_stride);
}

} // namespace detail

// The message of a description.
inline std::vector<std::int64_t> transfer_message(const transfer_rank& rank) {
    std::vector<std::int64_t> message = {detail::transfer_mark, 0};
    const auto put = [&](auto value) { message.push_back(detail::to_number(value)); };
    detail::visit_rank(rank, put);
    put(rank.layers.size());
    for (const transfer_layer& layer : rank.layers) detail::visit_layer(layer, put);
    for (const std::span<const memory_place> pages : {rank.key_pages, rank.value_pages}) {
        put(pages.size());
        for (const memory_place& place : pages) detail::visit_place(place, put);
    }
    put(rank.regions.size());
    for (const memory_region& region : rank.regions) detail::visit_region(region, put);
    message[1] = static_cast<std::int64_t>(message.size());
    return message;
}

// A description out of a message, with the arrays that it refers to. What the numbers say is checked by transfer_link.
class received_rank {
public:
    // config_error "message" where the numbers are no such message, or cut off.
    explicit received_rank(std::span<const std::int64_t> message) : rest_(message) {
        const std::size_t count = message.size();
        require(count >= 2 && message[0] == detail::transfer_mark, "message", "a message of ", count,
                " numbers is no description of a rank's caches, or one of another version");
        require(message[1] == static_cast<std::int64_t>(count), "message", "a description of ", message[1],
                " numbers came as ", count);
        rest_ = message.subspan(2);
        const auto take = [&](auto& value) { take_number(value); };
        detail::visit_rank(rank_, take);
        take_array(layers_, 2 * num_kv_parts, [&](transfer_layer& layer) { detail::visit_layer(layer, take); });
        for (auto* pages : {&key_pages_, &value_pages_})
            take_array(*pages, 2, [&](memory_place& place) { detail::visit_place(place, take); });
        take_array(regions_, 2, [&](memory_region& region) { detail::visit_region(region, take); });
        require(rest_.empty(), "message", "a description of ", count, " numbers has ", rest_.size(), " too many");
        rank_.layers = layers_;
        rank_.key_pages = key_pages_;
        rank_.value_pages = value_pages_;
        rank_.regions = regions_;
        rest_ = {};
    }
    received_rank(received_rank&&) = default; // the arrays stay where they are
    received_rank& operator=(received_rank&&) = default;
    received_rank(const received_rank&) = delete;
    received_rank& operator=(const received_rank&) = delete;

    // Refers to this object's arrays.
    const transfer_rank& rank() const { return rank_; }

private:
    std::int64_t next() {
        require(!rest_.empty(), "message", "a description of a rank's caches ends before its last number");
        const std::int64_t number = rest_.front();
        rest_ = rest_.subspan(1);
        return number;
    }

    template <class T>
    void take_number(T& value) {
        const std::int64_t number = next();
        std::int64_t last = detail::largest_index;
        if constexpr (std::is_enum_v<T>) last = detail::last_of(T{});
        if constexpr (std::is_same_v<T, bool>) last = 1;
        if constexpr (std::is_same_v<T, float>) last = std::int64_t{0xffffffff};
        const bool is_number = std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::uint64_t>;
        require(is_number || (number >= 0 && number <= last), "message", "a description of a rank's caches has ",
                number, " where at most ", last, " can be");
        if constexpr (std::is_same_v<T, float>) {
            value = bits_as<float>(static_cast<std::uint32_t>(number));
        } else {
            value = static_cast<T>(number);
        }
    }

    template <class T, class Take>
    void take_array(std::vector<T>& array, std::size_t numbers_each, const Take& take) {
        const std::int64_t count = next();
        const std::size_t most = rest_.size() / numbers_each;
        require(count >= 0 && static_cast<std::uint64_t>(count) <= most, "message", "an array of ", count,
                " parts is named where a description of a rank's caches has numbers for ", most);
        array.resize(static_cast<std::size_t>(count));
        for (T& each : array) take(each);
    }

    transfer_rank rank_;
    std::span<const std::int64_t> rest_;
    std::vector<transfer_layer> layers_;
    std::vector<memory_place> key_pages_, value_pages_;
    std::vector<memory_region> regions_;
};

} // namespace ctxpar::inline v0_1
