// Requests that change from step to step as an engine's do: they grow, lose drafts that were rejected, end, and begin
// anew in blocks that others have left, served in batches of any of them. What comes out of a step is plain double
// precision. One KV head; numbers are those of bf16.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "../support/reference.hpp"

namespace changing_requests {

inline constexpr std::int64_t width = 64;
inline constexpr std::int64_t heads_per_rank = 2;
inline constexpr std::int64_t max_requests = 8;
inline constexpr std::int64_t longest = 44;
inline constexpr std::int64_t block_size = 4;
inline constexpr std::int64_t columns = longest / block_size;
inline constexpr std::int64_t pool_blocks = 112;
inline constexpr std::int64_t interleaved = 2;
using floats = std::vector<float>;

// Rows of a batch of that many requests, some of which are padding.
inline std::int64_t rows_of(std::int64_t requests) {
    return 2 * requests + 1;
}

// What the tokens of one sequence have cached, all ranks together, and its blocks on each rank.
struct sequence {
    floats k, v; // [tokens][width]
    std::vector<std::vector<std::int32_t>> blocks;
    std::int64_t drafts = 0; // of the last step, which may be rejected

    std::int64_t length() const { return std::ssize(k) / width; }
    void drop(std::int64_t tokens) {
        k.resize(k.size() - static_cast<std::size_t>(tokens * width));
        v.resize(k.size());
    }
};

// One step as the engine knows it.
struct step_state {
    std::vector<std::int64_t> lengths;
    std::vector<std::int32_t> counts;
    std::vector<std::vector<std::int32_t>> tables; // of each rank
    floats q, k, v;                                // [rows][q heads][width], [rows][width] twice
    std::vector<double> expected;                  // [rows][q heads][width], 0 for padding
};

// Sequences that are served in batches, and what comes out of them in double precision.
class engine {
public:
    engine(std::int64_t ranks, std::uint64_t seed) : ranks_(ranks), q_heads_(ranks * heads_per_rank), random_(seed) {
        sequences_.resize(max_requests + 2);
        for (sequence& each : sequences_) each.blocks.resize(static_cast<std::size_t>(ranks));
        free_.resize(static_cast<std::size_t>(ranks));
        for (auto& blocks : free_) {
            for (std::int32_t block = 0; block < pool_blocks; ++block) blocks.push_back(block);
            std::shuffle(blocks.begin(), blocks.end(), random_);
        }
    }

    step_state next(std::int64_t requests) {
        std::shuffle(sequences_.begin(), sequences_.end(), random_); // others, in another order
        step_state step;
        const std::int64_t rows = rows_of(requests);
        step.tables.assign(static_cast<std::size_t>(ranks_), std::vector<std::int32_t>(max_requests * columns, -1));
        step.q = numbers(rows * q_heads_, 2.0F);
        step.k = numbers(rows, 1.0F);
        step.v = numbers(rows, 1.0F);
        step.expected.assign(step.q.size(), 0.0);
        std::int64_t row = 0;
        for (std::int64_t slot = 0; slot < requests; ++slot) {
            const std::int64_t count = std::min(any(8) == 0 ? 0 : 1 + any(3), rows - row);
            serve(sequences_[static_cast<std::size_t>(slot)], slot, row, count, step);
            row += count;
        }
        return step;
    }

private:
    std::int64_t any(std::int64_t below) {
        return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below));
    }

    floats numbers(std::int64_t vectors, float deviation) {
        std::normal_distribution<float> normal(0.0F, deviation);
        floats values;
        for (std::int64_t i = 0; i < vectors * width; ++i)
            values.push_back(static_cast<float>(ctxpar_test::rounded_to(ctxpar_test::format_bf16, normal(random_))));
        return values;
    }

    // A request with no rows is padding.
    void serve(sequence& of, std::int64_t slot, std::int64_t row, std::int64_t count, step_state& step) {
        of.drop(std::min(of.length(), any(of.drafts + 1)));
        of.drafts = std::max<std::int64_t>(0, count - 1);
        if (of.length() + count > longest || any(25) == 0) of.drop(of.length()); // it ends, and another begins
        const auto first = [](floats& values, std::int64_t i) { return values.begin() + i * width; };
        of.k.insert(of.k.end(), first(step.k, row), first(step.k, row + count));
        of.v.insert(of.v.end(), first(step.v, row), first(step.v, row + count));
        for (std::size_t rank = 0; rank < free_.size(); ++rank) {
            std::int64_t held = 0;
            for (std::int64_t token = 0; token < of.length(); ++token)
                held += token / interleaved % ranks_ == static_cast<std::int64_t>(rank) ? 1 : 0;
            const auto needed = static_cast<std::size_t>((held + block_size - 1) / block_size);
            while (of.blocks[rank].size() > needed) give_back(of.blocks[rank], free_[rank]);
            while (of.blocks[rank].size() < needed) give_back(free_[rank], of.blocks[rank]);
            std::copy(of.blocks[rank].begin(), of.blocks[rank].end(), step.tables[rank].begin() + slot * columns);
        }
        step.lengths.push_back(count > 0 ? of.length() : 0);
        step.counts.push_back(static_cast<std::int32_t>(count));
        ctxpar_test::attention_problem ask;
        ask.length = of.length();
        ask.rows = count;
        ask.q_heads = q_heads_;
        ask.key_width = ask.value_width = width;
        ask.q = step.q.data() + row * q_heads_ * width;
        ask.k = of.k.data();
        ask.v = of.v.data();
        ask.scale = 1.0 / std::sqrt(static_cast<double>(width));
        const auto result = ctxpar_test::attend(ask);
        std::copy(result.out.begin(), result.out.end(), step.expected.begin() + row * q_heads_ * width);
    }

    static void give_back(std::vector<std::int32_t>& from, std::vector<std::int32_t>& to) {
        to.push_back(from.back());
        from.pop_back();
    }

    std::int64_t ranks_, q_heads_;
    std::mt19937_64 random_;
    std::vector<sequence> sequences_;
    std::vector<std::vector<std::int32_t>> free_; // blocks of each rank
};

} // namespace changing_requests
