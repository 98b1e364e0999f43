// Latencies by class of request, for the settings that were tried on one trace.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "schedule.hpp"
#include "trace.hpp"

namespace serve {

// A mean over the requests of a class, in seconds.
struct class_latency {
    std::int64_t requests = 0;
    double first_s = 0; // from arrival to the first output
    double token_s = 0; // for each output behind it
    double total_s = 0; // from arrival to the last output
};

struct setting_report {
    std::string name;
    std::array<class_latency, request_classes> classes;
    class_latency all;
    double slowdown = 0; // mean over all requests of total_s over the time of this request in the best setting
    double end_s = 0;    // when the last request was served
    std::int64_t moves = 0;
    std::int64_t reused = 0; // tokens of prompts
    std::int64_t refused = 0;
    std::map<std::int64_t, std::int64_t> admitted; // requests by CP size
};

setting_report report_of(const std::string& name, const trace_options& given, const std::vector<asked>& trace,
                         const std::vector<served>& results);

// Of settings that served one trace, sets `slowdown`.
void compare_settings(std::vector<setting_report>& settings, const std::vector<asked>& trace,
                      const std::vector<const std::vector<served>*>& results);

void print(const std::string& title, const trace_options& given, const std::vector<setting_report>& settings);

// Whether `dynamic`, the last setting, is as good as the better of the others in each class, within `noise` of it, and
// better than both over all requests. Says what is not.
bool dynamic_is_best(const std::vector<setting_report>& settings, double noise);

// A chart of mean latencies as SVG: for each class the settings side by side, on a logarithmic scale.
std::string chart(const std::string& title, const trace_options& given, const std::vector<setting_report>& settings);

} // namespace serve
