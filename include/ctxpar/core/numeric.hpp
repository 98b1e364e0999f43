// 16-bit and 8-bit floating point storage types, in plain C++: no CUDA, no compiler extension.
//
//   bf16      8 exponent bits, 7 mantissa bits     IEEE-like: infinities and NaN
//   f16       5, 10                                IEEE binary16
//   fp8_e4m3  4, 3 (OCP "E4M3FN")                  largest 448, no infinity, NaN = 0x7f
//   fp8_e5m2  5, 2 (OCP E5M2)                      largest 57344, infinities and NaN
//
// They only store: arithmetic is done in float. Conversion from float rounds to nearest, ties to even, and keeps NaN.
// bf16 and f16 overflow to infinity. The 8-bit types saturate, as the OCP 8-bit specification's saturating mode and
// KV caches do: what is beyond the largest number, infinity included, becomes the largest number of its sign.
#pragma once

#include <cstdint>
#include <type_traits>

#include <ctxpar/core/bits.hpp>
#include <ctxpar/core/config.hpp>

namespace ctxpar::inline v0_1 {

// The element types by name, for everything that must state a type as a value.
enum class scalar_type : std::uint8_t { bytes, f32, bf16, f16, e4m3, e5m2 };

constexpr const char* name_of(scalar_type type) {
    switch (type) {
    case scalar_type::f32:
        return "f32";
    case scalar_type::bf16:
        return "bf16";
    case scalar_type::f16:
        return "f16";
    case scalar_type::e4m3:
        return "fp8_e4m3";
    case scalar_type::e5m2:
        return "fp8_e5m2";
    case scalar_type::bytes:
        break;
    }
    return "bytes";
}

// A small floating point format: Bits of storage, Exponent and Mantissa bits, bias 2^(Exponent-1) - 1.
template <class Storage, int Exponent, int Mantissa, bool HasInfinity, bool Saturates>
struct small_float {
    Storage bits = 0;

    static constexpr int exponent_bits = Exponent;
    static constexpr int mantissa_bits = Mantissa;
    static constexpr int bias = (1 << (Exponent - 1)) - 1;
    static constexpr Storage sign_mask = Storage(1) << (Exponent + Mantissa);
    static constexpr Storage infinity_bits = Storage(((1u << Exponent) - 1) << Mantissa); // where there is one
    static constexpr Storage nan_bits =
        HasInfinity ? Storage(infinity_bits | (1u << (Mantissa - 1))) : Storage(sign_mask - 1);
    static constexpr Storage largest_bits = HasInfinity ? Storage(infinity_bits - 1) : Storage(nan_bits - 1);

    constexpr small_float() = default;

    // Round to nearest even; see the head of this file for NaN and overflow.
    CTXPAR_HD constexpr explicit small_float(float value) : bits(encode(value)) {}

    CTXPAR_HD static constexpr small_float from_bits(Storage raw) {
        small_float result;
        result.bits = raw;
        return result;
    }

    CTXPAR_HD constexpr explicit operator float() const { return decode(bits); }

private:
    // Builds the 8+23-bit pattern directly where the number is normal; a subnormal is mantissa * 2^(1 - bias -
    // Mantissa).
    CTXPAR_HD static constexpr float decode(Storage raw) {
        const std::uint32_t sign = static_cast<std::uint32_t>(raw & sign_mask) << (31 - Exponent - Mantissa);
        const std::uint32_t magnitude = raw & Storage(sign_mask - 1);
        const std::uint32_t exponent = magnitude >> Mantissa;
        const std::uint32_t mantissa = magnitude & ((1u << Mantissa) - 1);
        if (magnitude > (HasInfinity ? infinity_bits : largest_bits))
            return bits_as<float>(sign | 0x7fc00000u | (mantissa << (23 - Mantissa)));
        if (HasInfinity && magnitude == infinity_bits) return bits_as<float>(sign | 0x7f800000u);
        if (exponent == 0) {
            constexpr int lowest = 1 - bias - Mantissa; // exponent of the smallest subnormal
            if constexpr (lowest <= -126) {             // bf16: its subnormals are float's subnormals
                return bits_as<float>(sign | (mantissa << (23 - Mantissa)));
            } else {
                const float unit = bits_as<float>(static_cast<std::uint32_t>(lowest + 127) << 23);
                const float value = static_cast<float>(mantissa) * unit;
                return sign != 0 ? -value : value;
            }
        }
        return bits_as<float>(sign | ((exponent + 127 - bias) << 23) | (mantissa << (23 - Mantissa)));
    }

