// Everything of ctxpar, for CUDA files: the CUDA backend with its kernels. A file that only instantiates a decoder
// compiles faster with less: backend/cuda/operations.cuh, decode.hpp, and the headers of its policy and communicator;
// and faster still where it leaves the decoder to C++ files: backend/cuda/decode_operations.cuh.
#pragma once

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/backend/cuda/decode_operations.cuh>
#include <ctxpar/backend/cuda/operations.cuh>
#include <ctxpar/ctxpar.hpp>
