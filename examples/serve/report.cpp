#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace serve {
namespace {

void add(class_latency& sum, const asked& request, const served& result) {
    ++sum.requests;
    const double first = result.first_s - request.arrives_s, total = result.end_s - request.arrives_s;
    sum.first_s += first;
    sum.total_s += total;
    sum.token_s += request.outputs > 1 ? (total - first) / static_cast<double>(request.outputs - 1) : 0;
}

void divide(class_latency& sum) {
    const auto count = static_cast<double>(std::max<std::int64_t>(1, sum.requests));
    sum.first_s /= count;
    sum.total_s /= count;
    sum.token_s /= count;
}

} // namespace

setting_report report_of(const std::string& name, const trace_options& given, const std::vector<asked>& trace,
                         const std::vector<served>& results) {
    setting_report report;
    report.name = name;
    for (std::size_t i = 0; i < trace.size(); ++i) {
        const served& result = results[i];
        if (!result.refused.empty()) {
            ++report.refused;
            continue;
        }
        const auto which = class_of(given, static_cast<std::int64_t>(trace[i].prompt.size()));
        add(report.classes[static_cast<std::size_t>(which)], trace[i], result);
        add(report.all, trace[i], result);
        report.end_s = std::max(report.end_s, result.end_s);
        report.moves += result.moves;
        report.reused += result.reused;
        ++report.admitted[result.ranks];
    }
    for (class_latency& each : report.classes) divide(each);
    divide(report.all);
    return report;
}

void compare_settings(std::vector<setting_report>& settings, const std::vector<asked>& trace,
                      const std::vector<const std::vector<served>*>& results) {
    for (std::size_t i = 0; i < trace.size(); ++i) {
        double best = std::numeric_limits<double>::infinity();
        for (const auto* each : results) best = std::min(best, (*each)[i].end_s - trace[i].arrives_s);
        for (std::size_t s = 0; s < settings.size(); ++s)
            settings[s].slowdown +=
                ((*results[s])[i].end_s - trace[i].arrives_s) / best / static_cast<double>(trace.size());
    }
}

void print(const std::string& title, const trace_options& given, const std::vector<setting_report>& settings) {
    fmt::print("\n{}\n  {:<14}", title, "prompts");
    for (const setting_report& each : settings) fmt::print("{:>26}", each.name);
    fmt::print("\n  {:<14}", "");
    for (std::size_t i = 0; i < settings.size(); ++i) fmt::print("{:>26}", "first s  ms/token  whole s");
    const auto row = [&](const std::string& name, const auto& of) {
        fmt::print("\n  {:<14}", name);
        for (const setting_report& each : settings) {
            const class_latency& value = of(each);
            fmt::print("{:>9.2f}{:>9.2f}{:>8.2f}", value.first_s, value.token_s * 1e3, value.total_s);
        }
    };
    for (std::size_t which = 0; which < request_classes; ++which) {
        if (settings[0].classes[which].requests == 0) continue;
        row(fmt::format("{} ({})", name_of(given, static_cast<request_class>(which)),
                        settings[0].classes[which].requests),
            [which](const setting_report& each) -> const class_latency& { return each.classes[which]; });
    }
    row(fmt::format("all ({})", settings[0].all.requests),
        [](const setting_report& each) -> const class_latency& { return each.all; });
    fmt::print("\n");
    for (const setting_report& each : settings) {
        std::string sizes;
        for (const auto& [size, requests] : each.admitted) sizes += fmt::format(", {} at CP {}", requests, size);
        fmt::print("  {}: all served after {:.1f} s; {:.2f} times a request's best setting on the average{}; {} moved; "
                   "{} prompt tokens reused{}\n",
                   each.name, each.end_s, each.slowdown, sizes, each.moves, each.reused,
                   each.refused > 0 ? fmt::format("; {} refused", each.refused) : "");
    }
}

