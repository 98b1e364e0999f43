#include "decode.cuh"

void bench::decode_mla(bool small, const budget& left, results& to) {
    decode_cases<ctxpar::mla<ctxpar::bf16, 512, 64>>("decode MLA 128 x 576/512", {128, 1, 576, 512, true, 0}, small,
                                                     left, to);
}
