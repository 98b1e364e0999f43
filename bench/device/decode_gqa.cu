#include "decode.cuh"

void bench::decode_gqa(bool small, const budget& left, results& to) {
    decode_cases<ctxpar::gqa<ctxpar::bf16, 128>>("decode GQA 64/8 x 128", {64, 8, 128, 128, false, 0}, small, left, to);
}
