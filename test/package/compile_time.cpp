// One CPU decoder from the umbrella header: what an engine's source file costs to compile.
#include <ctxpar/ctxpar.hpp>

using policy = ctxpar::policy<ctxpar::gqa<ctxpar::bf16, 128>, ctxpar::interleave<16>, ctxpar::merge::a2a>;
using decoder = ctxpar::decoder<policy, ctxpar::cpu_backend, ctxpar::local_communicator>;

void decode_layer(decoder& made, const ctxpar::decode_step& step, const ctxpar::head_view<const ctxpar::bf16>& rows,
                  const ctxpar::kv_view<ctxpar::bf16>& cache, const ctxpar::head_view<ctxpar::bf16>& out) {
    made.append(step, rows, rows, cache, {});
    made.decode(step, rows, cache, out, ctxpar::layer_options<>{}, {});
}

ctxpar::decode_step plan_step(decoder& made, const ctxpar::decode_batch& batch, const ctxpar::workspace& memory) {
    return made.plan(batch, memory, {});
}
