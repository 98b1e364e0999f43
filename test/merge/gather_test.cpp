// Heads over ranks: queries are gathered in the order of the ranks, merged heads are put back in order.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <ctxpar/merge/gather.hpp>

#include "merge_runs.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

namespace {

constexpr std::int64_t rows = 3;
constexpr std::int64_t heads = 2; // of one rank
constexpr std::int64_t width = 4;

// The value of column d of a row and of a head of the whole group.
float value(std::int64_t row, std::int64_t head, std::int64_t d) {
    return static_cast<float>(row * 1000 + head * 10 + d);
}

template <class T>
int wrong_heads(const head_view<T>& view, std::int64_t count) {
    int wrong = view.rows == rows && view.heads == count && view.width == width ? 0 : 1;
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t head = 0; head < count; ++head)
            for (std::int64_t d = 0; d < width; ++d) wrong += view.at(row, head)[d] == value(row, head, d) ? 0 : 1;
    return wrong;
}

void write_heads(const head_view<float>& view, std::int64_t first) {
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t head = 0; head < view.heads; ++head)
            for (std::int64_t d = 0; d < width; ++d) view.at(row, head)[d] = value(row, first + head, d);
}

// A rank's own queries dense, with gaps, or head-major.
head_view<float> query_view(std::vector<float>& memory, int layout) {
    memory.assign(200, -1);
    if (layout == 0) return dense_view(memory.data(), rows, heads, width);
    if (layout == 1) return {memory.data(), rows, heads, width, heads, 0, heads * width + 5, width + 1};
    return {memory.data(), rows, heads, width, heads, 0, width, rows * width};
}

template <class Comm>
void check_gather(Comm& comm, int layout) {
    std::vector<float> own;
    const head_view<float> q = query_view(own, layout);
    write_heads(q, comm.rank() * heads);
    std::vector<float> gathered(static_cast<std::size_t>(comm.size() * rows * heads * width) + 1, -7);
    cpu_backend backend;
    const auto all = gather_queries(&comm, backend, head_view<const float>(q), gathered.data(), 0, {});
    CHECK(wrong_heads(all, comm.size() * heads) == 0);
    CHECK(gathered.back() == -7);
}

template <class Comm>
void check_restore(Comm& comm) {
    const std::int64_t part = rows * heads * width;
    std::vector<float> gathered(static_cast<std::size_t>(comm.size() * part), -1);
    write_heads(dense_view(gathered.data() + comm.rank() * part, rows, heads, width), comm.rank() * heads);
    std::vector<float> out(static_cast<std::size_t>(comm.size() * part) + 1, -7);
    cpu_backend backend;
    const auto to = dense_view(out.data(), rows, comm.size() * heads, width);
    restore_heads(comm, backend, gathered.data(), to, {"merged heads", scalar_type::f32, 0}, {});
    CHECK(wrong_heads(to, comm.size() * heads) == 0);
    CHECK(out.back() == -7);
}

} // namespace

TEST_CASE("Queries of all ranks come in the order of the ranks, whatever lies between a rank's own") {
    for (const int ranks : {2, 3, 4})
        for (const int layout : {0, 1, 2})
            run_local_ranks(ranks, {}, [&](local_communicator& comm) {
                check_gather(comm, layout);
                bytes_only moved(comm);
                check_gather(moved, layout);
            });
}

TEST_CASE("A group of one talks to no one and uses the queries where they lie") {
    std::vector<float> memory;
    for (const int layout : {0, 1}) {
        const head_view<const float> q = query_view(memory, layout);
        cpu_backend backend;
        local_communicator* const none = nullptr;
        const auto same = gather_queries(none, backend, q, static_cast<float*>(nullptr), 0, {});
        CHECK(same.base == q.base);
        CHECK(same.row_stride == q.row_stride);
        CHECK(backend.launches() == 0);
        run_local_ranks(1, {}, [&](local_communicator& comm) {
            const auto alone = gather_queries(&comm, backend, q, static_cast<float*>(nullptr), 0, {});
            CHECK(alone.base == q.base);
            CHECK(comm.bytes_sent() == 0);
        });
    }
}

TEST_CASE("Scattered heads are put back in the order of the ranks") {
    for (const int ranks : {1, 2, 3, 4})
        run_local_ranks(ranks, {}, [&](local_communicator& comm) {
            check_restore(comm);
            bytes_only moved(comm);
            check_restore(moved);
        });
}

TEST_CASE("Merged LSEs are put back as heads of width one") {
    run_local_ranks(3, {}, [](local_communicator& comm) {
        std::vector<natural_lse> gathered(6);
        for (std::size_t row = 0; row < 2; ++row)
            gathered[static_cast<std::size_t>(comm.rank()) * 2 + row].value =
                static_cast<float>(10 * row) + static_cast<float>(comm.rank());
        std::vector<natural_lse> out(6);
        cpu_backend backend;
        restore_heads(comm, backend, gathered.data(), dense_view(out.data(), 2, 3, 1), {}, {});
        for (std::size_t i = 0; i < 6; ++i) CHECK(out[i].value == static_cast<float>(10 * (i / 3) + i % 3));
    });
}
