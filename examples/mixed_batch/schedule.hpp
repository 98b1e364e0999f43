// The scheduler of a tiny engine: which requests run, what each adds in the next step, and where its blocks are. Every
// rank runs the same one on the same numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"

namespace demo {

// What a step is about. Requests are in order of arrival; rows are their new tokens, one request behind the other.
struct step_input {
    std::vector<std::size_t> requests;  // their numbers, 0 for A
    std::vector<std::int64_t> computed; // [requests] tokens whose keys are in the cache
    std::vector<std::int64_t> tokens;   // [requests] new ones
    std::vector<std::int64_t> kinds;    // [requests] row_kind as a number
    std::vector<std::int64_t> ids;      // [rows] the new tokens
    std::vector<std::int32_t> blocks;   // [requests][options::blocks()]
    std::vector<bool> samples;          // [requests] whether the next token follows from the last row

    std::int64_t rows() const { return static_cast<std::int64_t>(ids.size()); }
    // "A prefills 0-127, B decodes 90"
    std::string text() const;
};

class scheduler {
public:
    explicit scheduler(const options& given);

    bool done() const;

    // The next step: a chunk of each prompt that is not yet in the cache, else one token.
    step_input next();

    // Ends that step. sampled[i] is the token that follows in its i-th request, where it samples.
    void finish(const step_input& step, const std::vector<std::int64_t>& sampled);

private:
    struct request {
        std::int64_t arrives = 0;         // step
        std::int64_t prompt = 0;          // tokens
        std::int64_t decodes = 0;         // steps, behind the first token that follows the prompt
        std::vector<std::int64_t> ids;    // known tokens: the prompt, and what was sampled
        std::int64_t computed = 0;        // of them, in the cache
        std::vector<std::int32_t> blocks; // while it runs
        bool finished() const { return static_cast<std::int64_t>(ids.size()) > prompt + decodes; }
    };

    bool give_blocks(request& to);

    const options& given_;
    std::vector<request> requests_;
    std::vector<std::int32_t> free_; // block ids
    std::int64_t step_ = 0;
};

} // namespace demo
