// Asking for the rows of K and V that come next while those at hand are worked on.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ctxpar/backend/cpu/lanes.hpp>

namespace ctxpar::inline v0_1::cpu {

// Asks for what is read in the next step while this one is worked on, as much as has been read meanwhile. It walks in
// 4 places of the keys and 4 of the values at a time, each a line after the other, 4 of the keys' and 4 of the values'
// in turn: a processor's own prefetching follows several such walks, and fetches more at a time for them than for one,
// as long as none of them pauses.
class stream_ahead {
public:
    static constexpr std::int64_t places = 4;
    static constexpr std::int64_t line = 64;
    static constexpr std::int64_t lines = 4; // of a place in turn

    // Pieces of memory of `bytes` each, in the order in which they lie.
    struct pieces {
        const char* const* list; // [places][each]
        std::int64_t each;
        std::int64_t bytes;
    };

    stream_ahead() : stream_ahead({}, {}) {}
    stream_ahead(const pieces& keys, const pieces& values) : walks_{{keys, 0, 0}, {values, 0, 0}} {}

    // Notes that so many bytes have been read.
    CTXPAR_INLINE void read(std::int64_t bytes) {
        due_ += bytes;
        if (due_ < lines * places * line) return;
        go_on(due_ / (places * line), ask());
        due_ %= places * line;
    }

    // Calls fn(line) for the next line of each place, `rounds` times, as long as there are any; false when none is
    // left.
    template <class Fn>
    [[gnu::noinline]] bool go_on(std::int64_t rounds, const Fn& fn) {
        while (rounds > 0) {
            if (walks_[turn_].done()) turn_ ^= 1;
            walk& now = walks_[turn_];
            if (now.done()) return false;
            const std::int64_t left = (now.all.bytes - now.at + line - 1) / line;
            const std::int64_t count = std::min({rounds, lines - lines_of_turn_, left});
            const char* at[places];
            for (int p = 0; p < places; ++p) at[p] = now.all.list[now.piece + p * now.all.each] + now.at;
            if (count == lines) {
                CTXPAR_UNROLL
                for (int i = 0; i < lines; ++i) {
                    CTXPAR_UNROLL
                    for (int p = 0; p < places; ++p) fn(at[p] + i * line);
                }
            } else {
                for (int i = 0; i < count; ++i)
                    for (int p = 0; p < places; ++p) fn(at[p] + i * line);
            }
            rounds -= count;
            now.at += count * line;
            if (count == left) {
                now.at = 0;
                ++now.piece;
            }
            lines_of_turn_ += count;
            if (lines_of_turn_ < lines) continue;
            lines_of_turn_ = 0;
            turn_ ^= 1;
        }
        return true;
    }

private:
    struct ask { // inlined first of all: compilers drop a call that only prefetches
        CTXPAR_INLINE void operator()(const char* at) const { __builtin_prefetch(at, 0, 2); }
    };
    struct walk {
        pieces all;
        std::int64_t piece;
        std::int64_t at;
        bool done() const { return piece >= all.each; }
    };

    walk walks_[2];
    int turn_ = 0;
    std::int64_t lines_of_turn_ = 0;
    std::int64_t due_ = 0;
};

// The rows of K, or of V, of some keys and KV heads, in the order in which they lie in memory. `rows` [keys] are those
// of the first head. `list` has room for keys x heads, and 3.
template <class Rows, class T>
stream_ahead::pieces rows_ahead(const Rows& all, const T* const* rows, std::int64_t keys, std::int64_t heads,
                                std::int64_t width, const char** list) {
    constexpr std::int64_t places = stream_ahead::places;
    const std::int64_t stride = all.head_stride;
    const bool heads_touch = stride == width;
    const std::int64_t parts = heads_touch ? 1 : heads; // of a key
    const std::int64_t count = keys * parts;
    const auto bytes = [](const T* row) { return reinterpret_cast<const char*>(row); };
    const bool heads_are_apart = all.token_stride < stride; // in a page the tokens of one head follow each other
    if (heads_touch || !heads_are_apart) {
        for (std::int64_t t = 0, at = 0; t < keys; ++t)
            for (std::int64_t h = 0; h < parts; ++h) list[at++] = bytes(rows[t] + h * stride);
    } else {
        for (std::int64_t h = 0, at = 0; h < parts; ++h)
            for (std::int64_t t = 0; t < keys; ++t) list[at++] = bytes(rows[t] + h * stride);
    }
    const std::int64_t each = (count + places - 1) / places;
    for (std::int64_t at = count; at < each * places; ++at) list[at] = list[count - 1];
    return {list, each, width * (heads_touch ? heads : 1) * std::int64_t(sizeof(T))};
}

} // namespace ctxpar::inline v0_1::cpu
