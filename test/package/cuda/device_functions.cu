// What the library writes for host and device compiles for a device, without a warning: ownership, slots, masks, the
// metadata of decode and prefill steps, softmax states, storage types, views.
#include <ctxpar/ctxpar.hpp>

using namespace ctxpar;

__global__ void metadata(metadata_args decode, prefill_metadata_args prefill, piece_metadata_args piece) {
    write_request(decode, 0, 0);
    write_padding(decode, 0);
    prefill_offsets at;
    write_prefill_request(prefill, 0, at, 0);
    at.pass(prefill.law, request_of(prefill.batch, 0), 0);
    write_prefill_filling(prefill, at, 0);
    write_piece(piece);
}

__global__ void numbers(float* out, kv_view<fp8_e4m3> cache, head_view<bf16> rows) {
    merge_weights<lse_base::binary> weights;
    weights.see({out[0]});
    weights.add({out[0]});
    out[0] = weights.weight({out[0]}) + weights.result().value;
    softmax_state<lse_base::natural> state;
    state.raise(out[1]);
    state.add(out[1]);
    out[1] = state.finish().value;
    *rows.at(0, 0) = bf16(static_cast<float>(*cache.key(3, 0)) * cache.key_scale(3, 0) +
                          static_cast<float>(f16(out[2])) + static_cast<float>(fp8_e5m2(out[3])));
}

__global__ void places(std::int64_t* out, block_table table, shard part, zigzag_law split) {
    out[0] = slot_of(part, table, 0, out[0]);
    out[1] = split.place(out[1], out[2]).row;
    out[2] = part.global(part.local(out[2]));
}

// And what runs on the host compiles there too.
using chosen = policy<gqa<bf16, 128>, interleave<16>, merge::a2a>;
template class ctxpar::prefiller<chosen, cpu_backend, local_communicator>;
template class ctxpar::decoder<chosen, cpu_backend, local_communicator>;
