#include "schedule.hpp"

#include <algorithm>
#include <numeric>

#include <ctxpar/core/error.hpp>
#include <ctxpar/layout/zigzag.hpp>

namespace serve {
namespace {

// A request's place is looked at again when its prompt is in the cache, and whenever it has grown by so many tokens.
constexpr std::int64_t review_tokens = 32;

// Whether all ranks of one place are in another.
bool has(const place& wide, const place& narrow) {
    return wide.holds(narrow.first) && end_of(narrow) <= end_of(wide);
}

place place_of(std::int64_t rank, std::int64_t ranks) {
    return {rank / ranks * ranks, ranks};
}

std::int64_t id_of(std::size_t request) {
    return static_cast<std::int64_t>(request);
}

} // namespace

scheduler::scheduler(const schedule_options& given, ctxpar::router& routes, const std::vector<asked>& trace)
    : given_(given), routes_(routes), trace_(trace), pools_(given.ranks, given.pool_blocks), prefixes_(pools_),
      by_request_(trace.size(), running_.end()), idle_(static_cast<std::size_t>(given.ranks), false),
      due_s_(static_cast<std::size_t>(given.ranks)), results_(trace.size()) {
    for (std::size_t i = 0; i < given_.sizes.size(); ++i) {
        const std::int64_t size = given_.sizes[i];
        const std::int64_t wider = i + 1 < given_.sizes.size() ? given_.sizes[i + 1] : given_.ranks;
        ctxpar::require(size >= 1 && wider % size == 0, "sizes", "places of ", size, " and ", wider, " ranks of ",
                        given_.ranks, " would overlap; each size must divide the next and the number of ranks");
    }
    for (const asked& request : trace) {
        auto& keys = keys_.emplace_back();
        ctxpar::prefix_chain(given.block_size)
            .append(std::span(request.prompt),
                    [&](std::int64_t, const ctxpar::prefix_key& key) { keys.push_back(key); });
    }
}

std::optional<double> scheduler::next_arrival_s() const {
    return arrived_ == trace_.size() ? std::nullopt : std::optional(trace_[arrived_].arrives_s);
}

std::shared_ptr<const step> scheduler::begin(std::int64_t rank, double now_s) {
    idle_[static_cast<std::size_t>(rank)] = true;
    arrive(now_s);
    auto made = std::make_shared<step>();
    made->ranks = next_place(rank, now_s);
    made->begin_s = now_s;
    const auto first = idle_.begin() + made->ranks.first, end = idle_.begin() + end_of(made->ranks);
    if (!std::all_of(first, end, [](bool idle) { return idle; })) return nullptr;
    add_moves(*made);
    add_batches(*made);
    if (made->batches.empty() && made->moves.empty()) return nullptr;
    std::fill(first, end, false);
    return made;
}

void scheduler::end(const step& done, const std::vector<std::vector<std::int32_t>>& sampled, double now_s) {
    for (std::int64_t rank = done.ranks.first; rank < end_of(done.ranks); ++rank)
        due_s_[static_cast<std::size_t>(rank)][done.ranks.ranks] = now_s + given_.pause * (now_s - done.begin_s);
    for (std::size_t b = 0; b < done.batches.size(); ++b) {
        for (std::size_t i = 0; i < done.batches[b].entries.size(); ++i) {
            const step_entry& entry = done.batches[b].entries[i];
            const auto one = by_request_[entry.request];
            if (!advance(*one, entry, entry.samples ? sampled[b][i] : 0, now_s)) {
                const std::int64_t behind = one->computed - prompt_of(*one);
                if (behind >= 0 && behind % review_tokens == 0) review(*one);
                continue;
            }
            routes_.finish(id_of(one->request));
            running_.erase(one);
            ++finished_;
        }
    }
}

void scheduler::arrive(double now_s) {
    for (; arrived_ < trace_.size() && trace_[arrived_].arrives_s <= now_s; ++arrived_) waiting_.push_back(arrived_);
    while (!waiting_.empty() && admit(waiting_.front())) waiting_.pop_front();
}

bool scheduler::admit(std::size_t request) {
    const asked& wanted = trace_[request];
    running one;
    one.request = request;
    const auto prompt = static_cast<std::int64_t>(wanted.prompt.size());
    const ctxpar::route_decision decision = routes_.admit(id_of(request), prompt, wanted.longest(), prompt);
    if (decision.outcome == ctxpar::route_outcome::wait) return false;
    if (decision.outcome == ctxpar::route_outcome::refused) {
        results_[request].refused = ctxpar::explain(decision);
        ++finished_;
        return true;
    }
    one.where = decision.at;
    one.tokens = wanted.prompt;
    // The last token of a prompt is computed in any case: its row says what follows.
    const std::int64_t unit = one.where.ranks * given_.block_size;
    std::vector<ctxpar::prefix_key> keys;
    for (std::int64_t end = unit; end < static_cast<std::int64_t>(one.tokens.size()); end += unit)
        keys.push_back(keys_[request][static_cast<std::size_t>(end / given_.block_size - 1)]);
    std::vector<shared_block> found = prefixes_.find(one.where, keys);
    one.kept = found.size();
    one.computed = static_cast<std::int64_t>(found.size()) * unit;
    one.blocks = blocks_for(one.where, wanted.longest(), std::move(found));
    results_[request].reused = one.computed;
    results_[request].ranks = one.where.ranks;
    by_request_[request] = running_.insert(running_.end(), std::move(one));
    return true;
}

// Blocks for so many tokens, the found ones first. There is room: the routes count every request as if alone.
block_list scheduler::blocks_for(const place& where, std::int64_t tokens, std::vector<shared_block> found) {
    const std::int64_t unit = where.ranks * given_.block_size;
    while (static_cast<std::int64_t>(found.size()) * unit < tokens) {
        found.push_back(prefixes_.make(where));
        ctxpar::require(found.back() != nullptr, "pool", "the pools of ranks [", where.first, ", ", end_of(where),
                        ") have no block left for a request of ", tokens, " tokens that was admitted there");
    }
    return std::make_shared<const std::vector<shared_block>>(std::move(found));
}

// Whether a request that decodes should go elsewhere.
void scheduler::review(running& one) {
    if (one.to || one.computed < prompt_of(one)) return;
    const std::optional<ctxpar::route_move> better = routes_.review(id_of(one.request));
    if (!better || !routes_.begin_move(id_of(one.request), better->to)) return;
    one.to = better->to;
    one.moved = 0;
    one.to_blocks = blocks_for(*one.to, trace_[one.request].longest(), {});
}

// Where a request runs; while it moves, the least place that has all ranks of both.
place scheduler::around(const running& one) const {
    if (!one.to) return one.where;
    const auto size = std::find_if(given_.sizes.begin(), given_.sizes.end(), [&](std::int64_t ranks) {
        const place wide = place_of(one.where.first, ranks);
        return has(wide, one.where) && has(wide, *one.to);
    });
    return size == given_.sizes.end() ? place{0, given_.ranks} : place_of(one.where.first, *size);
}

// Of the places with this rank in which requests run the widest that is due; where none is, the narrowest.
place scheduler::next_place(std::int64_t rank, double now_s) const {
    place next{rank, 1}, narrowest = next;
    bool any = false, any_due = false;
    const auto& due_s = due_s_[static_cast<std::size_t>(rank)];
    for (const running& one : running_) {
        const place where = around(one);
        if (!where.holds(rank)) continue;
        if (!any || where.ranks < narrowest.ranks) narrowest = where;
        any = true;
        const auto due = due_s.find(where.ranks);
        if ((due != due_s.end() && due->second > now_s) || (any_due && where.ranks <= next.ranks)) continue;
        next = where;
        any_due = true;
    }
    return any_due ? next : narrowest;
}

void scheduler::add_moves(step& made) {
    for (running& one : running_) {
        if (!one.to || !has(made.ranks, around(one))) continue;
        step_move part{one.request, one.where, *one.to, around(one), one.blocks, one.to_blocks, one.moved, 0};
        part.end = std::min(one.computed, one.moved + given_.move_chunk);
        one.moved = part.end;
        made.moves.push_back(part);
        if (one.moved < one.computed) continue;
        routes_.end_move(id_of(one.request)); // decodes there from this step on
        one.where = *one.to;
        one.blocks = std::move(one.to_blocks);
        one.to.reset();
        one.kept = one.blocks->size();
        ++results_[one.request].moves;
    }
}

step_entry scheduler::entry_of(const running& one, std::int64_t tokens) const {
    step_entry entry;
    entry.request = one.request;
    entry.computed = one.computed;
    entry.tokens = tokens;
    const std::int64_t prompt = prompt_of(one);
    entry.decodes = one.computed >= prompt;
    entry.samples = one.computed + tokens >= prompt;
    entry.ids.assign(one.tokens.begin() + one.computed, one.tokens.begin() + one.computed + tokens);
    entry.table = one.blocks;
    return entry;
}

// Every request that decodes, and of the prompts as many tokens as their ranks have time for.
void scheduler::add_batches(step& made) {
    std::vector<running*> prompts;
    bool decodes = false;
    for (running& one : running_) {
        if (!has(made.ranks, one.where)) continue;
        if (one.computed < prompt_of(one)) {
            prompts.push_back(&one);
        } else {
            add_entry(made, one, 1);
            decodes = true;
        }
    }
    std::stable_sort(prompts.begin(), prompts.end(), [this](const running* a, const running* b) {
        return prompt_of(*a) - a->computed < prompt_of(*b) - b->computed;
    });
    struct left {
        std::int64_t rows = 0;
        double us = 0;
    };
    std::vector<left> ranks(static_cast<std::size_t>(given_.ranks),
                            {given_.chunk, decodes ? given_.busy_us : given_.idle_us});
    for (const running* one : prompts) {
        const auto first = ranks.begin() + one->where.first, end = first + one->where.ranks;
        const auto wide = static_cast<double>(one->where.ranks);
        const double us = given_.row_us(one->computed) / wide; // of a token, on each of the ranks
        std::int64_t tokens = prompt_of(*one) - one->computed;
        for (auto rank = first; rank != end; ++rank)
            tokens = std::min({tokens, rank->rows * one->where.ranks,
                               std::max<std::int64_t>(1, static_cast<std::int64_t>(rank->us / us))});
        const bool late = std::any_of(first, end, [](const left& rank) { return rank.us <= 0; });
        if (late || tokens <= 0) continue;
        const std::int64_t taken = ctxpar::make_zigzag(one->where.ranks).most_rows(tokens);
        std::for_each(first, end, [&](left& rank) {
            rank.rows -= taken;
            rank.us -= static_cast<double>(tokens) * us;
        });
        add_entry(made, *one, tokens);
    }
    std::stable_sort(made.batches.begin(), made.batches.end(),
                     [](const place_batch& a, const place_batch& b) { return a.where.ranks < b.where.ranks; });
}

void scheduler::add_entry(step& made, const running& one, std::int64_t tokens) {
    auto batch = std::find_if(made.batches.begin(), made.batches.end(),
                              [&](const place_batch& each) { return each.where == one.where; });
    if (batch == made.batches.end()) batch = made.batches.insert(batch, place_batch{one.where, {}});
    if (static_cast<std::int64_t>(batch->entries.size()) == given_.max_requests) return;
    batch->entries.push_back(entry_of(one, tokens));
}

// Whether the request is served thereby.
bool scheduler::advance(running& one, const step_entry& done, std::int32_t sampled, double now_s) {
    one.computed += done.tokens;
    keep_prefix(one);
    if (!done.samples) return false;
    served& result = results_[one.request];
    if (result.outputs.empty()) result.first_s = now_s;
    result.outputs.push_back(sampled);
    result.end_s = now_s;
    one.tokens.push_back(sampled);
    if (result.outputs.size() > 1) routes_.grow(id_of(one.request), 1); // within what was reserved
    return static_cast<std::int64_t>(result.outputs.size()) == trace_[one.request].outputs;
}

// Blocks of the prompt that are full now can serve others.
void scheduler::keep_prefix(running& one) {
    const std::int64_t unit = one.where.ranks * given_.block_size;
    const std::int64_t prompt = prompt_of(one);
    const std::int64_t full = std::min(one.computed, prompt) / unit;
    for (; static_cast<std::int64_t>(one.kept) < full; ++one.kept) {
        const auto last = (static_cast<std::int64_t>(one.kept) + 1) * unit / given_.block_size - 1;
        prefixes_.keep(one.where, keys_[one.request][static_cast<std::size_t>(last)], (*one.blocks)[one.kept]);
    }
}

} // namespace serve
