// The functions of the CUDA runtime but for graphs and memory: streams, events, devices, errors.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler.hpp"

using namespace simt::detail;
using lock_type = std::unique_lock<std::mutex>;

namespace {

constexpr int most_shared_bytes = 227 * 1024; // of a block that asks for it

struct name_and_text {
    cudaError_t error;
    const char* name;
    const char* text;
};
constexpr name_and_text known_errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge", "operation would result in a merge of two captures"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capture"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to end a capture from another thread than the one that began it"},
};

// The work that these streams have now.
template <class Of>
std::vector<std::shared_ptr<item>> last_work(const scheduler& all, const Of& of) {
    std::vector<std::shared_ptr<item>> last;
    for (const auto& stream : all.streams())
        if (!stream->queue.empty() && of(*stream)) last.push_back(stream->queue.back());
    return last;
}

CUevent_st* find_event(scheduler& all, cudaEvent_t handle) {
    const auto found = all.events.find(handle);
    return found == all.events.end() ? nullptr : found->second.get();
}

// The same for a call about one event: body(scheduler, lock, event).
template <class Body>
cudaError_t event_call(cudaEvent_t handle, const Body& body) {
    return runtime_call([&](scheduler& all, lock_type& lock) {
        CUevent_st* const event = find_event(all, handle);
        return event == nullptr ? cudaErrorInvalidResourceHandle : body(all, lock, event);
    });
}

void merge_into(std::vector<std::size_t>& frontier, const std::vector<std::size_t>& other) {
    frontier.insert(frontier.end(), other.begin(), other.end());
}

} // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
    for (const name_and_text& each : known_errors)
        if (each.error == error) return each.name;
    return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) {
    {
        scheduler& all = scheduler::instance();
        const std::lock_guard lock(all.mutex);
        if (error != cudaSuccess && error == all.error) return all.error_text.c_str();
    }
    for (const name_and_text& each : known_errors)
        if (each.error == error) return each.text;
    return "unknown error";
}

cudaError_t cudaPeekAtLastError() {
    scheduler& all = scheduler::instance();
    const std::lock_guard lock(all.mutex);
    return all.error != cudaSuccess ? all.tell() : last_error();
}

cudaError_t cudaGetLastError() {
    const cudaError_t error = cudaPeekAtLastError();
    last_error() = cudaSuccess;
    return error;
}

