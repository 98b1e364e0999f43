// The command line of decode_1m.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace demo {

struct options {
    std::string attention = "gqa";
    std::int64_t tokens = 1'048'576;
    std::int64_t ranks = 8;               // that share the KV
    std::optional<std::int64_t> tp;       // by default tp x pcp = ranks
    std::optional<std::int64_t> pcp;      //
    std::optional<std::int64_t> q_heads;  // 64, or 128 for MLA
    std::optional<std::int64_t> kv_heads; // 8, or 1 for MLA
    std::optional<std::int64_t> head_dim; // 128; GQA only
    std::int64_t interleave = 16;
    std::int64_t block_size = 16;
    std::vector<std::string> merges = {"a2a"};
    std::string placement = "own_heads";
    std::string kv_type = "bf16";
    std::int64_t layers = 1;
    std::int64_t batch = 1;
    std::int64_t query_rows = 1;
    std::int64_t steps = 3;
    std::int64_t threads_per_rank = 1;
    std::string backend = "cpu";
    std::string comm = "local";
    std::string id_file;
    std::uint64_t seed = 1;
    std::string inject; // a fault to be found; empty: none
    bool fit = false;   // take fewer tokens where memory does not suffice
    bool json = false;
};

// Parses the command line. Prints and ends the program on --help (status 0) and on wrong usage (status 2).
options parse_options(int argc, char** argv);

} // namespace demo
