// Keys of a prefix cache that do not depend on the layout, and what a layout can use of a cached prefix.
//
//   key(-1) = SHA-256("ctxpar prefix", u, salt) cut to 128 bits
//   key(i)  = SHA-256(key(i-1), tokens [i*u, (i+1)*u)) cut to 128 bits
//
// Numbers are hashed as 8 bytes, the lowest first, and texts behind their length; a key is its high and its low half.
// u is the key unit in tokens. Key i stands for all tokens before (i+1)*u, so equal keys mean equal prefixes, and one
// changed token changes its own key and every later one. Neither N, I nor B enter: a store that caches of several
// layouts share is looked up with the same keys. What decides whether cached KV may be reused enters by the salt: the
// model and its revision, the adapter, the element type and the scales of the cache, a tenant.
//
// Keys are 128 bits of SHA-256: two prefixes with one key are not found by chance (2^64 prefixes for an even chance)
// nor, as far as is known, on purpose with less work. A cache that wants to rely on nothing compares the tokens.
//
// A layout shares whole prefix units of N*lcm(I, B) tokens (paged.hpp), and only what every one of its N shards has.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>

#include <ctxpar/core/error.hpp>
#include <ctxpar/core/sha256.hpp>
#include <ctxpar/layout/interleave.hpp>
#include <ctxpar/layout/paged.hpp>
#include <ctxpar/layout/reshard.hpp>

namespace ctxpar::inline v0_1 {

struct prefix_key {
    std::uint64_t high = 0;
    std::uint64_t low = 0; // any 64 of the bits are a good hash

    friend constexpr auto operator<=>(const prefix_key&, const prefix_key&) = default;
};

// What a store must not mix up, as texts. Each enters with its length: {"a", "bc"} is not {"ab", "c"}.
using prefix_salt = std::initializer_list<std::string_view>;

// The keys of one growing sequence. A small value: a copy goes on from the same tokens (a fork). Nothing allocates.
class prefix_chain {
public:
    // A sequence without tokens. config_error "unit" where the key unit is below 1 token.
    explicit prefix_chain(std::int64_t unit, prefix_salt salt = {}) : unit_(unit) {
        require(unit >= 1, "unit", "the key unit is ", unit, " tokens; it must be at least 1");
        sha256 hash;
        add_text(hash, "ctxpar prefix");
        hash.add(static_cast<std::uint64_t>(unit));
        for (const std::string_view text : salt) add_text(hash, text);
        begin_unit(cut(hash));
    }

    std::int64_t unit() const { return unit_; }
    std::int64_t tokens() const { return tokens_; }
    std::int64_t keys() const { return tokens_ / unit_; }
    // The key of all whole units so far; of none, what depends on the salt alone.
    const prefix_key& last() const { return last_; }

    // Takes the next tokens and calls visit(index, key) for each unit that they complete, index counted from the first
    // token of the sequence. Token ids are hashed as 64-bit numbers, whatever their type.
    template <std::integral Id, class Visit>
    void append(std::span<const Id> ids, Visit&& visit) {
        for (const Id id : ids) {
            hash_.add(static_cast<std::uint64_t>(static_cast<std::int64_t>(id)));
            ++tokens_;
            if (--left_ > 0) continue;
            begin_unit(cut(hash_));
            visit(tokens_ / unit_ - 1, static_cast<const prefix_key&>(last_));
        }
    }
    template <std::integral Id>
    void append(std::span<const Id> ids) {
        append(ids, [](std::int64_t, const prefix_key&) {});
    }

private:
    static prefix_key cut(const sha256& hash) {
        const std::array<std::uint32_t, 8> words = hash.digest();
        return {std::uint64_t{words[0]} << 32 | words[1], std::uint64_t{words[2]} << 32 | words[3]};
    }
    static void add_text(sha256& hash, std::string_view text) {
        hash.add(text.size());
        for (const char letter : text) hash.add_byte(static_cast<std::uint8_t>(letter));
    }
    void begin_unit(const prefix_key& before) {
        last_ = before;
        left_ = unit_;
        hash_ = {};
        hash_.add(before.high);
        hash_.add(before.low);
    }

