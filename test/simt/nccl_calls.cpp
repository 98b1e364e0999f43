// See nccl_calls.hpp.
#include "nccl_calls.hpp"

#include <algorithm>
#include <cstring>

#include "nccl_sums.hpp"

namespace simt {
namespace {

std::string text_of(std::size_t count, ncclDataType_t type) {
    return std::to_string(count) + " x " + name_of_type(type);
}
} // namespace

nccl_counts& nccl_counted() {
    static nccl_counts all;
    return all;
}

std::string rank_text(int rank) {
    return "rank " + std::to_string(rank);
}

const char* name_of(nccl_kind what) {
    constexpr const char* names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclAlltoAll",
                                     "ncclBroadcast"};
    return names[static_cast<int>(what)];
}

std::string text_of(const call& made) {
    return std::string(name_of(made.what)) + " (" + text_of(made.count, made.type) +
           (made.root >= 0 ? ", root " + std::to_string(made.root) : "") +
           (made.sum != ncclSum ? ", reduction " + std::to_string(made.sum) : "") + ")";
}

namespace {

// --- Calls that do not fit ---

// A collective that comes before a send or a receive on one rank and after it on the other.
void compare_order(group& all, int rank, std::uint64_t collective, const call& made) {
    for (auto& [ends, way] : all.channels)
        for (const auto& each : way.transfers) {
            const bool mine_sends = ends.first == rank;
            if ((!mine_sends && ends.second != rank) || each->from.is_called == each->to.is_called) continue;
            const side& theirs = mine_sends ? each->to : each->from;
            if (!theirs.is_called || theirs.collectives_before > collective) continue;
            const int peer = mine_sends ? ends.second : ends.first;
            all.fail(rank_text(rank) + " called " + text_of(made) + ", " + rank_text(peer) + " called " +
                     (mine_sends ? "ncclRecv from it (" : "ncclSend to it (") + text_of(theirs.count, theirs.type) +
                     ")");
        }
}

void compare_calls(group& all, const round& meeting, int rank, std::uint64_t index) {
    const call& mine = meeting.of[static_cast<std::size_t>(rank)].called;
    for (int other = 0; other < all.size; ++other) {
        const round::seat& seat = meeting.of[static_cast<std::size_t>(other)];
        if (!seat.is_called || other == rank) continue;
        const call& theirs = seat.called;
        if (mine.what == theirs.what && mine.count == theirs.count && mine.type == theirs.type &&
            mine.root == theirs.root && mine.sum == theirs.sum)
            continue;
        const auto& [low, high] = std::minmax(rank, other);
        all.fail("operation " + std::to_string(index) + ": " + rank_text(low) + " called " +
                 text_of(low == rank ? mine : theirs) + ", " + rank_text(high) + " called " +
                 text_of(high == rank ? mine : theirs));
    }
    compare_order(all, rank, index, mine);
}

void compare_sides(group& all, const transfer& both, int from, int to) {
    if (!both.from.is_called || !both.to.is_called) {
        const bool sends = both.from.is_called;
        const side& mine = sends ? both.from : both.to;
        const int rank = sends ? from : to;
        const int peer = sends ? to : from;
        const auto next = all.rounds.find(mine.collectives_before);
        if (next == all.rounds.end()) return;
        const round::seat& theirs = next->second->of[static_cast<std::size_t>(peer)];
        if (theirs.is_called && all.members[static_cast<std::size_t>(peer)]->collectives > mine.collectives_before)
            all.fail(rank_text(rank) + " called " + (sends ? "ncclSend to " : "ncclRecv from ") + rank_text(peer) +
                     " (" + text_of(mine.count, mine.type) + "), " + rank_text(peer) + " called " +
                     text_of(theirs.called));
        return;
    }
    if (both.from.count != both.to.count || both.from.type != both.to.type)
        all.fail(rank_text(from) + " sends " + text_of(both.from.count, both.from.type) + " to " + rank_text(to) +
                 ", which expects " + text_of(both.to.count, both.to.type) + " from it");
}

// --- Moving ---

std::byte* at(void* base, std::size_t offset) {
    return static_cast<std::byte*>(base) + offset;
}
const std::byte* at(const void* base, std::size_t offset) {
    return static_cast<const std::byte*>(base) + offset;
}
void move(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// The sum of what all ranks send from `first` on, in an order that no one can rely on.
std::vector<std::byte> sum_of(const round& meeting, std::size_t first, std::size_t count) {
    const call& any = meeting.of[0].called;
    const std::size_t bytes = bytes_of_type(any.type);
    std::vector<std::byte> sum(count * bytes);
    const std::size_t size = meeting.of.size();
    for (std::size_t i = 0; i < size; ++i) {
        const void* const from = at(meeting.of[(i + meeting.order) % size].called.send, first * bytes);
        if (i == 0) {
            move(sum.data(), from, sum.size());
        } else {
            add_numbers(any.type, sum.data(), from, count);
        }
    }
    return sum;
}

void take_place(const round& meeting) {
    const call& any = meeting.of[0].called;
    const std::size_t size = meeting.of.size();
    const std::size_t bytes = any.count * bytes_of_type(any.type);
    std::vector<std::vector<std::byte>> sums;
    if (any.what == nccl_kind::all_reduce) sums.assign(size, sum_of(meeting, 0, any.count));
    if (any.what == nccl_kind::reduce_scatter)
        for (std::size_t r = 0; r < size; ++r) sums.push_back(sum_of(meeting, r * any.count, any.count));
    for (std::size_t to = 0; to < size; ++to) {
        void* const recv = meeting.of[to].called.recv;
        if (!sums.empty()) move(recv, sums[to].data(), bytes);
        if (any.what == nccl_kind::broadcast)
            move(recv, meeting.of[static_cast<std::size_t>(any.root)].called.send, bytes);
        for (std::size_t from = 0; from < size; ++from) {
            const void* const send = meeting.of[from].called.send;
            if (any.what == nccl_kind::all_gather) move(at(recv, from * bytes), send, bytes);
            if (any.what == nccl_kind::all_to_all) move(at(recv, from * bytes), at(send, to * bytes), bytes);
        }
    }
}

std::string names_of(const std::vector<int>& ranks) {
    std::string text;
    for (const int rank : ranks) text += (text.empty() ? "" : ", ") + rank_text(rank);
    return text;
}

} // namespace

std::string missing_of(const round& meeting) {
    std::vector<int> not_called, not_here;
    for (std::size_t rank = 0; rank < meeting.of.size(); ++rank) {
        if (!meeting.of[rank].is_called) not_called.push_back(static_cast<int>(rank));
        if (meeting.of[rank].is_called && !meeting.of[rank].is_here) not_here.push_back(static_cast<int>(rank));
    }
    return !not_called.empty() ? names_of(not_called) + " to call it" : names_of(not_here) + " to come to it";
}

task collective_task(const std::shared_ptr<member>& self, const call& made) {
    group& all = *self->of;
    const std::uint64_t index = self->collectives++;
    std::shared_ptr<round>& meeting = all.rounds[index];
    if (meeting == nullptr) {
        meeting = std::make_shared<round>();
        meeting->of.resize(static_cast<std::size_t>(all.size));
        meeting->order = any_number() % 1024;
    }
    const auto here = meeting;
    const auto rank = static_cast<std::size_t>(self->rank);
    here->of[rank].called = made;
    here->of[rank].is_called = true;
    ++nccl_counted().collectives;
    compare_calls(all, *here, self->rank, index);
    task work;
    work.ready = [self, here, rank] {
        here->of[rank].is_here = true;
        if (self->aborted || here->done) return true;
        bool complete = self->of->error == ncclSuccess;
        for (int i = 0; i < self->of->size; ++i)
            complete = complete && here->of[static_cast<std::size_t>(i)].is_here && self->of->is_alive(i);
        return complete;
    };
    work.run = [self, here, index] {
        bool mine = false; // the first one does it for all
        change_under_lock([&] {
            mine = !here->done && !self->aborted;
            here->done = here->done || mine;
            if (!mine) return;
            self->of->rounds.erase(index);
            const call& any = here->of[0].called;
            const auto others = static_cast<std::uint64_t>(self->of->size - 1);
            nccl_counted().bytes_moved +=
                others * static_cast<std::uint64_t>(self->of->size) * any.count * bytes_of_type(any.type);
        });
        if (mine) take_place(*here);
    };
    work.waits_for = [here, self] {
        return self->of->error == ncclSuccess ? missing_of(*here) : "nothing: " + self->of->error_text;
    };
    return work;
}

namespace {

struct point_end {
    std::shared_ptr<transfer> of;
    int from = 0, to = 0;
    bool sends = false;
};

bool can_move(const group& all, const point_end& end) {
    return end.of->done || (end.of->from.is_here && end.of->to.is_here && all.is_alive(end.from) &&
                            all.is_alive(end.to) && all.error == ncclSuccess);
}

} // namespace

task point_task(const std::shared_ptr<member>& self, const std::vector<point_call>& calls) {
    group& all = *self->of;
    std::vector<point_end> ends;
    for (const point_call& each : calls) {
        const int from = each.sends ? self->rank : each.peer;
        const int to = each.sends ? each.peer : self->rank;
        channel& way = all.channels[{from, to}];
        std::size_t& next = each.sends ? way.sends : way.recvs;
        for (; !way.transfers.empty() && way.transfers.front()->done; ++way.forgotten) way.transfers.pop_front();
        const std::size_t place = next++ - way.forgotten;
        while (way.transfers.size() <= place) way.transfers.push_back(std::make_shared<transfer>());
        const std::shared_ptr<transfer> both = way.transfers[place];
        (each.sends ? both->from : both->to) = {each.memory, each.count, each.type, self->collectives, true, false};
        ends.push_back({both, from, to, each.sends});
        ++nccl_counted().point_to_point;
    }
    for (const point_end& end : ends) compare_sides(all, *end.of, end.from, end.to);
    task work;
    work.ready = [self, ends] {
        for (const point_end& end : ends) (end.sends ? end.of->from : end.of->to).is_here = true;
        return self->aborted ||
               std::all_of(ends.begin(), ends.end(), [&](const point_end& end) { return can_move(*self->of, end); });
    };
    work.run = [self, ends] {
        std::vector<std::shared_ptr<transfer>> mine;
        change_under_lock([&] {
            for (const point_end& end : ends) {
                if (end.of->done || self->aborted) continue;
                end.of->done = true;
                mine.push_back(end.of);
                if (end.from != end.to)
                    nccl_counted().bytes_moved += end.of->from.count * bytes_of_type(end.of->from.type);
            }
        });
        for (const auto& each : mine)
            move(each->to.memory, each->from.memory, each->from.count * bytes_of_type(each->from.type));
    };
    work.waits_for = [self, ends]() -> std::string {
        if (self->of->error != ncclSuccess) return "nothing: " + self->of->error_text;
        for (const point_end& end : ends)
            if (!can_move(*self->of, end)) return rank_text(end.sends ? end.to : end.from) + " to meet it";
        return "nothing";
    };
    return work;
}

} // namespace simt
