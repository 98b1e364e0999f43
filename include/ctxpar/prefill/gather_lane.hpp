// Where pieces of keys are brought: on the stream of the attention itself, or on one beside it, so that the next piece
// travels while one is attended. Two events order the streams:
//
//   arrived   the last piece that was brought is there: attention waits for it, before the next is brought
//   freed     all pieces but the last that was brought are attended, and so their memory is free: bringing waits for it
//
// Both are recorded again for every piece; a wait is for what was recorded when the host gave it.
#pragma once

#include <memory>

#include <ctxpar/backend/backend.hpp>

namespace ctxpar::inline v0_1::detail {

// Of a backend without events: always the stream of the attention.
template <class Backend>
class gather_lane {
public:
    using stream_type = typename Backend::stream_type;

    static constexpr bool overlaps() { return false; }
    static stream_type stream_beside(stream_type attention) { return attention; }
    static void begin_piece(Backend&) {}
    static void end_piece(Backend&) {}
    static void await_piece(Backend&, stream_type) {}
    static void free_pieces(Backend&, stream_type) {}
};

template <event_backend Backend>
class gather_lane<Backend> {
public:
    using stream_type = typename Backend::stream_type;

    // The stream of the attention.
    gather_lane() = default;

    // A stream beside it. The events are made here, on the current device.
    explicit gather_lane(stream_type beside) : beside_(std::make_shared<second_stream>(beside)) {}

    bool overlaps() const { return beside_ != nullptr; }
    stream_type stream_beside(stream_type attention) const { return overlaps() ? beside_->stream : attention; }

    // On the stream beside: before a piece is written, and when it is there.
    void begin_piece(Backend& backend) const {
        if (overlaps()) backend.wait(beside_->freed, beside_->stream);
    }
    void end_piece(Backend& backend) const {
        if (overlaps()) backend.record(beside_->arrived, beside_->stream);
    }

    // On the stream of the attention: before the last piece that was brought is read, and when all before it are done.
    void await_piece(Backend& backend, stream_type attention) const {
        if (overlaps()) backend.wait(beside_->arrived, attention);
    }
    void free_pieces(Backend& backend, stream_type attention) const {
        if (overlaps()) backend.record(beside_->freed, attention);
    }

private:
    struct second_stream {
        explicit second_stream(stream_type given) : stream(given) {}
        stream_type stream;
        typename Backend::event_type arrived;
        typename Backend::event_type freed;
    };

    std::shared_ptr<second_stream> beside_;
};

} // namespace ctxpar::inline v0_1::detail