// --- Devices ---------------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
    return runtime_call([&](scheduler& all, lock_type&) {
        *count = all.num_devices;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDevice(int* device) {
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    return runtime_call([&](scheduler& all, lock_type&) {
        if (device < 0 || device >= all.num_devices) return cudaErrorInvalidDevice;
        current_device() = device;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
    return runtime_call([&](scheduler& all, lock_type&) {
        if (device < 0 || device >= all.num_devices) return cudaErrorInvalidDevice;
        switch (attr) { // of a small device of compute capability 9.0
        case cudaDevAttrMaxThreadsPerBlock:
            *value = 1024;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            *value = 48 * 1024;
            break;
        case cudaDevAttrWarpSize:
            *value = 32;
            break;
        case cudaDevAttrMultiProcessorCount:
            *value = 4;
            break;
        case cudaDevAttrL2CacheSize:
            *value = 50 << 20;
            break;
        case cudaDevAttrComputeCapabilityMajor:
            *value = 9;
            break;
        case cudaDevAttrComputeCapabilityMinor:
            *value = 0;
            break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *value = 228 * 1024;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = most_shared_bytes;
            break;
        case cudaDevAttrMemoryPoolsSupported:
            *value = 1;
            break;
        default:
            return cudaErrorInvalidValue;
        }
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
    *prop = {};
    std::strncpy(prop->name, "emulated device", sizeof(prop->name) - 1);
    const cudaError_t asked = cudaDeviceGetAttribute(&prop->major, cudaDevAttrComputeCapabilityMajor, device);
    if (asked != cudaSuccess) return asked;
    (void)cudaDeviceGetAttribute(&prop->minor, cudaDevAttrComputeCapabilityMinor, device);
    return cudaDeviceGetAttribute(&prop->multiProcessorCount, cudaDevAttrMultiProcessorCount, device);
}

cudaError_t cudaDeviceGetPCIBusId(char* pciBusId, int len, int device) {
    return runtime_call([&](scheduler& all, lock_type&) {
        if (pciBusId == nullptr || len < 13) return cudaErrorInvalidValue;
        if (device < 0 || device >= all.num_devices) return cudaErrorInvalidDevice;
        std::snprintf(pciBusId, static_cast<std::size_t>(len), "0000:%02x:00.0", static_cast<unsigned>(device) & 0xffU);
        return cudaSuccess;
    });
}

// The same however much has been allocated.
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    return runtime_call([&](scheduler&, lock_type&) {
        *free = *total = std::size_t{1} << 30;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSynchronize() {
    return runtime_call([&](scheduler& all, lock_type& lock) {
        ++all.counts.synchronisations;
        if (const cudaError_t refusal = all.refuse_in_capture(); refusal != cudaSuccess) return refusal;
        const auto here = [](const CUstream_st& stream) { return stream.device == current_device(); };
        return all.wait(lock, last_work(all, here), "cudaDeviceSynchronize");
    });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
    if (leastPriority != nullptr) *leastPriority = 0;
    if (greatestPriority != nullptr) *greatestPriority = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice) {
    return runtime_call([&](scheduler& all, lock_type&) {
        if (device < 0 || device >= all.num_devices || peerDevice < 0 || peerDevice >= all.num_devices)
            return cudaErrorInvalidDevice;
        *canAccessPeer = device != peerDevice ? 1 : 0;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int) {
    return runtime_call([&](scheduler& all, lock_type&) {
        return peerDevice < 0 || peerDevice >= all.num_devices ? cudaErrorInvalidDevice : cudaSuccess;
    });
}

cudaError_t cudaFuncSetAttribute(const void* func, cudaFuncAttribute attr, int value) {
    return runtime_call([&](scheduler& all, lock_type&) {
        if (func == nullptr || value < 0) return cudaErrorInvalidValue;
        if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
        if (value > most_shared_bytes) return cudaErrorInvalidValue;
        all.shared_limits[func] = static_cast<std::size_t>(value);
        return cudaSuccess;
    });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, const void* func, int blockSize,
                                                          size_t dynamicSMemSize) {
    return runtime_call([&](scheduler&, lock_type&) {
        if (func == nullptr || blockSize < 1 || blockSize > 1024) return cudaErrorInvalidValue;
        const std::size_t shared = dynamicSMemSize + 1024;
        *numBlocks =
            static_cast<int>(std::min<std::size_t>(2048U / static_cast<unsigned>(blockSize), 228 * 1024 / shared));
        return cudaSuccess;
    });
}

// --- Streams ---------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* pStream, unsigned int flags) {
    return runtime_call([&](scheduler& all, lock_type&) {
        *pStream = all.add_stream((flags & cudaStreamNonBlocking) == 0);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreate(cudaStream_t* pStream) {
    return cudaStreamCreateWithFlags(pStream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* pStream, unsigned int flags, int) {
    return cudaStreamCreateWithFlags(pStream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return stream_call(stream, [](scheduler& all, lock_type&, CUstream_st* found) {
        all.destroy_stream(found);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return stream_call(stream, [](scheduler& all, lock_type& lock, CUstream_st* found) {
        if (found->capturing != nullptr) {
            found->capturing->invalid = true;
            return cudaErrorStreamCaptureUnsupported;
        }
        const auto last = last_work(all, [&](const CUstream_st& each) { return &each == found; });
        if (!last.empty() && !last.front()->done()) all.nudge(lock);
        if (all.error != cudaSuccess) return all.tell();
        return last.empty() || last.front()->done() ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return stream_call(stream, [](scheduler& all, lock_type& lock, CUstream_st* found) {
        ++all.counts.synchronisations;
        if (found->capturing != nullptr) {
            found->capturing->invalid = true;
            return cudaErrorStreamCaptureUnsupported;
        }
        const auto last = last_work(all, [&](const CUstream_st& each) { return &each == found; });
        return all.wait(lock, last, "cudaStreamSynchronize of " + found->name);
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
    return stream_call(stream, [&](scheduler& all, lock_type& lock, CUstream_st* found) {
        CUevent_st* const of = find_event(all, event);
        if (of == nullptr) return cudaErrorInvalidResourceHandle;
        if (of->captured_by != nullptr) { // the stream joins that capture
            if (of->captured_by->invalid) return cudaErrorStreamCaptureInvalidated;
            if (of->captured_by->origin == nullptr) return cudaErrorCapturedEvent;
            if (found->capturing != nullptr && found->capturing != of->captured_by) {
                found->capturing->invalid = of->captured_by->invalid = true;
                return cudaErrorStreamCaptureMerge;
            }
            if (found->capturing == nullptr) found->frontier.clear();
            found->capturing = of->captured_by;
            merge_into(found->frontier, of->frontier);
            return cudaSuccess;
        }
        const std::shared_ptr<event_record> record = of->record;
        if (found->capturing != nullptr) {
            if (record == nullptr) return cudaSuccess;
            found->capturing->invalid = true;
            return cudaErrorStreamCaptureIsolation;
        }
        if (record == nullptr || record->done) return cudaSuccess;
        return all.give(lock, found, "a wait for an event", [record]() -> simt::task {
            return {
                [record] { return record->done; }, {}, [record] { return "the event recorded on " + record->from; }};
        });
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData) {
    return stream_call(stream, [&](scheduler& all, lock_type& lock, CUstream_st* found) {
        const auto run = [fn, userData] {
            inside_host_function() = true;
            fn(userData);
            inside_host_function() = false;
        };
        return all.give(lock, found, "a host function", [run]() -> simt::task { return {{}, run, {}}; });
    });
}

// --- Events ----------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
    return runtime_call([&](scheduler& all, lock_type&) {
        auto made = std::make_unique<CUevent_st>();
        made->has_time = (flags & cudaEventDisableTiming) == 0;
        *event = made.get();
        all.events[*event] = std::move(made);
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return event_call(event, [&](scheduler& all, lock_type&, CUevent_st*) {
        all.events.erase(event);
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return stream_call(stream, [&](scheduler& all, lock_type& lock, CUstream_st* found) {
        CUevent_st* const of = find_event(all, event);
        if (of == nullptr) return cudaErrorInvalidResourceHandle;
        of->captured_by = found->capturing;
        if (found->capturing != nullptr) {
            if (found->capturing->invalid) return cudaErrorStreamCaptureInvalidated;
            of->frontier = found->frontier;
            of->record = nullptr;
            return cudaSuccess;
        }
        const auto record = std::make_shared<event_record>();
        record->from = found->name;
        of->record = record;
        return all.give(lock, found, "a record of an event", [record]() -> simt::task {
            const auto run = [record] { simt::change_under_lock([&] { record->be_done(); }); };
            return {{}, run, {}};
        });
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return event_call(event, [](scheduler& all, lock_type& lock, CUevent_st* found) {
        if (const cudaError_t refusal = all.refuse_in_capture(); refusal != cudaSuccess) return refusal;
        if (found->captured_by != nullptr) return cudaErrorCapturedEvent;
        const std::shared_ptr<event_record> record = found->record;
        if (record != nullptr && !record->done) all.nudge(lock);
        if (all.error != cudaSuccess) return all.tell();
        return record == nullptr || record->done ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return event_call(event, [](scheduler& all, lock_type& lock, CUevent_st* found) {
        ++all.counts.synchronisations;
        if (const cudaError_t refusal = all.refuse_in_capture(); refusal != cudaSuccess) return refusal;
        if (found->captured_by != nullptr) return cudaErrorCapturedEvent;
        const std::shared_ptr<event_record> record = found->record;
        if (record == nullptr) return cudaSuccess;
        return all.wait(
            lock, [&] { return record->done; }, "cudaEventSynchronize of an event of " + record->from);
    });
}

// The host's time, when the records were met.
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
    return event_call(start, [&](scheduler& all, lock_type&, CUevent_st* first) {
        const CUevent_st* const last = find_event(all, end);
        if (last == nullptr || !first->has_time || !last->has_time) return cudaErrorInvalidResourceHandle;
        if (first->record == nullptr || last->record == nullptr) return cudaErrorInvalidResourceHandle;
        if (!first->record->done || !last->record->done) return cudaErrorNotReady;
        *ms = std::chrono::duration<float, std::milli>(last->record->at - first->record->at).count();
        return cudaSuccess;
    });
}

} // extern "C"
