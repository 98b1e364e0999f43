// Rows moved by the device kernel lie where the CPU backend puts them, bit for bit.
#include <ctxpar/backend/cuda/move.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include <ctxpar/backend/cpu.hpp>

#include "kernels.hpp"

using namespace ctxpar;

namespace {

template <class T>
std::vector<T> numbers(std::size_t count) {
    std::vector<T> list(count);
    for (std::size_t i = 0; i < count; ++i) {
        std::uint64_t place = (i + 3) * 0x9e3779b97f4a7c15ULL;
        std::memcpy(static_cast<void*>(&list[i]), &place, sizeof(T));
    }
    return list;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

void move(const cuda::move_args& args, std::int64_t piece, simt::thread_order order, std::uint64_t seed) {
    simt::launch_shape shape{2, 32, 0, order, seed};
    if (piece == 16) return simt::launch(shape, cuda::move_rows_kernel<16>, args);
    if (piece == 8) return simt::launch(shape, cuda::move_rows_kernel<8>, args);
    if (piece == 4) return simt::launch(shape, cuda::move_rows_kernel<4>, args);
    if (piece == 2) return simt::launch(shape, cuda::move_rows_kernel<2>, args);
    simt::launch(shape, cuda::move_rows_kernel<1>, args);
}

struct layout {
    std::int64_t heads, width, gap, shift; // gap: unused elements behind each vector; shift: of the base
};

template <class T>
void check_moves(const layout& l) {
    const std::int64_t rows_from = 7, rows_to = 5, pitch = l.width + l.gap;
    const std::vector<T> source = numbers<T>(static_cast<std::size_t>(rows_from * l.heads * pitch + l.shift));
    const std::vector<std::int64_t> chosen = {6, -1, 0, 0, 3}, places = {1, -1, 4, 0, -1, 2, 3};
    const auto view = [&](auto* base, std::int64_t rows) {
        return blocked_view(base + l.shift, 1, rows, l.heads, l.width, pitch);
    };
    simt::in_all_orders([&](simt::thread_order order, std::uint64_t seed) {
        const std::vector<T> before = numbers<T>(static_cast<std::size_t>(rows_to * l.heads * pitch + l.shift));
        std::vector<T> due = before, got = before;
        cpu_backend backend;
        cuda::move_args args;
        args.from = cuda::bytes_of(view(source.data(), rows_from));
        args.to = cuda::bytes_of(view(got.data(), rows_to));
        const std::int64_t piece = std::min(cuda::widest_piece(args.from), cuda::widest_piece(args.to));
        const T nothing{};
        if constexpr (sizeof(T) == 4) std::memcpy(&args.fill, &nothing, 4);

        args.rows = index_of(chosen.data());
        args.count = rows_to;
        backend.copy_rows(view(source.data(), rows_from), args.rows, view(due.data(), rows_to), {});
        move(args, piece, order, seed);
        CHECK(same(got, due));

        args.rows = index_of(places.data());
        args.move = cuda::row_move::place;
        args.count = rows_from;
        backend.place_rows(view(source.data(), rows_from), args.rows, view(due.data(), rows_to), {});
        move(args, piece, order, seed);
        CHECK(same(got, due));

        args.from = {};
        args.rows = {};
        args.move = cuda::row_move::take;
        args.count = rows_to;
        backend.clear_rows(view(due.data(), rows_to), {});
        move(args, piece, order, seed);
        CHECK(same(got, due));
    });
}

} // namespace

TEST_CASE("moved rows are those of the CPU, whatever the element, width and strides") {
    for (const layout& l : {layout{3, 8, 0, 0}, layout{2, 64, 8, 0}, layout{5, 12, 4, 4}, layout{1, 7, 2, 1}}) {
        check_moves<bf16>(l);
        check_moves<float>(l);
        check_moves<natural_lse>(l);
        check_moves<fp8_e4m3>(l);
        check_moves<std::int64_t>(l);
    }
}

TEST_CASE("the widest piece divides base, width and strides") {
    alignas(16) std::byte memory[256];
    const auto piece = [&](std::int64_t shift, std::int64_t width, std::int64_t pitch) {
        return cuda::widest_piece(blocked_view(memory + shift, 1, 2, 2, width, pitch));
    };
    CHECK(piece(0, 32, 48) == 16);
    CHECK(piece(0, 32, 40) == 8);
    CHECK(piece(4, 32, 48) == 4);
    CHECK(piece(0, 30, 32) == 2);
    CHECK(piece(1, 32, 32) == 1);
}
