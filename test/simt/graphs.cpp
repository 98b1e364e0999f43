// Graphs of the emulated runtime: work is recorded with what it comes after, and given to a stream as one item.
#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "scheduler.hpp"

using namespace simt::detail;
using lock_type = std::unique_lock<std::mutex>;

namespace {

// Whether every node is among `last` or comes before one of them.
bool reaches_all(const std::vector<graph_node>& nodes, const std::vector<std::size_t>& last) {
    std::vector<bool> reached(nodes.size());
    for (const std::size_t node : last) reached[node] = true;
    for (std::size_t node = nodes.size(); node-- > 0;) // what comes before has a smaller index
        if (reached[node])
            for (const std::size_t before : nodes[node].after) reached[before] = true;
    for (const bool each : reached)
        if (!each) return false;
    return true;
}

} // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return stream_call(stream, [&](scheduler& all, lock_type&, CUstream_st* found) {
        if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
        if (found->capturing != nullptr) return cudaErrorInvalidValue;
        all.begin_capture(found, mode);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* pGraph) {
    return stream_call(stream, [&](scheduler& all, lock_type&, CUstream_st* found) {
        *pGraph = nullptr;
        const std::shared_ptr<capture> ended = found->capturing;
        if (ended == nullptr) return cudaErrorInvalidValue;
        if (ended->origin != found) {
            ended->invalid = true;
            return cudaErrorStreamCaptureUnmatched;
        }
        if (ended->mode != cudaStreamCaptureModeRelaxed && ended->thread != std::this_thread::get_id())
            return cudaErrorStreamCaptureWrongThread;
        const std::vector<std::size_t> last = found->frontier;
        all.end_capture(ended);
        ended->origin = nullptr; // events of it can be waited for no more
        if (ended->invalid) return cudaErrorStreamCaptureInvalidated;
        if (!reaches_all(ended->nodes, last)) return cudaErrorStreamCaptureUnjoined;
        auto made = std::make_unique<CUgraph_st>();
        made->nodes = std::move(ended->nodes);
        *pGraph = made.get();
        all.graphs[*pGraph] = std::move(made);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* pCaptureStatus) {
    return stream_call(stream, [&](scheduler&, lock_type&, CUstream_st* found) {
        *pCaptureStatus = found->capturing == nullptr ? cudaStreamCaptureStatusNone
                          : found->capturing->invalid ? cudaStreamCaptureStatusInvalidated
                                                      : cudaStreamCaptureStatusActive;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t graph, unsigned long long) {
    return runtime_call([&](scheduler& all, lock_type&) {
        const auto found = all.graphs.find(graph);
        if (found == all.graphs.end()) return cudaErrorInvalidValue;
        auto made = std::make_unique<CUgraphExec_st>();
        made->nodes = found->second->nodes;
        *pGraphExec = made.get();
        all.graph_execs[*pGraphExec] = std::move(made);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
    return stream_call(stream, [&](scheduler& all, lock_type& lock, CUstream_st* found) {
        const auto exec = all.graph_execs.find(graphExec);
        if (exec == all.graph_execs.end()) return cudaErrorInvalidValue;
        if (found->capturing != nullptr) { // child graphs are not emulated
            found->capturing->invalid = true;
            return cudaErrorStreamCaptureUnsupported;
        }
        ++all.counts.graph_launches;
        auto work = std::make_shared<item>();
        for (const graph_node& node : exec->second->nodes)
            work->parts.push_back({node.what, node.prepare(), node.after});
        work->behind = std::exchange(exec->second->last_launch, work);
        return all.give(lock, found, std::move(work));
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return runtime_call(
        [&](scheduler& all, lock_type&) { return all.graphs.erase(graph) == 1 ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
    return runtime_call([&](scheduler& all, lock_type&) {
        return all.graph_execs.erase(graphExec) == 1 ? cudaSuccess : cudaErrorInvalidValue;
    });
}

} // extern "C"
