// Decode of grouped-query attention: a cache in bf16, heads of 128. One number of the usual case is varied at a time.
#include "decode.hpp"

#include <ctxpar/attention/gqa.hpp>

namespace bench {
namespace {

constexpr std::int64_t kib = 1024;

void add_case(const plan_of_run& run, const decode_case& what) {
    add_decode<ctxpar::gqa<ctxpar::bf16, 128>>(run, what);
}

// The same CPUs for any number of ranks.
decode_case over_ranks(decode_case what, std::int64_t ranks, std::int64_t cpus) {
    what.ranks = ranks;
    what.threads = std::max<std::int64_t>(1, cpus / ranks);
    return what;
}

} // namespace

void add_decode_gqa(const plan_of_run& run) {
    decode_case usual;
    usual.threads = run.cpus;
    for (const std::int64_t tokens : {4 * kib, 16 * kib, 64 * kib, 256 * kib, 1024 * kib})
        for (const std::int64_t block : {16, 64})
            for (const bool by_head : {false, true}) {
                decode_case what = usual;
                what.tokens = tokens;
                what.block = block;
                what.by_head = by_head;
                add_case(run, what);
            }
    for (const std::int64_t batch : {8, 32}) {
        decode_case what = usual;
        what.batch = batch;
        what.tokens = 256 * kib / batch;
        add_case(run, what);
    }
    for (const auto& [q_heads, kv_heads] : {std::pair{32, 8}, {8, 8}, {128, 8}, {64, 1}}) {
        decode_case what = usual;
        what.q_heads = q_heads;
        what.kv_heads = kv_heads;
        add_case(run, what);
    }
    for (std::int64_t threads = 1; threads <= run.cpus; threads *= 2) {
        decode_case what = usual;
        what.threads = threads;
        add_case(run, what);
    }
    for (const std::int64_t tokens : {64 * kib, 1024 * kib})
        for (const std::int64_t ranks : {1, 2, 4, 8}) {
            decode_case what = over_ranks(usual, ranks, run.cpus);
            what.tokens = tokens;
            add_case(run, what);
        }
    for (const std::int64_t interleave : {1, 16, 64}) {
        decode_case what = over_ranks(usual, 8, run.cpus);
        what.interleave = interleave;
        add_case(run, what);
    }
    for (const std::int64_t ranks : {1, 8})
        for (const std::int64_t tokens : {4 * kib, 16 * kib, 64 * kib, 256 * kib, 1024 * kib}) {
            decode_case what = over_ranks(usual, ranks, run.cpus);
            what.tokens = tokens;
            what.whole_step = true;
            add_case(run, what);
        }
}

} // namespace bench
