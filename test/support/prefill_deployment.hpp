// A deployment whose step has prefills, described by plain values like a decode deployment: `length` and `rows` of its
// requests follow from the batch. And the split of a batch over PCP ranks, from its definition, token by token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "deployment.hpp"

namespace ctxpar_test {

// One request of a step: tokens that were computed before it, and new ones.
struct new_tokens {
    std::int64_t computed = 0;
    std::int64_t tokens = 0;
    bool decodes = false;
};

using new_batch = std::vector<new_tokens>;

inline new_tokens prefills(std::int64_t computed, std::int64_t tokens) {
    return {computed, tokens, false};
}
inline new_tokens decodes(std::int64_t computed, std::int64_t rows = 1) {
    return {computed, rows, true};
}

struct prefill_deployment : deployment {
    new_batch batch; // of the step; set it with serve()
    zigzag_split split = zigzag_split::balanced;
    prefill_path prefill_rows = prefill_path::automatic;
    prefill_path decode_rows = prefill_path::automatic;
    std::int64_t context_rows = 1024;

    // How the context came into the caches: by so many prefill steps before this one, or, with 0, by plain code.
    std::int64_t earlier_steps = 2;
    bool attends_earlier = false; // the earlier steps are attended and compared too

    bool finite_pads = false;      // what pads hold: ones in place of NaN
    std::int64_t hidden_bytes = 0; // of a row that is restored

    // MLA whose prefill rows attend up-projected keys [nope | rope]; 0: absorbed.
    std::int64_t nope_width = 0;
    std::int64_t projected_value_width = 0;

    bool projects() const { return nope_width > 0; }
    std::int64_t rope_width() const { return key_width - value_width; }
    std::int64_t projected_key_width() const { return nope_width + rope_width(); }

    // The step's requests.
    void serve(new_batch requests_of_step) {
        batch = std::move(requests_of_step);
        requests.clear();
        for (const new_tokens& each : batch) requests.push_back({each.computed + each.tokens, each.tokens});
    }
};

// All steps, the one that is tested last: before it every context is appended in pieces of uneven length.
inline std::vector<new_batch> steps_of(const prefill_deployment& d) {
    std::vector<new_batch> steps;
    for (std::int64_t step = 0; step < d.earlier_steps; ++step) {
        new_batch earlier;
        for (std::size_t i = 0; i < d.batch.size(); ++i) {
            const auto cut = [&](std::int64_t part) {
                const std::int64_t uneven = part == 0 || part == d.earlier_steps ? 0 : static_cast<std::int64_t>(i) + 3;
                return std::min(d.batch[i].computed, d.batch[i].computed * part / d.earlier_steps + uneven);
            };
            earlier.push_back(prefills(cut(step), cut(step + 1) - cut(step)));
        }
        steps.push_back(earlier);
    }
    steps.push_back(d.batch);
    return steps;
}

// A run of new tokens.
struct chunk_of_tokens {
    std::int64_t first = 0;
    std::int64_t count = 0;
};

// The 2W chunks of n new tokens.
inline std::vector<chunk_of_tokens> chunks_of(std::int64_t n, std::int64_t pcp, zigzag_split split) {
    std::vector<chunk_of_tokens> chunks(static_cast<std::size_t>(2 * pcp));
    if (split == zigzag_split::balanced) {
        for (std::int64_t token = 0; token < n; ++token) ++chunks[static_cast<std::size_t>(token % (2 * pcp))].count;
        for (std::size_t i = 1; i < chunks.size(); ++i) chunks[i].first = chunks[i - 1].first + chunks[i - 1].count;
        return chunks;
    }
    std::int64_t size = 0;
    while (size * 2 * pcp < n) ++size;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
        const std::int64_t first = static_cast<std::int64_t>(i) * size;
        chunks[i] = {first, size};
        if (split == zigzag_split::ceil) chunks[i].count = std::max<std::int64_t>(0, std::min(size, n - first));
    }
    return chunks;
}

// A row of one PCP rank: new token `token` of a request, at or past its last one for a pad; request -1 for filling.
struct own_row {
    std::int64_t request = -1;
    std::int64_t token = -1;
    bool real = false;
};

// The rows of PCP rank `rank`, without filling.
inline std::vector<own_row> own_rows(const prefill_deployment& d, const new_batch& batch, std::int64_t rank) {
    std::vector<own_row> rows;
    for (std::size_t i = 0; i < batch.size(); ++i) {
        const std::int64_t n = batch[i].tokens, last = 2 * d.sizes.pcp - 1 - rank;
        const auto chunks = chunks_of(n, d.sizes.pcp, d.split);
        std::vector<chunk_of_tokens> mine{chunks[static_cast<std::size_t>(rank)],
                                          chunks[static_cast<std::size_t>(last)]};
        if (batch[i].decodes) mine = {{0, n}};
        for (const chunk_of_tokens& chunk : mine)
            for (std::int64_t token = chunk.first; token < chunk.first + chunk.count; ++token)
                rows.push_back({static_cast<std::int64_t>(i), token, token < n});
    }
    return rows;
}

// Rows of every rank, filling included.
inline std::int64_t rows_of_ranks(const prefill_deployment& d, const new_batch& batch) {
    std::size_t most = 0;
    for (std::int64_t rank = 0; rank < d.sizes.pcp; ++rank) most = std::max(most, own_rows(d, batch, rank).size());
    return static_cast<std::int64_t>(most);
}

// The same rows with their filling.
inline std::vector<own_row> filled_rows(const prefill_deployment& d, const new_batch& batch, std::int64_t rank) {
    std::vector<own_row> rows = own_rows(d, batch, rank);
    rows.resize(static_cast<std::size_t>(rows_of_ranks(d, batch)));
    return rows;
}

inline std::int64_t tokens_of(const new_batch& batch) {
    std::int64_t sum = 0;
    for (const new_tokens& each : batch) sum += each.tokens;
    return sum;
}

inline std::int64_t decode_rows_of(const new_batch& batch) {
    std::int64_t sum = 0;
    for (const new_tokens& each : batch) sum += each.decodes ? each.tokens : 0;
    return sum;
}

inline std::string describe(const prefill_deployment& d) {
    std::string text = describe(static_cast<const deployment&>(d));
    text += sentence(" split ", static_cast<int>(d.split), " paths ", static_cast<int>(d.prefill_rows), "/",
                     static_cast<int>(d.decode_rows), " context rows ", d.context_rows, " earlier steps ",
                     d.earlier_steps, " projected ", d.nope_width, "/", d.projected_value_width, " batch");
    for (const new_tokens& each : d.batch)
        text += sentence(" ", each.tokens, "@", each.computed, each.decodes ? ":decode" : "");
    return text;
}

} // namespace ctxpar_test