bool dynamic_is_best(const std::vector<setting_report>& settings, double noise) {
    bool best = true;
    const setting_report& dynamic = settings.back();
    for (std::size_t which = 0; which < request_classes; ++which) {
        double other = std::numeric_limits<double>::infinity();
        for (std::size_t s = 0; s + 1 < settings.size(); ++s)
            other = std::min(other, settings[s].classes[which].total_s);
        const double own = dynamic.classes[which].total_s;
        if (dynamic.classes[which].requests == 0 || own <= other * (1 + noise)) continue;
        best = false;
        fmt::print("  dynamic took {:.3f} s in class {}, the better static setting {:.3f} s\n", own, which, other);
    }
    for (std::size_t s = 0; s + 1 < settings.size(); ++s) {
        if (dynamic.all.total_s <= settings[s].all.total_s) continue;
        best = false;
        fmt::print("  dynamic took {:.3f} s over all requests, {} {:.3f} s\n", dynamic.all.total_s, settings[s].name,
                   settings[s].all.total_s);
    }
    return best;
}

std::string chart(const std::string& title, const trace_options& given, const std::vector<setting_report>& settings) {
    constexpr double width = 640, height = 360, left = 60, bottom = 300, top = 60;
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (const setting_report& each : settings) {
        for (const class_latency& value : each.classes) {
            if (value.requests == 0) continue;
            least = std::min(least, value.total_s);
            most = std::max(most, value.total_s);
        }
    }
    const double low = std::floor(std::log10(least)), high = std::ceil(std::log10(most) + 1e-9);
    const auto y_of = [&](double seconds) {
        return bottom - (std::log10(seconds) - low) / (high - low) * (bottom - top);
    };
    std::string svg = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
                                  "font-family=\"sans-serif\" font-size=\"12\">\n"
                                  "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
                                  "<text x=\"{2}\" y=\"20\" font-size=\"14\">{3}</text>\n",
                                  width, height, left, title);
    for (double power = low; power <= high; ++power)
        svg += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ccc\"/>"
                           "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g} s</text>\n",
                           left, width - 10, y_of(std::pow(10, power)), left - 6, y_of(std::pow(10, power)) + 4,
                           std::pow(10, power));
    constexpr const char* colours[] = {"#9aa7b5", "#5b8cc0", "#d9822b"};
    const double group = (width - left - 10) / request_classes;
    const double bar = group * 0.8 / static_cast<double>(settings.size());
    for (std::size_t s = 0; s < settings.size(); ++s) {
        const char* colour = colours[s % std::size(colours)];
        svg += fmt::format("<rect x=\"{0}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{1}\"/>"
                           "<text x=\"{2}\" y=\"45\">{3}</text>\n",
                           left + 150 * static_cast<double>(s), colour, left + 150 * static_cast<double>(s) + 18,
                           settings[s].name);
        for (std::size_t which = 0; which < request_classes; ++which) {
            const class_latency& value = settings[s].classes[which];
            if (value.requests == 0) continue;
            const double x = left + group * (static_cast<double>(which) + 0.1) + bar * static_cast<double>(s);
            const double y = y_of(value.total_s);
            svg += fmt::format(
                "<rect x=\"{0:.1f}\" y=\"{1:.1f}\" width=\"{2:.1f}\" height=\"{3:.1f}\" fill=\"{4}\"/>"
                "<text x=\"{5:.1f}\" y=\"{6:.1f}\" text-anchor=\"middle\" font-size=\"10\">{7:.3g}</text>\n",
                x, y, bar - 2, bottom - y, colour, x + bar / 2 - 1, y - 4, value.total_s);
        }
    }
    for (std::size_t which = 0; which < request_classes; ++which)
        svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{} tokens</text>\n",
                           left + group * (static_cast<double>(which) + 0.5), bottom + 18,
                           name_of(given, static_cast<request_class>(which)));
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">mean seconds from arrival to the last token, by "
                       "length of the prompt</text>\n</svg>\n",
                       (left + width) / 2, bottom + 42);
    return svg;
}

} // namespace serve
