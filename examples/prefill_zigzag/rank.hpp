// One rank of the engine: its groups and cache, and the calls that it makes.
#pragma once

#include <cstdint>
#include <vector>

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/policy.hpp>
#include <ctxpar/prefill.hpp>

#include "common/groups.hpp"
#include "common/memory.hpp"
#include "engine.hpp"
#include "faulty_backend.hpp"

namespace demo {

template <ctxpar::communicator Communicator>
class prefill_rank {
public:
    using attention = ctxpar::gqa<ctxpar::bf16, ctxpar::dynamic, ctxpar::dynamic>;
    using policy = ctxpar::policy<attention, ctxpar::interleave<>, ctxpar::merge::a2a>;
    using prefiller = ctxpar::prefiller<policy, faulty_backend, Communicator>;

    // `blocks` are the request's block ids, the same on every rank; `memory` is this rank's pool.
    prefill_rank(const problem& all, const prompt_data& data, std::int64_t dcp, const std::vector<std::int32_t>& blocks,
                 const pool& memory, Communicator& world);

    std::size_t pool_bytes() const { return memory_.bytes(); }

    // Writes the context, chunk by chunk, without attending to it. All ranks, as all that follows.
    void fill(progress& bar);

    // What a prefiller decides where nothing is forced.
    ctxpar::path_choice automatic_choice();

    // The step that is attended and timed.
    void attend(record& to, progress& bar);

private:
    struct rows; // queries, keys and values of a step
    prefiller make(ctxpar::prefill_path path, fault injected, progress* bar);
    // Of the one request: `computed` tokens are there, `tokens` are new.
    ctxpar::prefill_batch batch(const std::int64_t& computed, const std::int64_t& tokens) const;
    ctxpar::kv_view<ctxpar::bf16> cache() const;
    void forget_new_tokens() const;
    void start_together();
    void restore(prefiller& with, const ctxpar::prefill_step& step, const rows& own, rank_record& to) const;

    const problem& all_;
    const prompt_data& data_;
    std::int64_t dcp_;
    const pool& memory_;
    Communicator& world_;
    rank_groups<Communicator> groups_;
    ctxpar::block_table table_;
};

// Ranks that compute on CPUs, for runs.hpp.
struct cpu_ranks {
    template <class Communicator>
    using rank = prefill_rank<Communicator>;
    using pool = demo::pool;

    template <class Communicator>
    static void prepare(Communicator&, const problem& all, std::int64_t dcp, pool& own) {
        if (own.bytes() == 0) own = demo::pool(static_cast<std::size_t>(all.pool_bytes(dcp)));
    }
};

} // namespace demo
