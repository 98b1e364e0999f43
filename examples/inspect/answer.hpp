// What a command answers: the same numbers as JSON for a program and as text for a person.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace inspect {

using json = nlohmann::ordered_json;
using numbers = std::vector<std::int64_t>;

struct answer {
    json values;      // one object; null: nothing is printed
    std::string text; // lines
    int status = 0;   // to exit with; not 0 where what was wrong has been said
};

// Columns of right-aligned text under a header.
class table {
public:
    explicit table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }
    void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
    std::string text() const;

private:
    std::vector<std::vector<std::string>> rows_;
};

// "1 2 3"
std::string joined(const numbers& values);

// {first, "rank 0", "rank 1", ...}
std::vector<std::string> rank_header(std::vector<std::string> first, std::int64_t ranks);

// Refuses an answer of more numbers than anyone can read, before memory is spent on it: "usage". `factors` are
// multiplied.
void check_readable(const std::vector<std::int64_t>& factors);

} // namespace inspect
