// NCCL's functions. See nccl.hpp.
#include "nccl.hpp"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "device.hpp"
#include "nccl_calls.hpp"
#include "nccl_sums.hpp"

struct ncclComm {
    std::shared_ptr<simt::member> self;
};

namespace simt {
namespace {

std::map<std::string, std::shared_ptr<group>>& groups() {
    static auto& all = *new std::map<std::string, std::shared_ptr<group>>; // ranks and groups name each other
    return all;
}
std::string& last_problem() {
    thread_local std::string text;
    return text;
}

ncclResult_t refuse(ncclResult_t result, const std::string& text) {
    last_problem() = text;
    return result;
}

// --- Groups of calls, by thread ---

struct grouped_call {
    std::shared_ptr<member> self;
    cudaStream_t stream = nullptr;
    bool is_collective = false;
    call collective;
    std::vector<point_call> points;
};
struct open_group {
    int depth = 0;
    std::vector<grouped_call> calls;
};
open_group& open_calls() {
    thread_local open_group calls;
    return calls;
}

ncclResult_t give(const grouped_call& made) {
    const std::string what = (made.is_collective ? name_of(made.collective.what) : "ncclSend and ncclRecv") +
                             (" of " + rank_text(made.self->rank));
    const cudaError_t result = enqueue_each(made.stream, what, [made] {
        return made.is_collective ? collective_task(made.self, made.collective) : point_task(made.self, made.points);
    });
    return result == cudaSuccess ? ncclSuccess : refuse(ncclUnhandledCudaError, cudaGetErrorString(result));
}

// Sends and receives of a group are one piece of work, each collective is its own.
ncclResult_t give_or_keep(grouped_call made) {
    open_group& open = open_calls();
    if (open.depth == 0) return give(made);
    if (!made.is_collective)
        for (grouped_call& each : open.calls)
            if (!each.is_collective && each.self == made.self && each.stream == made.stream) {
                each.points.push_back(made.points.front());
                return ncclSuccess;
            }
    open.calls.push_back(std::move(made));
    return ncclSuccess;
}

ncclResult_t refuse_call(ncclComm_t comm, ncclDataType_t type, bool has_memory) {
    if (comm == nullptr) return refuse(ncclInvalidArgument, "the communicator is null");
    if (bytes_of_type(type) == 0) return refuse(ncclInvalidArgument, "there is no such type");
    if (!has_memory) return refuse(ncclInvalidArgument, "a buffer is null");
    ncclResult_t error = ncclSuccess;
    change_under_lock([&] { error = comm->self->of->error; });
    return error;
}

ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, const call& made) {
    const bool has_memory = made.count == 0 || (made.send != nullptr && made.recv != nullptr);
    if (const ncclResult_t refusal = refuse_call(comm, made.type, has_memory); refusal != ncclSuccess) return refusal;
    return give_or_keep({comm->self, stream, true, made, {}});
}

ncclResult_t point(ncclComm_t comm, cudaStream_t stream, const point_call& made) {
    const bool has_memory = made.count == 0 || made.memory != nullptr;
    if (const ncclResult_t refusal = refuse_call(comm, made.type, has_memory); refusal != ncclSuccess) return refusal;
    if (made.peer < 0 || made.peer >= comm->self->of->size) return refuse(ncclInvalidArgument, "there is no such peer");
    return give_or_keep({comm->self, stream, false, {}, {made}});
}

// Under the lock.
std::shared_ptr<member> join(const std::shared_ptr<group>& all, int rank, int device) {
    auto self = std::make_shared<member>();
    self->of = all;
    self->rank = rank;
    self->device = device;
    all->members[static_cast<std::size_t>(rank)] = self;
    ++nccl_counted().live_communicators;
    return self;
}

std::shared_ptr<group> new_group(int size, const std::string& name) {
    auto made = std::make_shared<group>();
    made->size = size;
    made->name = name;
    made->members.resize(static_cast<std::size_t>(size));
    return made;
}

// Under the lock, by the last rank that comes to a split.
void make_groups(group& parent, split_round& split) {
    std::vector<std::tuple<int, int, int>> order; // color, key, rank
    for (const auto& [rank, asked] : split.asked)
        if (asked.first >= 0) order.emplace_back(asked.first, asked.second, rank);
    std::sort(order.begin(), order.end());
    for (std::size_t first = 0, last = 0; first < order.size(); first = last) {
        const int color = std::get<0>(order[first]);
        while (last < order.size() && std::get<0>(order[last]) == color) ++last;
        const auto made = new_group(static_cast<int>(last - first), parent.name + "." + std::to_string(color));
        for (std::size_t i = first; i < last; ++i) {
            const int rank = std::get<2>(order[i]);
            split.made[rank] =
                join(made, static_cast<int>(i - first), parent.members[static_cast<std::size_t>(rank)]->device);
        }
    }
}

void leave(ncclComm_t comm, bool aborts) {
    change_under_lock([&] {
        comm->self->aborted = comm->self->aborted || aborts;
        --nccl_counted().live_communicators;
    });
    delete comm;
}

std::condition_variable& split_done() {
    static std::condition_variable all;
    return all;
}
std::mutex& split_mutex() {
    static std::mutex all;
    return all;
}

} // namespace

