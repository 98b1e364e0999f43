// What a machine was measured to take, and for which model, in a small file: written where it was measured, read where
// the cost model chooses.
//
//   {"ctxpar_calibration": 2, "transport": "local" | "mpi" | "nccl" | "local_cuda", "backend": "cpu" | "cuda",
//    "device": the processor or GPU as it calls itself, "ranks": that measured together, "machine": any text,
//    "costs": {"read_bytes_per_us", "flops_per_us", "attend_us", "request_us", "row_numbers_per_us", "serial_share",
//              "merge_bytes_per_us", "merge_us", "weight_bytes_per_us",
//              "collectives": [{"op", "size", "call_us", "bytes_per_us"}, ...]},
//    "model": {"attention": "gqa" | "mla", "heads", "kv_heads", "query_width", "value_width", "bytes_per_token",
//              "layers", "partial_bytes", "output_bytes"}}
//
// Every key is there and no other is; but request_us, row_numbers_per_us and serial_share may be left out, for 0. The
// numbers are as <ctxpar/plan/cost.hpp> has them.
#pragma once

#include <cstdint>
#include <string>

#include <ctxpar/plan/cost.hpp>
#include <ctxpar/plan/cp_size.hpp>

namespace demo {

struct calibration {
    std::string transport = "local";
    std::string backend = "cpu";
    std::string device;     // what a rank computed on, by the name it gives itself, in UTF-8
    std::int64_t ranks = 2; // that measured together
    std::string machine;    // for a person, in UTF-8
    ctxpar::machine_costs costs;
    std::string attention = "gqa";
    std::int64_t kv_heads = 1; // of the model; heads are a multiple
    std::int64_t layers = 1;
    ctxpar::model_shape model; // what the file does not have is as it is made
};

// Reads a file; what write_calibration wrote comes back bit for bit. config_error "calibration", naming the file, the
// key, its value and what is legal, for a file that is not there, is damaged or is of another version.
calibration read_calibration(const std::string& path);

// Puts a file in the place of what is there, complete or not at all. config_error "calibration" as above, before
// anything is written, for numbers that reading would refuse; and for a place that can not be written.
void write_calibration(const std::string& path, const calibration& value);

// Refuses, as write_calibration would, a path that is a folder or in none: for those who measure long before they
// write.
void check_calibration_place(const std::string& path);

// The text of such a file.
std::string calibration_text(const calibration& value);

} // namespace demo
