#include "schedule.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace demo {

std::string step_input::text() const {
    std::string all;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const char name = static_cast<char>('A' + static_cast<char>(requests[i]));
        all += i == 0 ? "" : ", ";
        if (kinds[i] == 0) {
            all += fmt::format("{} prefills {}-{}", name, computed[i], computed[i] + tokens[i] - 1);
        } else {
            all += fmt::format("{} decodes {}", name, computed[i]);
        }
    }
    return all;
}

// A is long; B decodes beside it and leaves; C joins and leaves; D joins when B is gone, and is given its blocks.
scheduler::scheduler(const options& given) : given_(given) {
    const auto add = [&](std::int64_t arrives, std::int64_t prompt, std::int64_t decodes) {
        request one;
        one.arrives = arrives;
        one.prompt = prompt;
        one.decodes = decodes;
        for (std::int64_t i = 0; i < prompt; ++i)
            one.ids.push_back((i * 37 + prompt * 11) % (options::q_heads * options::head_dim));
        requests_.push_back(std::move(one));
    };
    add(0, 536, 3);
    add(0, 90, 3);
    add(2, 37, 4);
    add(5, 61, 2);
    for (std::int64_t block = options::max_requests * given.blocks(); block-- > 0;)
        free_.push_back(static_cast<std::int32_t>(block));
}

bool scheduler::done() const {
    return std::all_of(requests_.begin(), requests_.end(), [](const request& each) { return each.finished(); });
}

bool scheduler::give_blocks(request& to) {
    if (static_cast<std::int64_t>(free_.size()) < given_.blocks()) return false;
    to.blocks.assign(free_.end() - given_.blocks(), free_.end());
    free_.resize(free_.size() - to.blocks.size());
    return true;
}

step_input scheduler::next() {
    step_input step;
    for (std::size_t r = 0; r < requests_.size(); ++r) {
        request& each = requests_[r];
        if (each.arrives > step_ || each.finished()) continue;
        if (each.blocks.empty() && !give_blocks(each)) continue; // it waits until another request leaves
        const auto known = static_cast<std::int64_t>(each.ids.size());
        const std::int64_t tokens = std::min(known - each.computed, given_.chunk);
        const bool decodes = each.computed >= each.prompt;
        step.requests.push_back(r);
        step.computed.push_back(each.computed);
        step.tokens.push_back(tokens);
        step.kinds.push_back(decodes ? 1 : 0);
        step.samples.push_back(each.computed + tokens == known);
        step.ids.insert(step.ids.end(), each.ids.begin() + each.computed, each.ids.begin() + each.computed + tokens);
        step.blocks.insert(step.blocks.end(), each.blocks.begin(), each.blocks.end());
    }
    return step;
}

void scheduler::finish(const step_input& step, const std::vector<std::int64_t>& sampled) {
    ++step_;
    for (std::size_t i = 0; i < step.requests.size(); ++i) {
        request& each = requests_[step.requests[i]];
        each.computed += step.tokens[i];
        if (!step.samples[i]) continue;
        each.ids.push_back(sampled[i]);
        if (!each.finished()) continue;
        free_.insert(free_.end(), each.blocks.begin(), each.blocks.end());
        each.blocks.clear();
    }
}

} // namespace demo
