// What users ask for, and when: a seeded trace of mixed requests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace serve {

// A request of the trace.
struct asked {
    double arrives_s = 0;
    std::vector<std::int32_t> prompt;
    std::int64_t outputs = 1; // tokens to generate

    // Tokens in the cache at the end: the last output is not put there.
    std::int64_t longest() const { return static_cast<std::int64_t>(prompt.size()) + outputs - 1; }
};

struct trace_options {
    std::uint64_t seed = 1;
    std::int64_t requests = 48;
    double rate = 0;             // mean arrivals a second (Poisson); 0: all arrive at once
    std::int64_t shortest = 256; // tokens of a prompt
    std::int64_t longest = 32768;
    std::int64_t outputs = 64; // on the average
    std::int32_t words = 1024;
};

// Three classes of prompts, by their length: an eighth of the longest begins a long one, a 32nd a medium one.
enum class request_class : std::uint8_t { is_short, is_medium, is_long };
inline constexpr int request_classes = 3;
request_class class_of(const trace_options& given, std::int64_t prompt_tokens);
std::string name_of(const trace_options& given, request_class which);

// Of the requests about 60% are short, 25% medium, 15% long, drawn evenly in the logarithm of the length; a third share
// one of four prefixes. One in six generates eight times as much as the others and so grows while it runs.
// One rate gives the same requests as another, at other times.
std::vector<asked> make_trace(const trace_options& given);

} // namespace serve
