// Asking for the rows of K and V that come next while those at hand are worked on.
#pragma once

#include <cstdint>

#include <ctxpar/backend/cpu/lanes.hpp>

namespace ctxpar::inline v0_1::cpu {

// Asks for what is read in the next step while this one is worked on, as much as has been read meanwhile. It walks in
// 4 places of the keys and 4 of the values at a time, each a line after the other: a processor's own prefetching
// follows several such walks, and fetches more at a time for them than for one, as long as none of them pauses.
class stream_ahead {
public:
    static constexpr std::int64_t places = 4;

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
        while (due_ >= places * line) {
            due_ -= places * line;
            next(ask());
        }
    }

    // Calls fn(line) for the next line of each place, of keys and of values in turn; false when there are no more.
    template <class Fn>
    CTXPAR_INLINE bool next(const Fn& fn) {
        if (walks_[turn_].done()) turn_ ^= 1;
        walk& now = walks_[turn_];
        if (now.done()) return false;
        turn_ ^= 1;
        const char* const* list = now.all.list + now.piece;
        CTXPAR_UNROLL
        for (int p = 0; p < places; ++p, list += now.all.each) fn(*list + now.at);
        now.at += line;
        if (now.at >= now.all.bytes) {
            now.at = 0;
            ++now.piece;
        }
        return true;
    }

private:
    static constexpr std::int64_t line = 64;
    struct ask {
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
