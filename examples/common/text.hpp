// Numbers as a person reads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace demo {

// 1048576 as 1,048,576.
inline std::string grouped(std::uint64_t number) {
    std::string text = std::to_string(number);
    for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
    return text;
}
inline std::string grouped(std::int64_t number) {
    return grouped(static_cast<std::uint64_t>(number));
}

inline std::string counted(std::int64_t number, const char* what) {
    return fmt::format("{} {}{}", grouped(number), what, number == 1 ? "" : "s");
}

} // namespace demo
