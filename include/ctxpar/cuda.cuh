// Everything of ctxpar, for CUDA files: the CUDA backend with its kernels.
#pragma once

#include <ctxpar/backend/cuda.hpp>
#include <ctxpar/backend/cuda/operations.cuh>
#include <ctxpar/ctxpar.hpp>
