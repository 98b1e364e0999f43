// Number types of the emulated NCCL, and adding them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <nccl.h>

#include <ctxpar/core/numeric.hpp>

namespace simt {

inline const char* name_of_type(ncclDataType_t type) {
    constexpr const char* names[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                     "uint64", "float16", "float32", "float64", "bfloat16"};
    return type >= 0 && type <= ncclBfloat16 ? names[type] : "no type";
}

// 0 of a type that does not exist.
inline std::size_t bytes_of_type(ncclDataType_t type) {
    constexpr std::size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type <= ncclBfloat16 ? bytes[type] : 0;
}

template <class T>
void add_all(void* sums, const void* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        T sum, value;
        std::memcpy(static_cast<void*>(&sum), static_cast<const std::byte*>(sums) + i * sizeof(T), sizeof(T));
        std::memcpy(static_cast<void*>(&value), static_cast<const std::byte*>(values) + i * sizeof(T), sizeof(T));
        if constexpr (requires { sum + value; }) {
            sum = static_cast<T>(sum + value);
        } else {
            sum = T(static_cast<float>(sum) + static_cast<float>(value)); // rounded at every rank, as in a ring
        }
        std::memcpy(static_cast<std::byte*>(sums) + i * sizeof(T), static_cast<const void*>(&sum), sizeof(T));
    }
}

// sums[i] += values[i]
inline void add_numbers(ncclDataType_t type, void* sums, const void* values, std::size_t count) {
    switch (type) {
    case ncclInt8:
        return add_all<std::int8_t>(sums, values, count);
    case ncclUint8:
        return add_all<std::uint8_t>(sums, values, count);
    case ncclInt32:
        return add_all<std::int32_t>(sums, values, count);
    case ncclUint32:
        return add_all<std::uint32_t>(sums, values, count);
    case ncclInt64:
        return add_all<std::int64_t>(sums, values, count);
    case ncclUint64:
        return add_all<std::uint64_t>(sums, values, count);
    case ncclFloat16:
        return add_all<ctxpar::f16>(sums, values, count);
    case ncclFloat32:
        return add_all<float>(sums, values, count);
    case ncclFloat64:
        return add_all<double>(sums, values, count);
    case ncclBfloat16:
        return add_all<ctxpar::bf16>(sums, values, count);
    }
}

} // namespace simt
