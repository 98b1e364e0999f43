#include "trace.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

namespace serve {
namespace {

std::int64_t first_of(const trace_options& given, request_class which) {
    switch (which) {
    case request_class::is_short:
        return given.shortest;
    case request_class::is_medium:
        return std::max(given.shortest, given.longest / 32);
    case request_class::is_long:
        break;
    }
    return std::max(given.shortest, given.longest / 8);
}

std::vector<std::int32_t> drawn_words(std::mt19937_64& random, std::int64_t count, std::int32_t words) {
    std::uniform_int_distribution<std::int32_t> word(0, words - 1);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::int32_t& token : tokens) token = word(random);
    return tokens;
}

std::string tokens_text(std::int64_t tokens) {
    return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024) : fmt::format("{}", tokens);
}

} // namespace

request_class class_of(const trace_options& given, std::int64_t prompt_tokens) {
    if (prompt_tokens >= first_of(given, request_class::is_long)) return request_class::is_long;
    return prompt_tokens >= first_of(given, request_class::is_medium) ? request_class::is_medium
                                                                      : request_class::is_short;
}

std::string name_of(const trace_options& given, request_class which) {
    const auto from = tokens_text(first_of(given, which));
    if (which == request_class::is_long) return fmt::format("{} to {}", from, tokens_text(given.longest));
    const auto next = static_cast<request_class>(static_cast<int>(which) + 1);
    return fmt::format("{} to {}", from, tokens_text(first_of(given, next)));
}

std::vector<asked> make_trace(const trace_options& given) {
    std::mt19937_64 random(given.seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::exponential_distribution<double> gap(1);
    const std::int64_t shared = std::max<std::int64_t>(given.shortest / 2, 1);
    std::vector<std::vector<std::int32_t>> prefixes;
    for (int i = 0; i < 4; ++i) prefixes.push_back(drawn_words(random, shared, given.words));

    std::vector<asked> trace;
    double now = 0;
    for (std::int64_t i = 0; i < given.requests; ++i) {
        asked request;
        const double pause = gap(random);
        now += given.rate > 0 ? pause / given.rate : 0;
        request.arrives_s = now;
        const double which = uniform(random);
        const auto kind = which < 0.6    ? request_class::is_short
                          : which < 0.85 ? request_class::is_medium
                                         : request_class::is_long;
        const auto from = static_cast<double>(first_of(given, kind));
        const auto end = static_cast<double>(
            kind == request_class::is_long ? given.longest + 1
                                           : first_of(given, static_cast<request_class>(static_cast<int>(kind) + 1)));
        const auto length = static_cast<std::int64_t>(from * std::pow(end / from, uniform(random)));
        request.prompt = drawn_words(random, length, given.words);
        if (uniform(random) < 1.0 / 3) {
            const auto& prefix = prefixes[static_cast<std::size_t>(uniform(random) * 4)];
            std::copy_n(prefix.begin(), std::min(prefix.size(), request.prompt.size()), request.prompt.begin());
        }
        const double factor = uniform(random) < 1.0 / 6 ? 8 : 1;
        request.outputs = std::max<std::int64_t>(
            1, static_cast<std::int64_t>(static_cast<double>(given.outputs) * factor * (0.5 + uniform(random))));
        trace.push_back(std::move(request));
    }
    return trace;
}

} // namespace serve