    CTXPAR_HD static constexpr Storage encode(float value) {
        const std::uint32_t raw = bits_as<std::uint32_t>(value);
        const Storage sign = static_cast<Storage>((raw >> 31) << (Exponent + Mantissa));
        const std::uint32_t magnitude = raw & 0x7fffffffu;
        if (magnitude > 0x7f800000u) { // NaN: keep what fits of its payload, and never turn into an infinity
            const Storage payload = static_cast<Storage>((magnitude & 0x7fffffu) >> (23 - Mantissa));
            return HasInfinity ? Storage(sign | nan_bits | payload) : Storage(sign | nan_bits);
        }
        const Storage overflow = Saturates ? largest_bits : infinity_bits;
        if (magnitude == 0x7f800000u) return Storage(sign | overflow);

        // Shift the 24-bit significand so that one unit is the target's last place, then round to nearest even.
        const int exponent = static_cast<int>(magnitude >> 23);
        const std::uint32_t significand = exponent == 0 ? magnitude & 0x7fffffu : (magnitude & 0x7fffffu) | 0x800000u;
        const int target = (exponent == 0 ? 1 : exponent) - 127 + bias; // target's exponent field, if normal
        const int drop = (23 - Mantissa) + (target >= 1 ? 0 : 1 - target);
        if (drop > 25) return sign; // below half of the smallest subnormal
        const std::uint32_t half = 1u << (drop - 1);
        const std::uint32_t kept = significand >> drop;
        const std::uint32_t rest = significand & ((1u << drop) - 1);
        const std::uint32_t rounded = kept + ((rest > half || (rest == half && (kept & 1u) != 0)) ? 1u : 0u);
        // A carry out of the mantissa moves into the exponent field by plain addition.
        const std::uint32_t field =
            target >= 1 ? (static_cast<std::uint32_t>(target - 1) << Mantissa) + rounded : rounded;
        return static_cast<Storage>(sign | (field > largest_bits ? overflow : static_cast<Storage>(field)));
    }
};

using bf16 = small_float<std::uint16_t, 8, 7, true, false>;
using f16 = small_float<std::uint16_t, 5, 10, true, false>;
using fp8_e4m3 = small_float<std::uint8_t, 4, 3, false, true>;
using fp8_e5m2 = small_float<std::uint8_t, 5, 2, true, true>;

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2 && sizeof(fp8_e4m3) == 1 && sizeof(fp8_e5m2) == 1);
static_assert(std::is_trivially_copyable_v<bf16> && std::is_trivially_copyable_v<fp8_e4m3>);

// The name of an element type; other types have none.
template <class T>
struct scalar_name;
template <>
struct scalar_name<float> {
    static constexpr scalar_type value = scalar_type::f32;
};
template <>
struct scalar_name<bf16> {
    static constexpr scalar_type value = scalar_type::bf16;
};
template <>
struct scalar_name<f16> {
    static constexpr scalar_type value = scalar_type::f16;
};
template <>
struct scalar_name<fp8_e4m3> {
    static constexpr scalar_type value = scalar_type::e4m3;
};
template <>
struct scalar_name<fp8_e5m2> {
    static constexpr scalar_type value = scalar_type::e5m2;
};

template <class T>
inline constexpr scalar_type scalar_type_of = scalar_name<std::remove_const_t<T>>::value;

// What can be stored in Q, K, V and O.
template <class T>
concept element_type = requires {
    scalar_name<std::remove_const_t<T>>::value;
};

static_assert(element_type<float> && element_type<bf16> && element_type<const fp8_e4m3> && !element_type<int>);

// The largest finite number of a storage type.
template <element_type T>
CTXPAR_HD constexpr float largest_number() {
    if constexpr (std::is_same_v<T, float>) {
        return bits_as<float>(0x7f7fffffU);
    } else {
        return static_cast<float>(T::from_bits(T::largest_bits));
    }
}

// The scale of a row whose cache has one a token: the row's largest magnitude becomes the type's largest number. Rows
// of zeros, rows that are not finite, and rows of types with float's own range are stored unscaled.
template <element_type Kv>
CTXPAR_HD constexpr float fitting_scale(float largest) {
    if (largest_number<Kv>() > 1e38F) return 1.0F;
    if (!(largest > 0.0F) || !(largest <= largest_number<float>())) return 1.0F;
    const float scale = largest / largest_number<Kv>();
    return scale > 0.0F ? scale : 1.0F;
}

} // namespace ctxpar::inline v0_1
