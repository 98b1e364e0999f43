#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "calibration.hpp"

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <ctxpar/core/error.hpp>

namespace {

namespace fs = std::filesystem;
using demo::calibration;
using demo::read_calibration;
using demo::write_calibration;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// An empty folder that goes with it.
struct folder {
    fs::path path;
    folder() {
        std::string name = (fs::temp_directory_path() / "calibration_XXXXXX").string();
        path = ::mkdtemp(name.data());
    }
    ~folder() { fs::remove_all(path); }
    std::string file() const { return (path / "machine.json").string(); }
    std::ptrdiff_t entries() const { return std::distance(fs::directory_iterator(path), fs::directory_iterator()); }
};

// No two numbers alike; thirds have no short decimal form.
calibration some() {
    calibration value;
    value.transport = "mpi";
    value.backend = "cuda";
    value.device = "GPU \"0\"";
    value.ranks = 5;
    value.machine = "two \"cores\", 2.6 GHz \xc2\xb5";
    value.costs.collectives = {{ctxpar::collective_op::all_to_all, 8, 1.0 / 3, 7777.0 / 3},
                               {ctxpar::collective_op::all_gather, 2, 0.1, 5e-324},
                               {ctxpar::collective_op::all_reduce, 2, 0, 1.7976931348623157e308},
                               {ctxpar::collective_op::reduce_scatter, 4, 4.0, 123456789.0 / 7}};
    value.costs.read_bytes_per_us = 12345.678901234567;
    value.costs.flops_per_us = 1e15 / 3;
    value.costs.attend_us = 2.0 / 3;
    value.costs.request_us = 1.0 / 7;
    value.costs.row_numbers_per_us = 10.0 / 11;
    value.costs.serial_share = 0.7;
    value.costs.merge_bytes_per_us = 4096;
    value.costs.merge_us = 0.30000000000000004;
    value.costs.weight_bytes_per_us = 9999.9;
    value.attention = "mla";
    value.kv_heads = 3;
    value.layers = 61;
    value.model.heads = 24;
    value.model.query_width = 576;
    value.model.value_width = 512;
    value.model.bytes_per_token = 1152;
    value.model.partial_bytes = 4;
    value.model.output_bytes = 2;
    return value;
}

bool same_bits(double a, double b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

void check_same(const calibration& a, const calibration& b) {
    CHECK(a.transport == b.transport);
    CHECK(a.backend == b.backend);
    CHECK(a.device == b.device);
    CHECK(a.ranks == b.ranks);
    CHECK(a.machine == b.machine);
    CHECK(same_bits(a.costs.read_bytes_per_us, b.costs.read_bytes_per_us));
    CHECK(same_bits(a.costs.flops_per_us, b.costs.flops_per_us));
    CHECK(same_bits(a.costs.attend_us, b.costs.attend_us));
    CHECK(same_bits(a.costs.request_us, b.costs.request_us));
    CHECK(same_bits(a.costs.row_numbers_per_us, b.costs.row_numbers_per_us));
    CHECK(same_bits(a.costs.serial_share, b.costs.serial_share));
    CHECK(same_bits(a.costs.merge_bytes_per_us, b.costs.merge_bytes_per_us));
    CHECK(same_bits(a.costs.merge_us, b.costs.merge_us));
    CHECK(same_bits(a.costs.weight_bytes_per_us, b.costs.weight_bytes_per_us));
    REQUIRE(a.costs.collectives.size() == b.costs.collectives.size());
    for (std::size_t i = 0; i < a.costs.collectives.size(); ++i) {
        CHECK(a.costs.collectives[i].op == b.costs.collectives[i].op);
        CHECK(a.costs.collectives[i].size == b.costs.collectives[i].size);
        CHECK(same_bits(a.costs.collectives[i].call_us, b.costs.collectives[i].call_us));
        CHECK(same_bits(a.costs.collectives[i].bytes_per_us, b.costs.collectives[i].bytes_per_us));
    }
    CHECK(a.attention == b.attention);
    CHECK(a.kv_heads == b.kv_heads);
    CHECK(a.layers == b.layers);
    CHECK(a.model.heads == b.model.heads);
    CHECK(a.model.query_width == b.model.query_width);
    CHECK(a.model.value_width == b.model.value_width);
    CHECK(a.model.bytes_per_token == b.model.bytes_per_token);
    CHECK(a.model.partial_bytes == b.model.partial_bytes);
    CHECK(a.model.output_bytes == b.model.output_bytes);
}

// The sentence of the refusal; empty where there is none. Its code is always the same.
template <class Fn>
std::string refusal(const Fn& fn) {
    try {
        fn();
    } catch (const ctxpar::config_error& error) {
        CHECK(error.code() == "calibration");
        return error.what();
    }
    return {};
}

bool has_all(const std::string& text, const std::vector<std::string>& parts) {
    bool all = true;
    for (const std::string& part : parts)
        if (text.find(part) == std::string::npos) {
            all = false;
            MESSAGE("'", text, "' lacks '", part, "'");
        }
    return all;
}

void put(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
    const std::size_t at = text.find(what);
    REQUIRE_MESSAGE(at != std::string::npos, what);
    return text.replace(at, what.size(), with);
}

// Reads the text of some() with one part of it replaced.
std::string refusal_with(const folder& here, const std::string& what, const std::string& with) {
    put(here.file(), replaced(demo::calibration_text(some()), what, with));
    return refusal([&] { read_calibration(here.file()); });
}

// Refused before anything is written.
std::string refusal_of_writing(const std::function<void(calibration&)>& change) {
    const folder here;
    calibration value = some();
    change(value);
    const std::string sentence = refusal([&] { write_calibration(here.file(), value); });
    CHECK(here.entries() == 0);
    return sentence;
}

} // namespace

TEST_CASE("numbers come back bit for bit, and a file is put in the place of an older one") {
    const folder here;
    write_calibration(here.file(), some());
    check_same(read_calibration(here.file()), some());
    calibration other = some();
    other.costs.collectives.clear();
    other.costs.weight_bytes_per_us = 0;
    other.costs.attend_us = 0;
    for (const char* const transport : {"local", "nccl", "local_cuda"}) {
        other.transport = transport;
        write_calibration(here.file(), other);
        check_same(read_calibration(here.file()), other);
    }
    CHECK(here.entries() == 1);
}

TEST_CASE("a file cut off anywhere is refused") {
    const folder here;
    const std::string text = demo::calibration_text(some());
    for (std::size_t size = 0; size + 1 < text.size(); ++size) {
        put(here.file(), text.substr(0, size));
        const std::string sentence = refusal([&] { read_calibration(here.file()); });
        CHECK_MESSAGE(!sentence.empty(), size);
    }
    put(here.file(), text + "{}");
    CHECK(has_all(refusal([&] { read_calibration(here.file()); }), {here.file(), "damaged", "one whole JSON object"}));
}

TEST_CASE("every key must be there, once, and no other") {
    const folder here;
    const std::vector<std::string> keys = {"transport",
                                           "backend",
                                           "device",
                                           "ranks",
                                           "machine",
                                           "costs",
                                           "model",
                                           "read_bytes_per_us",
                                           "flops_per_us",
                                           "attend_us",
                                           "merge_bytes_per_us",
                                           "merge_us",
                                           "weight_bytes_per_us",
                                           "collectives",
                                           "op",
                                           "size",
                                           "call_us",
                                           "attention",
                                           "heads",
                                           "kv_heads",
                                           "query_width",
                                           "value_width",
                                           "bytes_per_token",
                                           "layers",
                                           "partial_bytes",
                                           "output_bytes"};
    for (const std::string& key : keys) {
        INFO(key);
        CHECK(has_all(refusal_with(here, "\"" + key + "\":", "\"other\":"), {here.file(), key, "missing"}));
        CHECK(has_all(refusal_with(here, "\"" + key + "\":", "\"other\": 1, \"" + key + "\":"),
                      {here.file(), "other", "not known", key}));
        CHECK(has_all(refusal_with(here, "\"" + key + "\":", "\"" + key + "\": 1, \"" + key + "\":"),
                      {here.file(), "key " + key, "twice"}));
    }
    const std::string entry = refusal_with(here, "\"size\": 2", "\"sizes\": 2");
    CHECK(has_all(entry, {"costs.collectives[1].size", "missing"}));
}

TEST_CASE("three costs may be left out, for 0; all others of theirs hold") {
    const folder here;
    std::string text = demo::calibration_text(some());
    for (const std::string key : {"request_us", "row_numbers_per_us", "serial_share"}) {
        CHECK(has_all(refusal_with(here, "\"" + key + "\":", "\"other\":"), {here.file(), "other", "not known", key}));
        CHECK(has_all(refusal_with(here, "\"" + key + "\":", "\"" + key + "\": 1, \"" + key + "\":"), {key, "twice"}));
        const std::size_t first = text.find("\"" + key + "\"");
        text.erase(first, text.find('\n', first) - first);
    }
    put(here.file(), text);
    calibration wanted = some();
    wanted.costs.request_us = wanted.costs.row_numbers_per_us = wanted.costs.serial_share = 0;
    check_same(read_calibration(here.file()), wanted);
}

TEST_CASE("another version is refused for that, whatever its keys are") {
    const folder here;
    for (const std::string version : {"0", "1", "3", "2.0", "\"2\"", "null", "18446744073709551618"}) {
        put(here.file(), "{\"ctxpar_calibration\": " + version + ", \"else\": []}");
        CHECK(has_all(refusal([&] { read_calibration(here.file()); }), {here.file(), "ctxpar_calibration is", "be 2"}));
    }
    for (const std::string text : {"{}", "[]", "3", "{\"transport\": \"mpi\"}"}) {
        put(here.file(), text);
        CHECK(has_all(refusal([&] { read_calibration(here.file()); }), {here.file(), "no ctxpar_calibration"}));
    }
}

TEST_CASE("words that are not known and values of another kind are refused by key, value and what is legal") {
    const folder here;
    const auto refused = [&](const std::string& what, const std::string& with, const std::vector<std::string>& parts) {
        INFO(with);
        const std::string sentence = refusal_with(here, what, with);
        CHECK(has_all(sentence, parts));
        CHECK(has_all(sentence, {here.file()}));
    };
    refused("\"mpi\"", "\"tcp\"", {"transport is \"tcp\"", "local, mpi, nccl, local_cuda"});
    refused("\"cuda\"", "\"rocm\"", {"backend is \"rocm\"", "cpu, cuda"});
    refused("\"mla\"", "\"mha\"", {"model.attention is \"mha\"", "gqa, mla"});
    refused("\"all_to_all\"", "\"broadcast\"",
            {"costs.collectives[0].op is \"broadcast\"", "all_gather, all_to_all, reduce_scatter, all_reduce"});
    refused("\"all_gather\"", "7", {"costs.collectives[1].op is 7", "a text"});
    refused("\"mpi\"", "1", {"transport is 1", "a text"});
    refused("\"ranks\": 5", "\"ranks\": 1", {"ranks is 1", "from 2"});
    refused("\"ranks\": 5", "\"ranks\": 2.5", {"ranks is 2.5", "whole number"});
    refused("\"GPU \\\"0\\\"\"", "0", {"device is 0", "a text"});
    refused("\"heads\": 24", "\"heads\": 24.5", {"model.heads is 24.5", "whole number"});
    refused("\"heads\": 24", "\"heads\": 0", {"model.heads is 0", "from 1 to 1048576"});
    refused("\"heads\": 24", "\"heads\": -24", {"model.heads is -24"});
    refused("\"heads\": 24", "\"heads\": 18446744073709551608", {"model.heads is 18446744073709551608"});
    refused("\"heads\": 24", "\"heads\": 1048577", {"model.heads is 1048577", "1048576"});
    refused("\"kv_heads\": 3", "\"kv_heads\": 5", {"model.kv_heads is 5", "divisor of the 24 heads"});
    refused("\"layers\": 61", "\"layers\": true", {"model.layers is true", "whole number"});
    refused("\"size\": 8", "\"size\": 1", {"costs.collectives[0].size is 1", "from 2"});
    refused("\"size\": 8", "\"size\": 4294967298", {"costs.collectives[0].size is 4294967298"});
    refused("4096.0", "\"fast\"", {"costs.merge_bytes_per_us is \"fast\"", "a number"});
    refused("4096.0", "0", {"costs.merge_bytes_per_us is 0", "above 0"});
    refused("4096.0", "-3.5", {"costs.merge_bytes_per_us is -3.5", "above 0"});
    refused("4096.0", "1e999", {"damaged"});
    refused("4096.0", "NaN", {"damaged"});
    refused("0.1,", "-0.1,", {"costs.collectives[1].call_us is -0.1", "at least 0"});
    refused("\"all_reduce\",\n    \"size\": 2", "\"all_gather\",\n    \"size\": 2",
            {"costs.collectives[2] is all_gather over 2 ranks", "another op or size"});
    put(here.file(), replaced(demo::calibration_text(some()), "\"collectives\": [", "\"collectives\": 5, \"x\": ["));
    CHECK(!refusal([&] { read_calibration(here.file()); }).empty());
}

TEST_CASE("what can not be read would not be written") {
    const auto refused = [](const std::function<void(calibration&)>& change, const std::vector<std::string>& parts) {
        CHECK(has_all(refusal_of_writing(change), parts));
    };
    for (const double bad : {0.0, -1.0, infinity, not_a_number}) {
        refused([=](calibration& c) { c.costs.read_bytes_per_us = bad; }, {"costs.read_bytes_per_us", "above 0"});
        refused([=](calibration& c) { c.costs.flops_per_us = bad; }, {"costs.flops_per_us", "above 0"});
        refused([=](calibration& c) { c.costs.merge_bytes_per_us = bad; }, {"costs.merge_bytes_per_us", "above 0"});
        refused([=](calibration& c) { c.costs.collectives[3].bytes_per_us = bad; }, {"collectives[3].bytes_per_us"});
        if (bad == 0) continue;
        refused([=](calibration& c) { c.costs.attend_us = bad; }, {"costs.attend_us", "at least 0"});
        refused([=](calibration& c) { c.costs.merge_us = bad; }, {"costs.merge_us", "at least 0"});
        refused([=](calibration& c) { c.costs.request_us = bad; }, {"costs.request_us", "at least 0"});
        refused([=](calibration& c) { c.costs.row_numbers_per_us = bad; }, {"costs.row_numbers_per_us"});
        refused([=](calibration& c) { c.costs.serial_share = bad; }, {"costs.serial_share"});
        refused([=](calibration& c) { c.costs.weight_bytes_per_us = bad; }, {"costs.weight_bytes_per_us"});
        refused([=](calibration& c) { c.costs.collectives[0].call_us = bad; }, {"collectives[0].call_us"});
    }
    refused([](calibration& c) { c.costs.serial_share = 1.25; }, {"costs.serial_share is 1.25", "from 0 to 1"});
    refused([](calibration& c) { c.transport = "nvlink"; }, {"transport", "nvlink"});
    refused([](calibration& c) { c.machine = "\xff"; }, {"machine is not UTF-8"});
    refused([](calibration& c) { c.device = "\xff"; }, {"device or machine is not UTF-8"});
    refused([](calibration& c) { c.ranks = 1; }, {"ranks is 1"});
    refused([](calibration& c) { c.layers = 0; }, {"model.layers is 0"});
    refused([](calibration& c) { c.kv_heads = -1; }, {"model.kv_heads is -1"});
    refused([](calibration& c) { c.model.query_width = 0; }, {"model.query_width is 0"});
    refused([](calibration& c) { c.model.value_width = 0; }, {"model.value_width is 0"});
    refused([](calibration& c) { c.model.bytes_per_token = 0; }, {"model.bytes_per_token is 0"});
    refused([](calibration& c) { c.model.partial_bytes = 0; }, {"model.partial_bytes is 0"});
    refused([](calibration& c) { c.model.output_bytes = 0; }, {"model.output_bytes is 0"});
}

TEST_CASE("places where no file is or can be are refused at once") {
    const folder here;
    CHECK(has_all(refusal([&] { read_calibration(here.file()); }), {here.file(), "not there"}));
    CHECK(has_all(refusal([&] { read_calibration(here.path.string()); }), {"plain file"}));
    REQUIRE(::mkfifo(here.file().c_str(), 0600) == 0);
    CHECK(has_all(refusal([&] { read_calibration(here.file()); }), {"plain file"}));
    fs::remove(here.file());
    put(here.file(), std::string((std::size_t{1} << 20) + 1, ' '));
    CHECK(has_all(refusal([&] { read_calibration(here.file()); }), {"1048577 bytes"}));
    fs::remove(here.file());
    CHECK(has_all(refusal([&] { write_calibration((here.path / "no" / "file").string(), some()); }), {"written"}));
    CHECK(has_all(refusal([&] { write_calibration(here.path.string(), some()); }), {"folder"}));
    CHECK(has_all(refusal([&] { demo::check_calibration_place((here.path / "no" / "file").string()); }), {"written"}));
    CHECK(has_all(refusal([&] { demo::check_calibration_place(here.path.string()); }), {"folder"}));
    CHECK(has_all(refusal([] { demo::check_calibration_place(""); }), {"written"}));
    CHECK(refusal([&] { demo::check_calibration_place(here.file()); }).empty());
    CHECK(refusal([] { demo::check_calibration_place("machine.json"); }).empty());
    CHECK(here.entries() == 0);
}
