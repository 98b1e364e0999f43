// A decode benchmark by its numbers, and the data it reads: a cache of random numbers in which some tokens are planted,
// so that a result with wrong weights, or without its newest token, is seen to be wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "reference.hpp"
#include "suite.hpp"

namespace bench {

struct decode_case {
    std::int64_t tokens = 262144; // of each request
    std::int64_t batch = 1;
    std::int64_t q_heads = 64;
    std::int64_t kv_heads = 8;
    std::int64_t block = 16;
    bool by_head = false; // HND, else NHD
    std::int64_t interleave = 16;
    std::int64_t ranks = 1;
    std::int64_t threads = 1; // of each rank
    bool latent = false;
    bool whole_step = false; // plan and append are timed too, and every part by itself

    std::int64_t query_width() const { return latent ? 576 : 128; }
    std::int64_t value_width() const { return latent ? 512 : 128; }
    std::int64_t token_bytes() const;
    std::int64_t blocks_of_request() const; // on each rank
    std::int64_t region_bytes() const;      // of the pools of all ranks
    double read_bytes() const;              // of one step
    double flops() const;                   // of one step
    double scale() const;

    // CPUs that are busy at once.
    int busy(int cpus) const;
    std::string name() const;
};

// Block ids of all requests, in an order as a pool in use would have it.
std::vector<std::int32_t> scattered_ids(std::int64_t blocks);

// A planted deployment: caches of all ranks in as many regions as it takes to read memory and not a cache.
class decode_data {
public:
    decode_data(const decode_case& what, bool smoke);

    // Region 0 is the one that is compared.
    const cache_place& place() const { return place_; }
    std::byte* pool(std::int64_t iteration, std::int64_t rank) const;
    const std::vector<std::int32_t>& ids() const { return ids_; }

    // bf16 numbers: the query of all heads [batch][q_heads][width], and the newest token's K and V, of all KV heads.
    const std::vector<std::uint16_t>& queries() const { return queries_; }
    const std::vector<std::uint16_t>& new_keys() const { return new_keys_; }
    const std::vector<std::uint16_t>& new_values() const { return new_values_; }

    // Writes planted tokens, and nonsense where the newest token will be appended.
    void plant();

    // Compares the newest tokens in the cache with those that were to be appended, and output(request, head), the fp32
    // numbers of each rank that has the head, with the reference. A sentence where something is wrong.
    std::string compare(const std::function<std::vector<const float*>(std::int64_t, std::int64_t)>& output,
                        bool exact_probabilities, double& error) const;

private:
    struct sample {
        std::int64_t request;
        std::int64_t head;
    };
    bool newest_are_there() const;
    std::vector<float> query(const sample& at) const;
    std::vector<std::int64_t> planted_positions() const;
    void plant_key(const sample& at, std::int64_t which, std::uint16_t* key) const;

    decode_case case_;
    std::vector<std::int32_t> ids_;
    std::vector<std::uint16_t> queries_, new_keys_, new_values_;
    std::vector<sample> samples_;
    cache_place place_;
    std::int64_t regions_ = 1;
};

} // namespace bench
