#include "calibration.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ctxpar/core/error.hpp>

namespace demo {
namespace {

using json = nlohmann::ordered_json;
using names = std::vector<std::string>;

constexpr std::int64_t version = 2;
constexpr std::int64_t most = std::int64_t{1} << 20;        // of any whole number
constexpr std::uintmax_t most_bytes = std::size_t{1} << 20; // of a file

// The four of the enumeration, in its order.
constexpr ctxpar::collective_op ops[] = {ctxpar::collective_op::all_gather, ctxpar::collective_op::all_to_all,
                                         ctxpar::collective_op::reduce_scatter, ctxpar::collective_op::all_reduce};

std::string listed(const names& all) {
    std::string text;
    for (const std::string& each : all) text += (text.empty() ? "" : ", ") + each;
    return text;
}

// Sentences about one file; `key` is where in it, as costs.collectives[1].op.
class file_of {
public:
    explicit file_of(std::string path) : path_(std::move(path)) {}

    [[noreturn]] void refuse(const std::string& what) const {
        ctxpar::raise(ctxpar::config_error("calibration", fmt::format("calibration file {}: {}", path_, what)));
    }
    [[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& legal) const {
        refuse(fmt::format("{} is {}; it must be {}", key, value, legal));
    }
    void one_of(const std::string& key, const std::string& value, const names& legal) const {
        if (std::find(legal.begin(), legal.end(), value) == legal.end())
            refuse(key, fmt::format("\"{}\"", value), "one of " + listed(legal));
    }
    void whole(const std::string& key, std::int64_t value, std::int64_t least = 1) const {
        if (value < least || value > most)
            refuse(key, fmt::format("{}", value), fmt::format("a whole number from {} to {}", least, most));
    }
    void rate(const std::string& key, double value) const {
        if (!std::isfinite(value) || value <= 0) refuse(key, fmt::format("{}", value), "a finite number above 0");
    }
    void cost(const std::string& key, double value) const {
        if (!std::isfinite(value) || value < 0) refuse(key, fmt::format("{}", value), "a finite number of at least 0");
    }

private:
    std::string path_;
};

std::string entry_key(std::size_t index) {
    return fmt::format("costs.collectives[{}]", index);
}

// What holds for a file to be written as for one that was read.
void check_values(const file_of& file, const calibration& value) {
    file.one_of("transport", value.transport, {"local", "mpi", "nccl", "local_cuda"});
    file.one_of("backend", value.backend, {"cpu", "cuda"});
    file.whole("ranks", value.ranks, 2);
    const ctxpar::machine_costs& costs = value.costs;
    file.rate("costs.read_bytes_per_us", costs.read_bytes_per_us);
    file.rate("costs.flops_per_us", costs.flops_per_us);
    file.cost("costs.attend_us", costs.attend_us);
    file.cost("costs.request_us", costs.request_us);
    file.cost("costs.row_numbers_per_us", costs.row_numbers_per_us);
    file.cost("costs.serial_share", costs.serial_share);
    if (costs.serial_share > 1)
        file.refuse("costs.serial_share", fmt::format("{}", costs.serial_share), "a share from 0 to 1");
    file.rate("costs.merge_bytes_per_us", costs.merge_bytes_per_us);
    file.cost("costs.merge_us", costs.merge_us);
    file.cost("costs.weight_bytes_per_us", costs.weight_bytes_per_us);
    std::set<std::pair<ctxpar::collective_op, std::int32_t>> seen;
    for (std::size_t i = 0; i < costs.collectives.size(); ++i) {
        const ctxpar::collective_cost& entry = costs.collectives[i];
        file.whole(entry_key(i) + ".size", entry.size, 2);
        file.cost(entry_key(i) + ".call_us", entry.call_us);
        file.rate(entry_key(i) + ".bytes_per_us", entry.bytes_per_us);
        if (!seen.emplace(entry.op, entry.size).second)
            file.refuse(entry_key(i), fmt::format("{} over {} ranks", name_of(entry.op), entry.size),
                        "another op or size than those before it");
    }
    file.one_of("model.attention", value.attention, {"gqa", "mla"});
    file.whole("model.heads", value.model.heads);
    file.whole("model.kv_heads", value.kv_heads);
    if (value.model.heads % value.kv_heads != 0)
        file.refuse("model.kv_heads", fmt::format("{}", value.kv_heads),
                    fmt::format("a divisor of the {} heads", value.model.heads));
    file.whole("model.query_width", value.model.query_width);
    file.whole("model.value_width", value.model.value_width);
    file.whole("model.bytes_per_token", value.model.bytes_per_token);
    file.whole("model.layers", value.layers);
    file.whole("model.partial_bytes", value.model.partial_bytes);
    file.whole("model.output_bytes", value.model.output_bytes);
}

// One object of a file, with exactly these keys.
class object {
public:
    object(const file_of& file, const json& from, std::string prefix, names keys, const names& may_lack = {})
        : file_(file), from_(from), prefix_(std::move(prefix)) {
        if (!from.is_object()) file.refuse(prefix_.empty() ? "the whole" : prefix_, from.dump(), "an object");
        if (!prefix_.empty()) prefix_ += '.';
        for (const std::string& key : keys)
            if (!from.contains(key)) file.refuse(fmt::format("{}{} is missing; it must be there", prefix_, key));
        keys.insert(keys.end(), may_lack.begin(), may_lack.end());
        for (const auto& [key, value] : from.items())
            if (std::find(keys.begin(), keys.end(), key) == keys.end())
                file.refuse(fmt::format("{}{} is not known; the keys there must be {}", prefix_, key, listed(keys)));
    }

