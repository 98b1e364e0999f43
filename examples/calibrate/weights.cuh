// The projection of weights.hpp on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ctxpar/backend/cuda/intrinsics.cuh>
#include <ctxpar/backend/cuda/launch.cuh>

#include "weights.hpp"

namespace demo {

inline constexpr unsigned projecting_warps = 8;   // of a block
inline constexpr unsigned projected_at_once = 16; // outputs of a block
inline constexpr unsigned tile_rows = 8;

struct projection_args {
    projection all;
    const ctxpar::bf16* weights = nullptr; // [outputs][inputs]
    const ctxpar::bf16* rows = nullptr;    // [rows][inputs]
    float* out = nullptr;                  // [rows][outputs]
};
static_assert(std::is_trivially_copyable_v<projection_args>);

// Of 16 outputs the warp's share of the inputs. The matrix units multiply 16 inputs at a time, in any order that both
// sides share: a lane's are the 8 in a row that it reads at once.
template <int Tiles>
CTXPAR_DEVICE void project_share(const projection_args& args, std::int64_t first, unsigned warp, unsigned lane,
                                 ctxpar::cuda::tile_sums (&sums)[Tiles]) {
    using ctxpar::cuda::chunk16;
    constexpr int ahead = 4; // chunks that are read before the first is used
    constexpr std::int64_t step = 32 * projecting_warps;
    const std::int64_t inputs = args.all.inputs, last_row = args.all.rows - 1;
    const std::int64_t output = first + lane / 4;
    const ctxpar::bf16* const upper = args.weights + output * inputs;
    const ctxpar::bf16* const lower = upper + 8 * inputs;
    for (std::int64_t begin = 32 * warp; begin < inputs; begin += ahead * step) {
        chunk16 above[ahead] = {}, below[ahead] = {};
        CTXPAR_UNROLL_ALL
        for (int k = 0; k < ahead; ++k) {
            const std::int64_t i = begin + k * step + 8 * (lane % 4);
            if (begin + k * step >= inputs) continue;
            above[k] = ctxpar::cuda::load_chunk(upper + i);
            below[k] = ctxpar::cuda::load_chunk(lower + i);
        }
        CTXPAR_UNROLL_ALL
        for (int k = 0; k < ahead; ++k) {
            const std::int64_t i = begin + k * step + 8 * (lane % 4);
            if (begin + k * step >= inputs) continue;
            const ctxpar::cuda::four_matrices even{
                {above[k].words[0], below[k].words[0], above[k].words[1], below[k].words[1]}};
            const ctxpar::cuda::four_matrices odd{
                {above[k].words[2], below[k].words[2], above[k].words[3], below[k].words[3]}};
            CTXPAR_UNROLL_ALL
            for (int tile = 0; tile < Tiles; ++tile) {
                const std::int64_t wanted = tile * tile_rows + lane / 4;
                const std::int64_t row = wanted < last_row ? wanted : last_row;
                const chunk16 x = ctxpar::cuda::load_chunk(args.rows + row * inputs + i);
                ctxpar::cuda::multiply_add<ctxpar::bf16>(sums[tile], even, x.words[0], x.words[1]);
                ctxpar::cuda::multiply_add<ctxpar::bf16>(sums[tile], odd, x.words[2], x.words[3]);
            }
        }
    }
}

// A block has 16 outputs of all rows, in tiles of 8; its warps share the inputs.
template <int Tiles>
CTXPAR_KERNEL void project_kernel(projection_args args) {
    constexpr unsigned numbers = Tiles * projected_at_once * tile_rows; // of a warp
    const unsigned thread = ctxpar::cuda::thread_index(), lane = ctxpar::cuda::lane_index();
    const unsigned warp = thread / ctxpar::cuda::warp_size;
    const std::int64_t first = std::int64_t{ctxpar::cuda::block_x()} * projected_at_once;
    ctxpar::cuda::tile_sums sums[Tiles] = {};
    project_share(args, first, warp, lane, sums);
    float* const shared = ctxpar::cuda::shared_array<float>(); // [warps][tiles][lanes][4]
    CTXPAR_UNROLL_ALL
    for (int tile = 0; tile < Tiles; ++tile)
        for (int i = 0; i < 4; ++i)
            shared[warp * numbers + (static_cast<unsigned>(tile) * 32 + lane) * 4 + static_cast<unsigned>(i)] =
                sums[tile].at[i];
    ctxpar::cuda::sync_block();
    if (thread >= numbers) return;
    float sum = 0;
    for (unsigned each = 0; each < projecting_warps; ++each) sum += shared[each * numbers + thread];
    const unsigned of_lane = thread / 4 % 32, i = thread % 4;
    const std::int64_t output = first + of_lane / 4 + 8 * (i / 2);
    const std::int64_t row = thread / 128 * tile_rows + 2 * (of_lane % 4) + i % 2;
    if (row < args.all.rows) args.out[row * args.all.outputs + output] = sum;
}

template <int Tiles>
void launch_projection(const projection_args& args, cudaStream_t stream) {
    ctxpar::cuda::launch_size size;
    size.grid_x = static_cast<unsigned>(args.all.outputs / projected_at_once);
    size.threads = projecting_warps * ctxpar::cuda::warp_size;
    size.shared_bytes = projecting_warps * Tiles * projected_at_once * tile_rows * sizeof(float);
    ctxpar::cuda::launch(size, stream, project_kernel<Tiles>, args);
}

inline void project_on_device(const projection_args& args, cudaStream_t stream) {
    args.all.rows <= tile_rows ? launch_projection<1>(args, stream) : launch_projection<2>(args, stream);
}

} // namespace demo
