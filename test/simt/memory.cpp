// Memory of the emulated device: the host's, of exactly the size asked for, so that the address sanitizer sees every
// byte, and without a number in it. Freeing does not wait as the real call does: work that still uses it is a fault.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "scheduler.hpp"

using namespace simt::detail;
using lock_type = std::unique_lock<std::mutex>;

namespace {

constexpr std::align_val_t alignment{256};

struct block {
    std::size_t bytes;
    cudaMemoryType type;
    int device;
};

// Under the lock of the scheduler.
std::map<const std::byte*, block>& blocks() {
    static auto& all = *new std::map<const std::byte*, block>; // what nobody frees is no leak of this process
    return all;
}

const std::pair<const std::byte* const, block>* find_block(const void* place) {
    const auto* const at = static_cast<const std::byte*>(place);
    auto found = blocks().upper_bound(at);
    if (found == blocks().begin()) return nullptr;
    --found;
    return at < found->first + found->second.bytes ? &*found : nullptr;
}

cudaError_t allocate(scheduler& all, void** place, std::size_t bytes, cudaMemoryType type) {
    *place = nullptr;
    ++all.counts.allocations;
    if (bytes == 0) return cudaSuccess;
    auto* const made = static_cast<std::byte*>(::operator new(bytes, alignment, std::nothrow));
    if (made == nullptr) return cudaErrorMemoryAllocation;
    std::memset(made, 0xff, bytes);
    blocks()[made] = {bytes, type, current_device()};
    *place = made;
    return cudaSuccess;
}

cudaError_t release(void* place, cudaMemoryType type) {
    const auto found = blocks().find(static_cast<const std::byte*>(place));
    if (found == blocks().end() || found->second.type != type) return cudaErrorInvalidValue;
    blocks().erase(found);
    ::operator delete(place, alignment);
    return cudaSuccess;
}

// Gives memory back also where the device has failed.
cudaError_t release_now(void* place, cudaMemoryType type) {
    if (place == nullptr) return cudaSuccess;
    scheduler& all = scheduler::instance();
    const std::lock_guard lock(all.mutex);
    ++all.counts.synchronisations;
    if (all.error == cudaSuccess)
        if (const cudaError_t refusal = all.refuse_in_capture(); refusal != cudaSuccess) return last_error() = refusal;
    const cudaError_t result = release(place, type);
    if (result != cudaSuccess) last_error() = result;
    return all.error != cudaSuccess ? all.tell() : result;
}

// Waits as a call without a stream does: for what the null stream and the blocking streams of the device have now.
cudaError_t wait_for_device(scheduler& all, lock_type& lock, const char* call) {
    ++all.counts.synchronisations;
    if (const cudaError_t refusal = all.refuse_in_capture(); refusal != cudaSuccess) return refusal;
    std::vector<std::shared_ptr<item>> last;
    for (const auto& stream : all.streams())
        if (stream->blocking && stream->device == current_device() && !stream->queue.empty())
            last.push_back(stream->queue.back());
    return all.wait(lock, last, call);
}

bool is_legal_copy(const void* to, const void* from, std::size_t bytes) {
    return bytes == 0 || (to != nullptr && from != nullptr);
}

} // namespace

