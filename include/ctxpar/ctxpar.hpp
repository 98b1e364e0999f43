// Everything of ctxpar that needs no CUDA, NCCL or MPI.
#pragma once

#include <ctxpar/attention/gqa.hpp>
#include <ctxpar/attention/mla.hpp>
#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/backend/probe.hpp>
#include <ctxpar/backend/with_attention.hpp>
#include <ctxpar/comm/local.hpp>
#include <ctxpar/decode.hpp>
#include <ctxpar/layout/feed_forward.hpp>
#include <ctxpar/layout/prefix.hpp>
#include <ctxpar/layout/reshard.hpp>
#include <ctxpar/layout/transfer_message.hpp>
#include <ctxpar/layout/transfer_send.hpp>
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/ag_ar.hpp>
#include <ctxpar/merge/ag_rs.hpp>
#include <ctxpar/merge/deferred.hpp>
#include <ctxpar/merge/dynamic.hpp>
#include <ctxpar/merge/policy.hpp>
#include <ctxpar/migrate.hpp>
#include <ctxpar/plan/cost.hpp>
#include <ctxpar/plan/cp_size.hpp>
#include <ctxpar/plan/merge_for.hpp>
#include <ctxpar/plan/router.hpp>
#include <ctxpar/prefill.hpp>
#include <ctxpar/version.hpp>
