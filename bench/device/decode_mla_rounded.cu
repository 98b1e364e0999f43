#include "decode.cuh"

void bench::decode_mla_rounded(bool small, const budget& left, results& to) {
    decode_cases<ctxpar::mla<ctxpar::bf16, 512, 64>, ctxpar::rounding_cuda_backend>(
        "decode MLA, P rounded", {128, 1, 576, 512, true, 0}, small, left, to);
}
