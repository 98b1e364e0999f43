// The contract of backends: what one must have, and how partial states are found in memory.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <ctxpar/backend/backend.hpp>
#include <ctxpar/core/numeric.hpp>
#include <ctxpar/core/stream.hpp>

using namespace ctxpar;

namespace {

// All that the concept can ask of a backend without knowing element types.
struct small_backend {
    using stream_type = host_stream;
    static constexpr lse_base attend_lse_base = lse_base::binary;
    static constexpr bool dense_partials = true;
    static constexpr bool writes_empty_rows = false;
    static constexpr bool host_memory = true;
    static constexpr bool takes_intervals = false;
    static constexpr bool splits_keys = false;
    void metadata(const metadata_args&, stream_type) {}
    void prefill_metadata(const prefill_metadata_args&, stream_type) {}
    void piece_metadata(const piece_metadata_args&, stream_type) {}
    step_status read_status(const step_status* status) const { return *status; }
    std::int64_t threads() const { return 1; }
    std::int64_t attend_thread_floats(std::int64_t, std::int64_t) const { return 0; }
    std::uint64_t launches() const { return 0; }
};

struct without_stream {
    [[maybe_unused]] static constexpr lse_base attend_lse_base = lse_base::natural;
};

struct without_launches : small_backend {
    std::uint64_t launches() const = delete;
};

struct without_prefill : small_backend {
    void prefill_metadata(const prefill_metadata_args&, stream_type) = delete;
};

struct without_pieces : small_backend {
    void piece_metadata(const piece_metadata_args&, stream_type) = delete;
};

struct without_status : small_backend {
    step_status read_status(const step_status*) const = delete;
};

template <class P>
class packed_parts {
public:
    explicit packed_parts(std::int64_t width) : width_(width) {
        const std::int64_t pitch = width + static_cast<std::int64_t>(sizeof(float) / sizeof(P));
        for (std::size_t i = 0; i < 2; ++i) {
            memory_[i].resize(static_cast<std::size_t>(6 * pitch));
            for (std::size_t v = 0; v < 6; ++v) {
                P* vector = memory_[i].data() + v * static_cast<std::size_t>(pitch);
                vector[0] = P(static_cast<float>(v));
                const float lse = 0.1F + static_cast<float>(10 * i + v);
                std::memcpy(static_cast<void*>(vector + width), &lse, sizeof(lse));
            }
            pointers_[i] = memory_[i].data();
        }
        const P* none = nullptr;
        parts.out_parts = pointers_;
        parts.count = 2;
        parts.out = blocked_view(none, 3, 2, 1, width_, pitch); // 2 rows, 3 heads in blocks of one
    }

    merge_parts<P, lse_base::natural> parts;

private:
    std::int64_t width_;
    std::vector<P> memory_[2];
    const void* pointers_[2] = {};
};

} // namespace

TEST_CASE("A type with all operations and facts is a backend; one that lacks one is none") {
    CHECK(backend<small_backend>);
    CHECK_FALSE(backend<without_stream>);
    CHECK_FALSE(backend<without_launches>);
    CHECK_FALSE(backend<without_prefill>);
    CHECK_FALSE(backend<without_pieces>);
    CHECK_FALSE(backend<without_status>);
    CHECK_FALSE(backend<int>);
}

TEST_CASE("What goes to a device is trivially copyable") {
    CHECK(std::is_trivially_copyable_v<attend_args<bf16, fp8_e4m3, float, lse_base::natural>>);
    CHECK(std::is_trivially_copyable_v<append_args<bf16, fp8_e4m3>>);
    CHECK(std::is_trivially_copyable_v<copy_kv_args<fp8_e4m3, bf16>>);
    CHECK(std::is_trivially_copyable_v<prefill_metadata_args>);
    CHECK(std::is_trivially_copyable_v<piece_metadata_args>);
    CHECK(std::is_trivially_copyable_v<merge_parts<float, lse_base::binary>>);
    CHECK(std::is_trivially_copyable_v<attention_plan>);
}

TEST_CASE_TEMPLATE("An LSE behind its vector is read at any alignment", P, float, bf16, f16) {
    for (const std::int64_t width : {1, 2, 3, 8, 17}) {
        const packed_parts<P> packed(width);
        for (std::int64_t part = 0; part < 2; ++part)
            for (std::int64_t row = 0; row < 2; ++row)
                for (std::int64_t head = 0; head < 3; ++head) {
                    const auto at = static_cast<float>(head * 2 + row);
                    CHECK(static_cast<float>(*packed.parts.vector(part, row, head)) == at);
                    CHECK(packed.parts.lse_of(part, row, head).value == 0.1F + (10.0F * static_cast<float>(part) + at));
                }
    }
}

TEST_CASE("An LSE in an array of its own is found through its own view") {
    const std::vector<float> lses[2] = {{0, 1, 2, 3, 4, 5}, {10, 11, 12, 13, 14, 15}}; // [heads][rows]
    const void* pointers[2] = {lses[0].data(), lses[1].data()};
    merge_parts<float, lse_base::binary> parts;
    parts.lse_parts = pointers;
    parts.count = 2;
    const binary_lse* none = nullptr;
    parts.lse_in = head_major_view(none, 2, 3);
    for (std::int64_t part = 0; part < 2; ++part)
        for (std::int64_t row = 0; row < 2; ++row)
            for (std::int64_t head = 0; head < 3; ++head)
                CHECK(parts.lse_of(part, row, head).value == static_cast<float>(10 * part + 2 * head + row));
}

TEST_CASE("A part is empty by its own row's length, and never where no lengths are given") {
    const std::uint8_t live[2 * 5] = {1, 0, 1, 9, 9, 0, 1, 1, 9, 9}; // two parts, three rows, stride 5
    merge_parts<float, lse_base::natural> parts;
    for (std::int64_t part = 0; part < 2; ++part)
        for (std::int64_t row = 0; row < 3; ++row) CHECK_FALSE(parts.empty(part, row));
    parts.live = live;
    parts.live_stride = 5;
    for (std::int64_t part = 0; part < 2; ++part)
        for (std::int64_t row = 0; row < 3; ++row) CHECK(parts.empty(part, row) == (live[part * 5 + row] == 0));
}
