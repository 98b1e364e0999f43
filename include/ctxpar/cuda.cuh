// Everything of ctxpar, for CUDA files: the CUDA backend with its kernels. A file that only instantiates a decoder
// compiles faster with less: backend/cuda/operations.cuh, decode.hpp, and the headers of its policy and communicator.
#pragma once

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/backend/cuda/operations.cuh>
#include <ctxpar/ctxpar.hpp>