    const json& at(const char* key) const { return from_.at(key); }
    double number(const char* key) const {
        if (!at(key).is_number()) file_.refuse(prefix_ + key, at(key).dump(), "a number");
        return at(key).get<double>();
    }
    double number_or_zero(const char* key) const { return from_.contains(key) ? number(key) : 0; }
    std::int64_t whole(const char* key) const {
        const json& value = at(key);
        const bool fits = value.is_number_integer() && (!value.is_number_unsigned() ||
                                                        value.get<std::uint64_t>() <= static_cast<std::uint64_t>(most));
        if (!fits) file_.refuse(prefix_ + key, value.dump(), fmt::format("a whole number of at most {}", most));
        return value.get<std::int64_t>();
    }
    std::string text(const char* key) const {
        if (!at(key).is_string()) file_.refuse(prefix_ + key, at(key).dump(), "a text");
        return at(key).get<std::string>();
    }

private:
    const file_of& file_;
    const json& from_;
    std::string prefix_;
};

ctxpar::collective_cost entry_of(const file_of& file, const json& from, const std::string& key) {
    const object entry(file, from, key, {"op", "size", "call_us", "bytes_per_us"});
    const std::string name = entry.text("op");
    file.one_of(key + ".op", name, {name_of(ops[0]), name_of(ops[1]), name_of(ops[2]), name_of(ops[3])});
    const auto* const op =
        std::find_if(std::begin(ops), std::end(ops), [&](auto each) { return name == name_of(each); });
    const std::int64_t size = entry.whole("size");
    file.whole(key + ".size", size, 2);
    return {*op, static_cast<std::int32_t>(size), entry.number("call_us"), entry.number("bytes_per_us")};
}

ctxpar::machine_costs costs_of(const file_of& file, const json& from) {
    const object given(file, from, "costs",
                       {"read_bytes_per_us", "flops_per_us", "attend_us", "merge_bytes_per_us", "merge_us",
                        "weight_bytes_per_us", "collectives"},
                       {"request_us", "row_numbers_per_us", "serial_share"});
    ctxpar::machine_costs costs;
    costs.read_bytes_per_us = given.number("read_bytes_per_us");
    costs.flops_per_us = given.number("flops_per_us");
    costs.attend_us = given.number("attend_us");
    costs.request_us = given.number_or_zero("request_us");
    costs.row_numbers_per_us = given.number_or_zero("row_numbers_per_us");
    costs.serial_share = given.number_or_zero("serial_share");
    costs.merge_bytes_per_us = given.number("merge_bytes_per_us");
    costs.merge_us = given.number("merge_us");
    costs.weight_bytes_per_us = given.number("weight_bytes_per_us");
    const json& entries = given.at("collectives");
    if (!entries.is_array()) file.refuse("costs.collectives", entries.dump(), "a list");
    for (std::size_t i = 0; i < entries.size(); ++i)
        costs.collectives.push_back(entry_of(file, entries[i], entry_key(i)));
    return costs;
}

calibration values_of(const file_of& file, const json& from) {
    // The version is looked at before all else: another one may have other keys.
    if (!from.is_object() || !from.contains("ctxpar_calibration"))
        file.refuse("it has no ctxpar_calibration; it must be an object in which that is 2");
    if (const json& found = from.at("ctxpar_calibration"); !found.is_number_integer() || found != version)
        file.refuse("ctxpar_calibration", found.dump(),
                    fmt::format("{}, the version that this program reads", version));
    const object whole(file, from, "",
                       {"ctxpar_calibration", "transport", "backend", "device", "ranks", "machine", "costs", "model"});
    const object model(file, whole.at("model"), "model",
                       {"attention", "heads", "kv_heads", "query_width", "value_width", "bytes_per_token", "layers",
                        "partial_bytes", "output_bytes"});
    calibration value;
    value.transport = whole.text("transport");
    value.backend = whole.text("backend");
    value.device = whole.text("device");
    value.ranks = whole.whole("ranks");
    value.machine = whole.text("machine");
    value.costs = costs_of(file, whole.at("costs"));
    value.attention = model.text("attention");
    value.model.heads = model.whole("heads");
    value.kv_heads = model.whole("kv_heads");
    value.model.query_width = model.whole("query_width");
    value.model.value_width = model.whole("value_width");
    value.model.bytes_per_token = model.whole("bytes_per_token");
    value.layers = model.whole("layers");
    value.model.partial_bytes = model.whole("partial_bytes");
    value.model.output_bytes = model.whole("output_bytes");
    return value;
}

std::string content_of(const file_of& file, const std::string& path) {
    std::error_code fault;
    // Anything else may have no end, or nobody at its other end.
    const std::filesystem::file_status found = std::filesystem::status(path, fault);
    if (found.type() == std::filesystem::file_type::not_found) file.refuse("it is not there; it must be a file");
    if (found.type() != std::filesystem::file_type::regular) file.refuse("it must be a plain file, and is none");
    const std::uintmax_t bytes = std::filesystem::file_size(path, fault);
    if (!fault && bytes > most_bytes)
        file.refuse(fmt::format("it has {} bytes; it must have at most {}", bytes, most_bytes));
    std::ifstream from(path, std::ios::binary);
    std::string content((std::istreambuf_iterator<char>(from)), std::istreambuf_iterator<char>());
    if (!from) file.refuse("it can not be read; it must be");
    return content;
}

// JSON in which no object has a key twice.
json parsed(const file_of& file, const std::string& content) {
    std::vector<std::set<std::string>> keys;
    const auto watch = [&](int, json::parse_event_t event, json& value) {
        if (event == json::parse_event_t::object_start) keys.emplace_back();
        if (event == json::parse_event_t::object_end) keys.pop_back();
        if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
            file.refuse(fmt::format("the key {} is there twice; it must be there once", value.get<std::string>()));
        return true;
    };
    try {
        return json::parse(content, watch);
    } catch (const json::exception& fault) {
        file.refuse(fmt::format("it is damaged, {}; it must be one whole JSON object", fault.what()));
    }
}

std::string text_of(const file_of& file, const calibration& value) {
    check_values(file, value);
    json entries = json::array();
    for (const ctxpar::collective_cost& entry : value.costs.collectives)
        entries.push_back({{"op", name_of(entry.op)},
                           {"size", entry.size},
                           {"call_us", entry.call_us},
                           {"bytes_per_us", entry.bytes_per_us}});
    const json whole = {{"ctxpar_calibration", version},
                        {"transport", value.transport},
                        {"backend", value.backend},
                        {"device", value.device},
                        {"ranks", value.ranks},
                        {"machine", value.machine},
                        {"costs",
                         {{"read_bytes_per_us", value.costs.read_bytes_per_us},
                          {"flops_per_us", value.costs.flops_per_us},
                          {"attend_us", value.costs.attend_us},
                          {"request_us", value.costs.request_us},
                          {"row_numbers_per_us", value.costs.row_numbers_per_us},
                          {"serial_share", value.costs.serial_share},
                          {"merge_bytes_per_us", value.costs.merge_bytes_per_us},
                          {"merge_us", value.costs.merge_us},
                          {"weight_bytes_per_us", value.costs.weight_bytes_per_us},
                          {"collectives", std::move(entries)}}},
                        {"model",
                         {{"attention", value.attention},
                          {"heads", value.model.heads},
                          {"kv_heads", value.kv_heads},
                          {"query_width", value.model.query_width},
                          {"value_width", value.model.value_width},
                          {"bytes_per_token", value.model.bytes_per_token},
                          {"layers", value.layers},
                          {"partial_bytes", value.model.partial_bytes},
                          {"output_bytes", value.model.output_bytes}}}};
    try {
        return whole.dump(1) + '\n';
    } catch (const json::exception&) {
        file.refuse("device or machine is not UTF-8; both must be");
    }
}

} // namespace

calibration read_calibration(const std::string& path) {
    const file_of file(path);
    calibration value = values_of(file, parsed(file, content_of(file, path)));
    check_values(file, value);
    return value;
}

std::string calibration_text(const calibration& value) {
    return text_of(file_of("to be written"), value);
}

void check_calibration_place(const std::string& path) {
    const file_of file(path);
    std::error_code fault;
    if (std::filesystem::is_directory(path, fault)) file.refuse("it is a folder; it must be a file");
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (path.empty() || !std::filesystem::is_directory(folder.empty() ? "." : folder, fault))
        file.refuse("it can not be written; it must be in a folder that is there and may be written");
}

void write_calibration(const std::string& path, const calibration& value) {
    const file_of file(path);
    const std::string text = text_of(file, value);
    check_calibration_place(path);
    const std::string draft = path + ".draft";
    std::error_code fault;
    std::ofstream to(draft, std::ios::binary);
    to << text << std::flush;
    const bool written = to.good();
    to.close();
    if (written) std::filesystem::rename(draft, path, fault);
    if (written && !fault) return;
    std::filesystem::remove(draft, fault);
    file.refuse("it can not be written; it must be in a folder that is there and may be written");
}

} // namespace demo
