// See device_suite_communicator.hpp.
#include "device_suite_communicator.hpp"

namespace ctxpar_test {

any_communicator::any_communicator(owning_nccl_communicator of) : of_(std::move(of)) {}
any_communicator::any_communicator(local_cuda_communicator of, bool reads_in_place)
    : of_(std::move(of)), reads_in_place_(reads_in_place) {}
any_communicator::any_communicator(any_communicator&& other) noexcept = default;
any_communicator& any_communicator::operator=(any_communicator&& other) noexcept = default;
any_communicator::~any_communicator() = default;

int any_communicator::rank() const {
    return std::visit([](const auto& of) { return of.rank(); }, of_);
}

int any_communicator::size() const {
    return std::visit([](const auto& of) { return of.size(); }, of_);
}

check_level any_communicator::checks() const {
    return std::visit([](const auto& of) { return of.checks(); }, of_);
}

std::uint64_t any_communicator::bytes_sent() const {
    return std::visit([](const auto& of) { return of.bytes_sent(); }, of_);
}

void any_communicator::all_gather(const void* send, void* recv, std::size_t bytes, cudaStream_t stream,
                                  collective_note note) {
    std::visit([&](auto& of) { of.all_gather(send, recv, bytes, stream, note); }, of_);
}

void any_communicator::all_to_all(const void* send, void* recv, std::size_t bytes, cudaStream_t stream,
                                  collective_note note) {
    require(!reads_in_place_, "test", "parts are copied that should be read where they lie");
    std::visit([&](auto& of) { of.all_to_all(send, recv, bytes, stream, note); }, of_);
}

void any_communicator::all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                                  std::span<const std::size_t> recv_bytes, cudaStream_t stream, collective_note note) {
    std::visit([&](auto& of) { of.all_to_all(send, send_bytes, recv, recv_bytes, stream, note); }, of_);
}

void any_communicator::agree(std::uint64_t digest, const char* what, cudaStream_t stream) {
    std::visit([&](auto& of) { of.agree(digest, what, stream); }, of_);
}

void any_communicator::check() {
    std::visit([](auto& of) { of.check(); }, of_);
}

void any_communicator::wait(cudaStream_t stream) {
    std::visit([&](auto& of) { of.wait(stream); }, of_);
}

std::optional<any_communicator> any_communicator::split(int color, int key) {
    if (auto* const of = std::get_if<owning_nccl_communicator>(&of_)) {
        auto part = of->split_off(color, key);
        return part ? std::optional<any_communicator>(std::move(*part)) : std::nullopt;
    }
    auto part = std::get<local_cuda_communicator>(of_).split(color, key);
    return part ? std::optional<any_communicator>(std::in_place, std::move(*part), reads_in_place_) : std::nullopt;
}

part_pointers exchange_parts(any_communicator& kv, const void* send, void* recv, std::size_t bytes_per_peer,
                             cudaStream_t stream, const collective_note& note) {
    if (auto* const of = kv.nccl()) return ctxpar::exchange_parts(*of, send, recv, bytes_per_peer, stream, note);
    if (auto* const of = kv.in_place()) return ctxpar::exchange_parts(*of, send, recv, bytes_per_peer, stream, note);
    return ctxpar::exchange_parts(kv, send, recv, bytes_per_peer, stream, note);
}

part_pointers gather_parts(any_communicator& kv, void* recv, std::size_t bytes, cudaStream_t stream,
                           const collective_note& note) {
    if (auto* const of = kv.nccl()) return ctxpar::gather_parts(*of, recv, bytes, stream, note);
    if (auto* const of = kv.in_place()) return ctxpar::gather_parts(*of, recv, bytes, stream, note);
    return ctxpar::gather_parts(kv, recv, bytes, stream, note);
}

void end_parts(any_communicator& kv, cudaStream_t stream) {
    if (auto* const of = kv.in_place()) ctxpar::end_parts(*of, stream);
}

} // namespace ctxpar_test
