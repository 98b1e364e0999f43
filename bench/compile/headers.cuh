// What a CUDA file with one decoder includes, and no more than it must.
#pragma once

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/attention/mla.hpp>
#include <ctxpar/backend/cuda/operations.cuh>
#include <ctxpar/decode.hpp>
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/policy.hpp>

#include "../device/alone.hpp"
