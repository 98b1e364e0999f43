// The command line of prefill_zigzag.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace demo {

struct options {
    std::int64_t tokens = 32'768;
    std::int64_t chunk = 4096;
    std::int64_t pcp = 4;
    std::vector<std::int64_t> dcp{1, 4};
    std::string path = "both";
    std::int64_t q_heads = 32;
    std::int64_t kv_heads = 8;
    std::int64_t head_dim = 128;
    std::int64_t interleave = 16;
    std::int64_t block_size = 16;
    std::int64_t workspace = 8192;
    std::int64_t threads_per_rank = 1;
    std::string backend = "cpu";
    std::string comm = "local";
    std::string id_file;
    std::uint64_t seed = 1;
    std::string inject;
    bool portable = false;
    bool json = false;
};

// Ends the program with status 2 where the command line is not legal, with 0 for --help.
options parse_options(int argc, char** argv);

} // namespace demo
