// The scheduler: which requests run, where, and what each adds in the next step. It knows no clock but the times it is
// told, and computes nothing: the ranks of this process run it, and so does the simulation.
//
// Ranks that share the KV of a running request take its steps together: a step has the ranks of a place, and serves all
// requests of that place and of those inside it, as places nest or are apart. It decodes a token of each request whose
// prompt is in the cache, prefills chunks of the others, and moves a part of the KV of a request that goes elsewhere.
// Of prefills the one with the fewest tokens left goes first, and all together have a time for each step: so a long
// prompt delays the requests on its ranks by that much a token, whether it is on one rank or on all.
//
// After a step of a wide place those inside it have twice as much time for steps of their own, where requests run in
// them. So a short request on one rank makes several tokens for one of a long request around it, instead of one for
// one, and is out of its way sooner.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ctxpar/plan/router.hpp>

#include "blocks.hpp"
#include "trace.hpp"

namespace serve {

// The new tokens of a request in a step.
struct step_entry {
    std::size_t request = 0;   // in the trace
    std::int64_t computed = 0; // tokens whose keys are in the cache
    std::int64_t tokens = 0;   // new ones
    bool decodes = false;
    bool samples = false;          // the next token follows from the last row
    std::vector<std::int32_t> ids; // the new tokens
    block_list table;
};

// Requests of one place.
struct place_batch {
    place where;
    std::vector<step_entry> entries;
};

// Tokens [first, end) of a request go from one place to another, before all else of the step. With the last part the
// request is there.
struct step_move {
    std::size_t request = 0;
    place from, to;
    place over; // the least that has all ranks of both
    block_list from_table, to_table;
    std::int64_t first = 0;
    std::int64_t end = 0;
};

struct step {
    place ranks; // that take it together
    double begin_s = 0;
    std::vector<step_move> moves;
    std::vector<place_batch> batches; // the widest last; on every rank in this order
};

// What became of a request.
struct served {
    std::vector<std::int32_t> outputs;
    double first_s = 0;      // the time of the first output
    double end_s = 0;        // and of the last
    std::int64_t reused = 0; // tokens of the prompt found in the prefix cache
    std::int32_t moves = 0;
    std::int64_t ranks = 1; // when it was admitted
    std::string refused;    // why it was not served
};

struct schedule_options {
    std::int64_t ranks = 2;
    std::vector<std::int64_t> sizes = {1, 2}; // of places, ascending; each divides the next and `ranks`
    std::int64_t block_size = 16;
    std::int64_t pool_blocks = 1;               // of each rank
    std::int64_t max_requests = 64;             // running in one place
    std::int64_t chunk = 512;                   // rows of prefills that one rank computes in a step, at most
    double busy_us = 100;                       // that prefills may take of a step in which others decode
    double idle_us = 20'000;                    // and of any other step
    double pause = 2;                           // for places inside one, after a step of it, as a part of that step
    std::function<double(std::int64_t)> row_us; // what a row takes behind so many tokens
    std::int64_t move_chunk = 4096;             // tokens of a request that move in a step
};

class scheduler {
public:
    // config_error "sizes".
    scheduler(const schedule_options& given, ctxpar::router& routes, const std::vector<asked>& trace);

    // Takes requests that have arrived, and those that found no room before; begin() does so first.
    void arrive(double now_s);

    // A rank has nothing to do. Returns the step that begins thereby, for all ranks of it, or null: then it waits until
    // another rank has nothing to do either, a step ends, or a request arrives.
    std::shared_ptr<const step> begin(std::int64_t rank, double now_s);

    // A step has ended on all of its ranks: sampled[b][i] follows entry i of batch b, where it samples.
    void end(const step& done, const std::vector<std::vector<std::int32_t>>& sampled, double now_s);

    bool finished() const { return finished_ == trace_.size(); }
    std::optional<double> next_arrival_s() const;
    const std::vector<served>& results() const { return results_; }

private:
    struct running {
        std::size_t request = 0;
        place where;
        std::int64_t computed = 0;
        std::vector<std::int32_t> tokens; // the prompt, and what followed so far
        block_list blocks;
        std::size_t kept = 0;    // blocks that the prefix cache was told of
        std::optional<place> to; // moves there
        block_list to_blocks;
        std::int64_t moved = 0;
    };

    bool admit(std::size_t request);
    block_list blocks_for(const place& where, std::int64_t tokens, std::vector<shared_block> found);
    void review(running& one);
    place around(const running& one) const;
    place next_place(std::int64_t rank, double now_s) const;
    step_entry entry_of(const running& one, std::int64_t tokens) const;
    void add_moves(step& made);
    void add_batches(step& made);
    void add_entry(step& made, const running& one, std::int64_t tokens);
    std::int64_t prompt_of(const running& one) const {
        return static_cast<std::int64_t>(trace_[one.request].prompt.size());
    }
    bool advance(running& one, const step_entry& done, std::int32_t sampled, double now_s);
    void keep_prefix(running& one);

    schedule_options given_;
    ctxpar::router& routes_;
    const std::vector<asked>& trace_;
    std::vector<std::vector<ctxpar::prefix_key>> keys_; // [requests] of blocks of block_size tokens
    block_pools pools_;
    prefix_cache prefixes_;
    std::size_t arrived_ = 0; // requests of the trace that have
    std::size_t finished_ = 0;
    std::deque<std::size_t> waiting_;
    std::list<running> running_;                           // in order of admission
    std::vector<std::list<running>::iterator> by_request_; // [requests] of those that run
    std::vector<bool> idle_;                               // [ranks]
    std::vector<std::map<std::int64_t, double>> due_s_;    // [ranks] when a place of a size may take its next step
    std::vector<served> results_;
};

} // namespace serve