extern "C" {

cudaError_t cudaMalloc(void** devPtr, size_t size) {
    return runtime_call([&](scheduler& all, lock_type&) {
        if (const cudaError_t refusal = all.refuse_in_capture(); refusal != cudaSuccess) return refusal;
        return allocate(all, devPtr, size, cudaMemoryTypeDevice);
    });
}

cudaError_t cudaMallocHost(void** ptr, size_t size) {
    return runtime_call([&](scheduler& all, lock_type&) {
        if (const cudaError_t refusal = all.refuse_in_capture(); refusal != cudaSuccess) return refusal;
        return allocate(all, ptr, size, cudaMemoryTypeHost);
    });
}

// The memory is there at once; what may use it before the stream gets here is not found out.
cudaError_t cudaMallocAsync(void** devPtr, size_t size, cudaStream_t hStream) {
    return stream_call(hStream, [&](scheduler& all, lock_type&, CUstream_st* found) {
        if (found->capturing == nullptr) return allocate(all, devPtr, size, cudaMemoryTypeDevice);
        found->capturing->invalid = true; // memory of graphs is not emulated
        return cudaErrorStreamCaptureUnsupported;
    });
}

cudaError_t cudaFree(void* devPtr) {
    return release_now(devPtr, cudaMemoryTypeDevice);
}

cudaError_t cudaFreeHost(void* ptr) {
    return release_now(ptr, cudaMemoryTypeHost);
}

cudaError_t cudaFreeAsync(void* devPtr, cudaStream_t hStream) {
    return stream_call(hStream, [&](scheduler& all, lock_type& lock, CUstream_st* found) {
        const auto at = blocks().find(static_cast<const std::byte*>(devPtr));
        if (at == blocks().end() || at->second.type != cudaMemoryTypeDevice) return cudaErrorInvalidValue;
        if (found->capturing != nullptr) {
            found->capturing->invalid = true;
            return cudaErrorStreamCaptureUnsupported;
        }
        return all.give(lock, found, "cudaFreeAsync", [devPtr]() -> simt::task {
            const auto run = [devPtr] { simt::change_under_lock([&] { release(devPtr, cudaMemoryTypeDevice); }); };
            return {{}, run, {}};
        });
    });
}

cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind) {
    return runtime_call([&](scheduler& all, lock_type& lock) {
        if (!is_legal_copy(dst, src, count)) return cudaErrorInvalidValue;
        ++all.counts.copies;
        if (const cudaError_t waited = wait_for_device(all, lock, "cudaMemcpy"); waited != cudaSuccess) return waited;
        if (count > 0) std::memmove(dst, src, count);
        return cudaSuccess;
    });
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
    return stream_call(stream, [&](scheduler& all, lock_type& lock, CUstream_st* found) {
        if (!is_legal_copy(dst, src, count)) return cudaErrorInvalidValue;
        ++all.counts.copies;
        // Memory of the host that was not allocated for copies is read before the call returns.
        const bool is_staged =
            kind == cudaMemcpyHostToDevice && found->capturing == nullptr && find_block(src) == nullptr && count > 0;
        std::shared_ptr<std::vector<std::byte>> staged;
        if (is_staged) {
            staged = std::make_shared<std::vector<std::byte>>(count);
            std::memcpy(staged->data(), src, count);
        }
        return all.give(lock, found, "cudaMemcpyAsync", [=]() -> simt::task {
            const auto run = [=] {
                if (count > 0) std::memmove(dst, staged != nullptr ? staged->data() : src, count);
            };
            return {{}, run, {}};
        });
    });
}

cudaError_t cudaMemset(void* devPtr, int value, size_t count) {
    return runtime_call([&](scheduler& all, lock_type& lock) {
        if (devPtr == nullptr && count > 0) return cudaErrorInvalidValue;
        if (const cudaError_t waited = wait_for_device(all, lock, "cudaMemset"); waited != cudaSuccess) return waited;
        if (count > 0) std::memset(devPtr, value, count);
        return cudaSuccess;
    });
}

cudaError_t cudaMemsetAsync(void* devPtr, int value, size_t count, cudaStream_t stream) {
    return stream_call(stream, [&](scheduler& all, lock_type& lock, CUstream_st* found) {
        if (devPtr == nullptr && count > 0) return cudaErrorInvalidValue;
        return all.give(lock, found, "cudaMemsetAsync", [=]() -> simt::task {
            const auto run = [=] {
                if (count > 0) std::memset(devPtr, value, count);
            };
            return {{}, run, {}};
        });
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
    return runtime_call([&](scheduler&, lock_type&) {
        *attributes = {};
        attributes->device = -2; // cudaInvalidDeviceId
        attributes->hostPointer = const_cast<void*>(ptr);
        const auto* const found = find_block(ptr);
        if (found == nullptr) return cudaSuccess;
        attributes->type = found->second.type;
        attributes->device = found->second.device;
        attributes->devicePointer = const_cast<void*>(ptr);
        if (found->second.type == cudaMemoryTypeDevice) attributes->hostPointer = nullptr;
        return cudaSuccess;
    });
}

} // extern "C"