    std::int64_t unit_;
    std::int64_t tokens_ = 0;
    std::int64_t left_ = 0; // tokens to the next key
    prefix_key last_;
    sha256 hash_; // of the unit that is open
};

static_assert(std::is_trivially_copyable_v<prefix_key> && std::is_trivially_copyable_v<prefix_chain>);

// The step at which two layouts can share a prefix: the least common multiple of their prefix units, and so the largest
// key unit of a store that serves both without keys that end inside one's unit. config_error "block_size".
constexpr std::int64_t shared_prefix_unit(const ownership& a, std::int64_t a_block_size, const ownership& b,
                                          std::int64_t b_block_size) {
    const std::int64_t a_unit = prefix_unit(a, a_block_size), b_unit = prefix_unit(b, b_block_size);
    const std::int64_t both = detail::lcm_or_largest(a_unit, b_unit);
    if (both % a_unit != 0 || both % b_unit != 0)
        require(false, "block_size", "prefix units of ", a_unit, " and ", b_unit,
                " tokens have no common multiple within 63 bits");
    return both;
}

// How many of the first tokens can be shared where the first `matched` keys of a chain were found: the whole prefix
// units in them. config_error "unit", "length".
constexpr std::int64_t prefix_hit_of_keys(const ownership& law, std::int64_t block_size, std::int64_t unit,
                                          std::int64_t matched) {
    if (unit < 1) require(false, "unit", "the key unit is ", unit, " tokens; it must be at least 1");
    if (matched < 0 || matched > detail::largest_index / unit)
        require(false, "length", matched, " keys of ", unit,
                " tokens were matched; that must be at least 0 and at most ", detail::largest_index / unit);
    return prefix_hit(law, block_size, matched * unit);
}

// The blocks, whole and the same on every rank, that hold the tokens of key `index`, the tokens [index*unit,
// (index+1)*unit). config_error "unit" where the key unit is no multiple of the prefix unit, "length" where the index
// is negative or too large.
constexpr block_range key_blocks(const ownership& law, std::int64_t block_size, std::int64_t unit, std::int64_t index) {
    const std::int64_t whole = prefix_unit(law, block_size);
    if (unit < 1 || unit % whole != 0)
        require(false, "unit", "a key unit of ", unit, " tokens does not end with whole blocks of ", block_size,
                " tokens on ", law.ranks, " ranks with an interleave of ", law.interleave,
                "; it must be a multiple of ", whole);
    if (index < 0 || index > detail::largest_index / unit - 1)
        require(false, "length", "key ", index, " of ", unit, " tokens was named; it must be at least 0 and at most ",
                detail::largest_index / unit - 1);
    const std::int64_t blocks = unit / law.ranks / block_size;
    return {index * blocks, (index + 1) * blocks};
}

// A hit needs every shard: how many first tokens can be shared where rank r still has the first present[r] whole blocks
// of a request. config_error "ranks" (not one count a rank), "length" (a negative count), "block_size".
constexpr std::int64_t hit_of(const ownership& law, std::int64_t block_size, std::span<const std::int64_t> present) {
    const std::int64_t unit = prefix_unit(law, block_size);
    if (static_cast<std::int64_t>(present.size()) != law.ranks)
        require(false, "ranks", present.size(), " counts of blocks were given for ", law.ranks,
                " ranks; there must be one for each");
    const std::int64_t least = *std::min_element(present.begin(), present.end());
    if (least < 0) require(false, "length", "a rank has ", least, " blocks; counts must be at least 0");
    return std::min(least / (unit / law.ranks / block_size), detail::largest_index / unit) * unit;
}

} // namespace ctxpar::inline v0_1
