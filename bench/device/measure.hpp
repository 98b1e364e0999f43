// Timing on a device, and the table of what was measured.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench {

// What this device can do, measured in the same run.
struct ceilings {
    double copy_bytes = 0.0;   // a second, read and written
    double matrix_flops = 0.0; // a second: bf16 products, fp32 sums, by mma.sync
};
ceilings measure_ceilings();

// One line of the table.
struct measurement {
    std::string what;
    double seconds = 0.0; // median; 0: not timed
    double bytes = 0.0;   // read and written by design
    double flops = 0.0;
    double error = 0.0; // relative L2 to a double-precision reference
    double bound = 0.0; // that it may have; 0: not compared
    std::string note;
    bool pass() const { return bound == 0.0 || error <= bound; } // false for NaN
};

// What a run may still take. Work is predicted from a smaller case, and left out where it would take too long.
class budget {
public:
    explicit budget(double seconds);
    // Whether work of about `seconds` each may be timed.
    bool allows(double seconds) const;

private:
    double end_;
};

// The median of several runs of `launch`, each with caches that hold other memory.
double seconds_of(const std::function<void()>& launch);

// The program of all cases: `small` ones compare only, for a run under compute-sanitizer.
using results = std::vector<measurement>;
void decode_gqa(bool small, const budget& left, results& to);
void decode_mla(bool small, const budget& left, results& to);
void decode_mla_rounded(bool small, const budget& left, results& to);
void prefill(bool small, const budget& left, results& to);
void merge(bool small, const budget& left, results& to);

} // namespace bench
