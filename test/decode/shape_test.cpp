// What a decoder is made for: groups that may be left out, and those that may not.
#include <doctest/doctest.h>

#include <string>

#include <ctxpar/comm/local.hpp>
#include <ctxpar/decode/shape.hpp>

using namespace ctxpar;

namespace {

decode_shape shape_of(const topology& sizes) {
    decode_shape shape;
    shape.sizes = sizes;
    shape.q_heads = 32;
    shape.longest = 64;
    return shape;
}

mesh mesh_of(const decode_shape& shape) {
    return {shape.sizes, {attention_kind::mla, shape.q_heads, 1}, shape.rules};
}

std::string refusal(const groups<local_communicator>& given, const decode_shape& shape, bool gathers_again) {
    try {
        detail::resolve_groups(given, mesh_of(shape), shape, gathers_again);
    } catch (const config_error& refused) {
        return refused.code() + ": " + refused.what();
    }
    return "";
}

} // namespace

TEST_CASE("inside TP the kv group serves as query group, over PCP as heads group") {
    local_world world(4, local_options{});
    local_communicator kv = world.rank(2);
    const decode_shape inside = shape_of({.tp = 4, .dcp = 4});
    const auto over_tp = detail::resolve_groups(groups<local_communicator>{&kv}, mesh_of(inside), inside, false);
    CHECK(over_tp.query == &kv);
    CHECK(over_tp.heads == nullptr);
    const decode_shape over = shape_of({.tp = 1, .pcp = 4, .dcp = 4});
    const auto over_pcp = detail::resolve_groups(groups<local_communicator>{&kv}, mesh_of(over), over, true);
    CHECK(over_pcp.query == nullptr);
    CHECK(over_pcp.heads == &kv);
}

TEST_CASE("a group of the wrong size, or none, is refused with both sizes") {
    local_world world(2, local_options{});
    local_communicator two = world.rank(0);
    const decode_shape four = shape_of({.tp = 4, .dcp = 4});
    CHECK(refusal({&two}, four, false) == "group: the kv group has 2 ranks; this topology needs 4");
    CHECK(refusal({}, four, false) == "group: the kv group has 1 ranks; this topology needs 4 (none was given)");
    CHECK(refusal({}, shape_of({.tp = 4, .dcp = 1}), false).empty());
}

TEST_CASE("a group that spans TP and PCP needs its query and heads groups") {
    local_world kv_world(4, local_options{});
    local_world pair(2, local_options{});
    local_communicator kv = kv_world.rank(2); // tp coordinate 1 of 2, pcp coordinate 0 of 2
    local_communicator member = pair.rank(1);
    decode_shape shape = shape_of({.tp = 2, .pcp = 2, .dcp = 4});
    CHECK(refusal({&kv}, shape, false) == "group: the query group has 1 ranks; this topology needs 2 (none was given)");
    CHECK(refusal({&kv, &member}, shape, false).empty());
    CHECK(refusal({&kv, &member}, shape, true) ==
          "group: the heads group has 1 ranks; this topology needs 2 (none was given)");
    // In the heads group rank 2 of the kv group is rank 0.
    CHECK(refusal({&kv, &member, &member}, shape, true) ==
          "group: this rank is rank 1 of the heads group; by the order of the mesh it must be rank 0");
    shape.replicated_q = true;
    CHECK(refusal({&kv}, shape, false).empty());
}

TEST_CASE("a rank that is named must have its place in the kv group") {
    local_world world(4, local_options{});
    local_communicator kv = world.rank(1);
    decode_shape shape = shape_of({.tp = 2, .pcp = 2, .dcp = 4});
    shape.replicated_q = true;
    shape.rank = 1; // tp 1, pcp 0: place 2 of [0 2 1 3]
    CHECK(refusal({&kv}, shape, false).find("rank 1 of the mesh is rank 2 of its kv group") != std::string::npos);
    shape.rank = 2; // tp 0, pcp 1: place 1
    CHECK(refusal({&kv}, shape, false).empty());
}

TEST_CASE("sizes of a shape that make no sense are refused by name") {
    const auto code_with = [](auto change) -> std::string {
        decode_shape shape = shape_of({});
        change(shape);
        try {
            detail::check_decode_shape(shape);
        } catch (const config_error& refused) {
            return refused.what();
        }
        return "";
    };
    CHECK(code_with([](decode_shape&) {}).empty());
    CHECK(code_with([](decode_shape& s) { s.max_rows = 0; }) == "a decode shape has max_rows 0; it must be at least 1");
    CHECK(code_with([](decode_shape& s) { s.longest = -3; }) == "a decode shape has longest -3; it must be at least 1");
    CHECK(code_with([](decode_shape& s) { s.pool_blocks = -2; }).find("pool_blocks -2") != std::string::npos);
    CHECK(code_with([](decode_shape& s) { s.max_requests = 0; }).find("max_requests 0") != std::string::npos);
    CHECK(code_with([](decode_shape& s) { s.max_splits = 0; }).find("max_splits 0") != std::string::npos);
}
