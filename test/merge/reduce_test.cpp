// Parts on their way and their sums: in rank order, the same bits on every rank and over every transport.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <support/plain_numbers.hpp>

#include <ctxpar/merge/reduce.hpp>

#include "merge_runs.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

namespace {

template <class Body>
void on_each_transport(int ranks, Body body) {
    for (const transport over : {transport::peers, transport::bytes, transport::adding})
        run_local_ranks(ranks, {}, [&](local_communicator& comm) {
            if (over == transport::peers) {
                body(comm);
            } else if (over == transport::bytes) {
                bytes_only moved(comm);
                body(moved);
            } else {
                adding added(comm);
                body(added);
            }
        });
}

// Numbers of very different sizes: another order of adding gives other bits.
template <class T>
std::vector<std::vector<T>> uneven_parts(std::size_t ranks, std::size_t count) {
    std::mt19937 random(100);
    std::normal_distribution<float> normal;
    std::vector<std::vector<T>> all(ranks, std::vector<T>(count));
    for (auto& part : all)
        for (T& value : part) value = static_cast<T>(normal(random) * (random() % 3 == 0 ? 1e6F : 1.0F));
    return all;
}

// The fp32 sum in rank order, rounded once.
template <class T>
std::vector<T> sums_of(const std::vector<std::vector<T>>& parts, std::size_t first, std::size_t count) {
    std::vector<T> sums;
    for (std::size_t i = first; i < first + count; ++i) {
        float sum = 0;
        for (const auto& part : parts) sum += static_cast<float>(part[i]);
        sums.push_back(static_cast<T>(sum));
    }
    return sums;
}

template <class T>
bool same(const std::vector<T>& expected, const T* got) {
    return std::memcmp(expected.data(), got, expected.size() * sizeof(T)) == 0;
}

std::vector<float> numbered(int from, int to, std::size_t count) {
    std::vector<float> values;
    for (std::size_t i = 0; i < count; ++i)
        values.push_back(static_cast<float>(from * 1000 + to * 100) + static_cast<float>(i));
    return values;
}

} // namespace

TEST_CASE("exchange_parts brings from each rank the part that is meant for this one") {
    for (const int ranks : {1, 2, 3, 5})
        on_each_transport(ranks, [&](auto& comm) {
            constexpr std::size_t count = 7;
            std::vector<float> send, recv(count * static_cast<std::size_t>(ranks), -1);
            for (int to = 0; to < ranks; ++to) {
                const auto part = numbered(comm.rank(), to, count);
                send.insert(send.end(), part.begin(), part.end());
            }
            const part_pointers from = exchange_parts(comm, send.data(), recv.data(), count * sizeof(float), {}, {});
            bool right = true;
            for (int i = 0; i < ranks; ++i)
                right = right && same(numbered(i, comm.rank(), count),
                                      static_cast<const float*>(from.at[static_cast<std::size_t>(i)]));
            end_parts(comm, {});
            CHECK(right);
        });
}

TEST_CASE("gather_parts brings every rank's part to all") {
    for (const int ranks : {1, 2, 3, 5})
        on_each_transport(ranks, [&](auto& comm) {
            constexpr std::size_t count = 5;
            std::vector<float> all(count * static_cast<std::size_t>(ranks), -1);
            const auto own = numbered(comm.rank(), 0, count);
            std::copy(own.begin(), own.end(),
                      all.begin() + static_cast<std::ptrdiff_t>(count) * static_cast<std::ptrdiff_t>(comm.rank()));
            const part_pointers from = gather_parts(comm, all.data(), count * sizeof(float), {}, {});
            bool right = true;
            for (int i = 0; i < ranks; ++i)
                right = right &&
                        same(numbered(i, 0, count), static_cast<const float*>(from.at[static_cast<std::size_t>(i)]));
            end_parts(comm, {});
            CHECK(right);
        });
}

TEST_CASE_TEMPLATE("reduce_scatter leaves each rank the fp32 sum in rank order, bit by bit", T, float, bf16, f16) {
    for (const int ranks : {1, 2, 3, 5, 8}) {
        constexpr std::size_t chunk = 2 * 3 * 4; // 2 rows, 3 heads, width 4
        const auto parts = uneven_parts<T>(static_cast<std::size_t>(ranks), chunk * static_cast<std::size_t>(ranks));
        on_each_transport(ranks, [&](auto& comm) {
            const auto rank = static_cast<std::size_t>(comm.rank());
            std::vector<T> send = parts[rank];
            std::vector<T> recv(send.size());
            std::vector<T> out(chunk, T(-1.0F));
            const T* none = nullptr;
            cpu_backend backend;
            reduce_scatter(comm, backend, reduction<T>{send.data(), recv.data(), chunk, {}}, dense_view(none, 2, 3, 4),
                           dense_view(out.data(), 2, 3, 4), {});
            CHECK(same(sums_of(parts, rank * chunk, chunk), out.data()));
            if constexpr (reducing_communicator<std::remove_reference_t<decltype(comm)>>) CHECK(comm.reductions() == 1);
        });
    }
}

TEST_CASE("reduce_scatter may write narrower numbers, in another layout") {
    const auto parts = uneven_parts<float>(3, 3 * 6);
    on_each_transport(3, [&](auto& comm) {
        const auto rank = static_cast<std::size_t>(comm.rank());
        std::vector<float> send = parts[rank];
        std::vector<float> recv(send.size());
        std::vector<bf16> out(3 * 4, bf16(7.0F));
        const float* none = nullptr;
        cpu_backend backend;
        reduce_scatter(comm, backend, reduction<float>{send.data(), recv.data(), 6, {}}, dense_view(none, 1, 3, 2),
                       blocked_view(out.data(), 1, 1, 3, 2, 4), {});
        const std::vector<float> sums = sums_of(parts, rank * 6, 6);
        int wrong = 0;
        for (std::size_t head = 0; head < 3; ++head)
            for (std::size_t d = 0; d < 4; ++d)
                wrong += out[head * 4 + d].bits == bf16(d < 2 ? sums[head * 2 + d] : 7.0F).bits ? 0 : 1;
        CHECK(wrong == 0);
    });
}

TEST_CASE_TEMPLATE("all_reduce gives every rank the same sums, also where the ranks do not divide them", T, float,
                   bf16) {
    for (const int ranks : {1, 2, 3, 5, 8}) {
        for (const std::size_t total : {1U, 2U, 5U, 7U, 16U, 40U}) {
            const auto num_ranks = static_cast<std::size_t>(ranks);
            const std::size_t chunk = (total + num_ranks - 1) / num_ranks;
            const auto parts = uneven_parts<T>(num_ranks, chunk * num_ranks);
            on_each_transport(ranks, [&](auto& comm) {
                std::vector<T> send = parts[static_cast<std::size_t>(comm.rank())];
                std::vector<T> recv(send.size());
                std::vector<T> sums(send.size() + 1, T(-1.0F));
                cpu_backend backend;
                all_reduce(comm, backend, reduction<T>{send.data(), recv.data(), static_cast<std::int64_t>(chunk), {}},
                           sums.data(), static_cast<std::int64_t>(total), {});
                CHECK(same(sums_of(parts, 0, total), sums.data()));
                CHECK(plain::number(sums.back()) == -1); // one past the room that is given
                if constexpr (reducing_communicator<std::remove_reference_t<decltype(comm)>>)
                    CHECK(comm.reductions() == 1);
            });
        }
    }
}
