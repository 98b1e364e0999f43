// A merge chosen at run time is the one that was chosen, bit by bit.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include <ctxpar/merge/dynamic.hpp>

#include "merge_laws.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

namespace {

template <class Static, class P>
void check_same(Static fixed, merge_kind kind, const plain::partials<P>& from, bool dense) {
    const merge::dynamic chosen{kind};
    const exchange_shape shape = shape_of(from, dense);
    CHECK(std::string(chosen.name()) == fixed.name());
    CHECK(chosen.scatters_heads() == fixed.scatters_heads());
    CHECK(chosen.knows_all_lse() == fixed.knows_all_lse());
    CHECK(chosen.leaves_partial_sums() == leaves_partial_sums(fixed));
    CHECK(carved_bytes<P, lse_base::natural>(chosen, shape) == carved_bytes<P, lse_base::natural>(fixed, shape));
    collective_schedule of_chosen, of_fixed;
    chosen.schedule(shape, of_chosen);
    fixed.schedule(shape, of_fixed);
    CHECK(of_chosen.count == of_fixed.count);
    for (std::size_t i = 0; i < static_cast<std::size_t>(of_fixed.count); ++i) {
        CHECK(of_chosen.calls[i].op == of_fixed.calls[i].op);
        CHECK(of_chosen.calls[i].bytes == of_fixed.calls[i].bytes);
    }
    for (const transport over : {transport::peers, transport::bytes}) {
        const run_options options{.over = over, .sinks = true, .dense_partials = dense, .shares = true};
        CHECK(same_bits(run_merge<float, lse_base::natural, lse_base::natural>(chosen, from, options),
                        run_merge<float, lse_base::natural, lse_base::natural>(fixed, from, options)));
    }
}

template <class P>
void check_kinds(std::int64_t width) {
    const plain::partials<P> from(4, 3, 8, width, 120);
    for (const bool dense : {false, true}) {
        check_same(merge::ag_rs{}, merge_kind::ag_rs, from, dense);
        check_same(merge::ag_ar{}, merge_kind::ag_ar, from, dense);
        check_same(merge::a2a{}, merge_kind::a2a, from, dense);
        check_same(merge::deferred{}, merge_kind::deferred, from, dense);
    }
}

} // namespace

TEST_CASE("A merge chosen at run time has the bits, the memory and the calls of the one it names") {
    check_kinds<float>(6);
    check_kinds<bf16>(6);
    check_kinds<bf16>(5);
}

TEST_CASE("Merges have names, and a name that is none is refused with those there are") {
    CHECK(merge_named("ag_rs") == merge_kind::ag_rs);
    CHECK(merge_named("ag_ar") == merge_kind::ag_ar);
    CHECK(merge_named("a2a") == merge_kind::a2a);
    CHECK(merge_named("deferred") == merge_kind::deferred);
    for (const merge_kind kind : {merge_kind::ag_rs, merge_kind::ag_ar, merge_kind::a2a, merge_kind::deferred})
        CHECK(merge_named(merge::dynamic{kind}.name()) == kind);
    for (const std::string name : {"", "A2A", "ring", "deferred "}) {
        std::string code, sentence;
        try {
            merge_named(name);
        } catch (const config_error& problem) {
            code = problem.code();
            sentence = problem.what();
        }
        CHECK(code == "merge");
        CHECK(sentence.find("'" + name + "'") != std::string::npos);
        CHECK(sentence.find("ag_rs, ag_ar, a2a and deferred") != std::string::npos);
    }
    CHECK(merge::dynamic{}.kind == merge_kind::a2a);
}