nccl_counts nccl_counters() {
    nccl_counts now;
    change_under_lock([&] { now = nccl_counted(); });
    return now;
}

void nccl_break(ncclComm_t comm, ncclResult_t error, const std::string& text) {
    change_under_lock([&] { comm->self->of->fail(text, error); });
}

} // namespace simt

using namespace simt;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
    *uniqueId = {};
    change_under_lock([&] {
        const std::string name = std::to_string(groups().size() + 1);
        groups()[name] = nullptr;
        std::memcpy(uniqueId->internal, name.data(), name.size());
    });
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
    int device = 0;
    cudaGetDevice(&device);
    std::string problem;
    std::shared_ptr<member> self;
    change_under_lock([&] {
        const auto found = groups().find(commId.internal);
        if (found == groups().end()) {
            problem = "the id is not one of ncclGetUniqueId";
        } else if (nranks < 1 || rank < 0 || rank >= nranks) {
            problem = rank_text(rank) + " is none of " + std::to_string(nranks);
        } else {
            if (found->second == nullptr) found->second = new_group(nranks, found->first);
            group& all = *found->second;
            if (all.size != nranks)
                problem =
                    rank_text(rank) + " says " + std::to_string(nranks) + " ranks, others " + std::to_string(all.size);
            for (const auto& each : all.members) {
                if (!problem.empty() || each == nullptr) continue;
                if (each->rank == rank) problem = "there is a " + rank_text(rank) + " already";
                if (each->device == device)
                    problem = "duplicate GPU: " + rank_text(rank) + " and " + rank_text(each->rank) +
                              " both on device " + std::to_string(device);
            }
            if (problem.empty()) self = join(found->second, rank, device);
        }
    });
    if (!problem.empty()) return refuse(ncclInvalidUsage, problem);
    *comm = new ncclComm{self};
    return ncclSuccess;
}

