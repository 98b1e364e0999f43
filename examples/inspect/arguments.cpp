#include "arguments.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <ctxpar/core/error.hpp>

namespace inspect {
namespace {

using ctxpar::require;

// Appends the numbers of one item, "7" or "3:9".
void parse_item(const std::string& name, std::string_view item, numbers& to) {
    const std::size_t colon = item.find(':');
    const std::int64_t first = parse_number("usage", name, item.substr(0, colon));
    if (colon == std::string_view::npos) {
        to.push_back(first);
        return;
    }
    const std::int64_t last = parse_number("usage", name, item.substr(colon + 1));
    require(first <= last, "usage", name, " has the range ", first, ":", last,
            "; a range a:b is a..b-1 and needs a <= b");
    // The difference of two 64-bit numbers may need 64 bits without a sign.
    const std::uint64_t count = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
    require(count <= static_cast<std::uint64_t>(most_numbers) - to.size(), "usage", name, " has more than ",
            most_numbers, " numbers with its range ", first, ":", last, "; that many are the most");
    for (std::int64_t value = first; value < last; ++value) to.push_back(value);
}

numbers parse_list(const std::string& name, std::string_view text) {
    numbers values;
    for (;;) {
        const std::size_t comma = text.find(',');
        parse_item(name, text.substr(0, comma), values);
        if (comma == std::string_view::npos) return values;
        text.remove_prefix(comma + 1);
    }
}

// A whole number with a unit behind it or none.
std::int64_t parse_bytes(const std::string& name, std::string_view text) {
    struct unit {
        std::string_view name;
        std::int64_t bytes;
    };
    constexpr unit units[] = {{"KiB", std::int64_t{1} << 10},
                              {"MiB", std::int64_t{1} << 20},
                              {"GiB", std::int64_t{1} << 30},
                              {"TiB", std::int64_t{1} << 40},
                              {"KB", 1'000},
                              {"MB", 1'000'000},
                              {"GB", 1'000'000'000},
                              {"TB", 1'000'000'000'000}};
    for (const unit& each : units) {
        if (!text.ends_with(each.name)) continue;
        text.remove_suffix(each.name.size());
        const std::int64_t count = parse_number("usage", name, text);
        constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
        require(count <= largest / each.bytes && count >= -largest / each.bytes, "usage", name, " has ", count, " ",
                std::string(each.name), ", which do not fit 64 bits; it must be from -2^63 to 2^63 - 1 bytes");
        return count * each.bytes;
    }
    return parse_number("usage", name, text);
}

void add(CLI::App& app, need needed, const char* name, const std::function<void(const std::string&)>& take,
         const std::string& kind, const char* description) {
    app.add_option_function<std::string>(name, take, description)->type_name(kind)->required(needed == need::required);
}

} // namespace

std::int64_t parse_number(const char* code, const std::string& name, std::string_view text) {
    std::int64_t value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    require(fault != std::errc::result_out_of_range, code, name, " has '", std::string(text),
            "', which does not fit 64 bits; it must be from -2^63 to 2^63 - 1");
    require(fault == std::errc() && end == text.data() + text.size(), code, name, " has '", std::string(text),
            "'; it must be a whole decimal number");
    return value;
}

void number(CLI::App& app, need needed, const char* name, std::int64_t& to, const char* description) {
    const auto take = [name, &to](const std::string& text) { to = parse_number("usage", name, text); };
    add(app, needed, name, take, "NUMBER", description);
}

void number(CLI::App& app, const char* name, std::optional<std::int64_t>& to, const char* description) {
    const auto take = [name, &to](const std::string& text) { to = parse_number("usage", name, text); };
    add(app, need::optional, name, take, "NUMBER", description);
}

void bytes(CLI::App& app, const char* name, std::optional<std::int64_t>& to, const char* description) {
    const auto take = [name, &to](const std::string& text) { to = parse_bytes(name, text); };
    add(app, need::optional, name, take, "BYTES", description);
}

void list(CLI::App& app, const char* name, numbers& to, const char* description) {
    const auto take = [name, &to](const std::string& text) { to = parse_list(name, text); };
    add(app, need::required, name, take, "LIST", description);
}

void text(CLI::App& app, const char* name, std::string& to, const char* description) {
    const auto take = [&to](const std::string& given) { to = given; };
    add(app, need::required, name, take, "TEXT", description);
}

void text(CLI::App& app, const char* name, std::optional<std::string>& to, const char* description) {
    const auto take = [&to](const std::string& given) { to = given; };
    add(app, need::optional, name, take, "TEXT", description);
}

void word(CLI::App& app, need needed, const char* name, std::string& to, const std::vector<std::string>& choices,
          const char* description) {
    const auto take = [name, &to, choices](const std::string& text) {
        require(std::find(choices.begin(), choices.end(), text) != choices.end(), "usage", name, " is '", text,
                "'; it must be one of ", fmt::format("{}", fmt::join(choices, ", ")));
        to = text;
    };
    add(app, needed, name, take, fmt::format("{}", fmt::join(choices, "|")), description);
}

void flag(CLI::App& app, const char* name, bool& to, const char* description) {
    app.add_flag(name, to, description);
}

} // namespace inspect
