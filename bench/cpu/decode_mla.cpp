// Decode of absorbed multi-head latent attention: a cache in bf16, rows of 512 + 64. It multiplies far more than it
// reads, so it is the compute ceiling that it has before it, but with few heads.
#include "decode.hpp"

#include <ctxpar/attention/mla.hpp>

namespace bench {
namespace {

constexpr std::int64_t kib = 1024;

void add_case(const plan_of_run& run, const decode_case& what) {
    add_decode<ctxpar::mla<ctxpar::bf16, 512, 64>>(run, what);
}

} // namespace

void add_decode_mla(const plan_of_run& run) {
    decode_case usual;
    usual.latent = true;
    usual.q_heads = 128;
    usual.kv_heads = 1;
    usual.tokens = 64 * kib;
    usual.threads = run.cpus;
    for (const std::int64_t tokens : {4 * kib, 16 * kib, 64 * kib, 256 * kib, 1024 * kib}) {
        decode_case what = usual;
        what.tokens = tokens;
        add_case(run, what);
    }
    for (const std::int64_t heads : {16, 64}) {
        decode_case what = usual;
        what.q_heads = heads;
        add_case(run, what);
    }
    decode_case what = usual;
    what.block = 64;
    add_case(run, what);
    what = usual;
    what.batch = 16;
    what.tokens = 4 * kib;
    add_case(run, what);
    what = usual;
    what.threads = 1;
    add_case(run, what);
    for (const std::int64_t ranks : {1, 2, 4, 8})
        for (const bool whole_step : {false, true}) {
            what = usual;
            what.ranks = ranks;
            what.threads = std::max<std::int64_t>(1, run.cpus / ranks);
            what.whole_step = whole_step;
            add_case(run, what);
        }
}

} // namespace bench