// The others are waited for, on the host.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t*) {
    *newcomm = nullptr;
    const std::shared_ptr<member> self = comm->self;
    group& all = *self->of;
    const std::uint64_t index = self->splits++;
    std::unique_lock lock(split_mutex());
    const auto is_complete = [&] {
        bool complete = false;
        change_under_lock([&] { complete = all.splits[index].asked.size() == static_cast<std::size_t>(all.size); });
        return complete;
    };
    change_under_lock([&] {
        split_round& split = all.splits[index];
        split.asked[self->rank] = {color, key};
        if (split.asked.size() == static_cast<std::size_t>(all.size)) make_groups(all, split);
    });
    split_done().notify_all();
    if (!split_done().wait_for(lock, std::chrono::seconds(20), is_complete))
        return refuse(ncclSystemError, "ncclCommSplit: not all ranks have called it");
    std::shared_ptr<member> made;
    change_under_lock([&] { made = all.splits[index].made[self->rank]; });
    if (made != nullptr) *newcomm = new ncclComm{made};
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    return comm == nullptr ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (comm == nullptr) return ncclSuccess;
    leave(comm, false);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (comm == nullptr) return ncclSuccess;
    leave(comm, true);
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    constexpr const char* texts[] = {"no error",
                                     "unhandled cuda error",
                                     "unhandled system error",
                                     "internal error",
                                     "invalid argument",
                                     "invalid usage",
                                     "remote process exited or there was a network error",
                                     "NCCL operation in progress"};
    return result >= ncclSuccess && result <= ncclInProgress ? texts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) {
    if (comm == nullptr) return last_problem().c_str();
    change_under_lock([&] {
        const group& all = *comm->self->of;
        const auto rank = static_cast<std::size_t>(comm->self->rank);
        if (all.error != ncclSuccess) last_problem() = all.error_text;
        if (all.error != ncclSuccess) return;
        for (const auto& [index, meeting] : all.rounds)
            if (meeting->of[rank].is_called) {
                last_problem() = "operation " + std::to_string(index) + ", " + text_of(meeting->of[rank].called) +
                                 " of " + rank_text(comm->self->rank) + ", waits for " + missing_of(*meeting);
                return;
            }
        for (const auto& [ends, way] : all.channels)
            for (const auto& each : way.transfers)
                if (each->from.is_called != each->to.is_called &&
                    (ends.first == comm->self->rank || ends.second == comm->self->rank)) {
                    last_problem() = rank_text(comm->self->rank) + " waits for " +
                                     rank_text(each->from.is_called ? ends.second : ends.first) + " to call " +
                                     (each->from.is_called ? "ncclRecv" : "ncclSend");
                    return;
                }
    });
    return last_problem().c_str();
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
    change_under_lock([&] { *asyncError = comm->self->of->error; });
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
    *count = comm->self->of->size;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
    *device = comm->self->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    *rank = comm->self->rank;
    return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    if (comm != nullptr && (root < 0 || root >= comm->self->of->size))
        return refuse(ncclInvalidArgument, "there is no such root");
    return collective(comm, stream, {nccl_kind::broadcast, sendbuff, recvbuff, count, datatype, root, ncclSum});
}

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    if (op != ncclSum) return refuse(ncclInvalidArgument, "only sums are emulated");
    return collective(comm, stream, {nccl_kind::all_reduce, sendbuff, recvbuff, count, datatype, -1, op});
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    if (op != ncclSum) return refuse(ncclInvalidArgument, "only sums are emulated");
    return collective(comm, stream, {nccl_kind::reduce_scatter, sendbuff, recvbuff, recvcount, datatype, -1, op});
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream) {
    return collective(comm, stream, {nccl_kind::all_gather, sendbuff, recvbuff, sendcount, datatype, -1, ncclSum});
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                          cudaStream_t stream) {
    return collective(comm, stream, {nccl_kind::all_to_all, sendbuff, recvbuff, count, datatype, -1, ncclSum});
}
#endif

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return point(comm, stream, {true, peer, const_cast<void*>(sendbuff), count, datatype});
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return point(comm, stream, {false, peer, recvbuff, count, datatype});
}

ncclResult_t ncclGroupStart() {
    ++open_calls().depth;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    open_group& open = open_calls();
    if (open.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--open.depth > 0) return ncclSuccess;
    ncclResult_t first = ncclSuccess;
    for (const grouped_call& each : std::exchange(open.calls, {})) {
        const ncclResult_t result = give(each);
        if (first == ncclSuccess) first = result;
    }
    return first;
}

} // extern "C"
