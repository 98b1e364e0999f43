// Options on the command line, parsed strictly: a number is a whole decimal number that fits 64 bits, a list has commas
// and half-open ranges a:b. All that does not parse is refused with the code "usage".
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "answer.hpp"

namespace CLI {
class App;
}

namespace inspect {

// No list on the command line and no answer is longer than this.
inline constexpr std::int64_t most_numbers = std::int64_t{1} << 24;

// A whole decimal number; `name` is what has it. What does not parse is refused with `code`.
std::int64_t parse_number(const char* code, const std::string& name, std::string_view text);

enum class need { optional, required };

// Each adds one option; all but a flag take one value.
void number(CLI::App& app, need needed, const char* name, std::int64_t& to, const char* description);
void number(CLI::App& app, const char* name, std::optional<std::int64_t>& to, const char* description);
void bytes(CLI::App& app, const char* name, std::optional<std::int64_t>& to, const char* description); // 80GiB, 141GB
void list(CLI::App& app, const char* name, numbers& to, const char* description);                      // required
void text(CLI::App& app, const char* name, std::string& to, const char* description);                  // required
void text(CLI::App& app, const char* name, std::optional<std::string>& to, const char* description);
void word(CLI::App& app, need needed, const char* name, std::string& to, const std::vector<std::string>& choices,
          const char* description);
void flag(CLI::App& app, const char* name, bool& to, const char* description);

// A command: adds its options to `app` and returns what answers once they are parsed.
using command = std::function<answer()>(CLI::App& app);

command topology_command, lengths_command, slots_command, blocks_command, zigzag_command, gather_command,
    reshard_command, exchange_command, merge_command, calibrate_command, route_command, capacity_command;

} // namespace inspect
