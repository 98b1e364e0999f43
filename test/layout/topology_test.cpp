// The rules about sizes, against a reference that deals out heads and ranks one by one.
#include <ctxpar/layout/topology.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace ctxpar;
using numbers = std::vector<std::int64_t>;

constexpr attention_kind gqa_kind = attention_kind::gqa;
constexpr attention_kind mla_kind = attention_kind::mla;

// Deals `things` out to `takers` in equal parts; false where something is left over.
bool deals_evenly(std::int64_t things, std::int64_t takers) {
    std::int64_t dealt = 0;
    while (dealt < things) dealt += takers;
    return dealt == things;
}

// The KV heads that a tp rank needs: those of its own query heads.
std::set<std::int64_t> kv_heads_of(std::int64_t t, const topology& sizes, const model_heads& heads) {
    std::set<std::int64_t> needed;
    const std::int64_t own = heads.q_heads / sizes.tp;
    for (std::int64_t h = t * own; h < (t + 1) * own; ++h) needed.insert(h / (heads.q_heads / heads.kv_heads));
    return needed;
}

// The code of the first broken rule, "" for none, found by cutting the ranks of one (pcp, tp) plane into DCP groups.
std::string reference_rule(const topology& sizes, const model_heads& heads, topology_rules rules) {
    const auto [tp, pcp, dcp, dp, pp, external_dp] = sizes;
    if (tp < 1 || pcp < 1 || dcp < 1 || dp < 1 || pp < 1 || external_dp < 1) return "size";
    if (heads.kv_heads < 1 || heads.q_heads < 0 || (heads.kind == gqa_kind && heads.q_heads == 0)) return "size";
    if (!deals_evenly(heads.q_heads, tp)) return "q_heads_per_tp";
    if (!deals_evenly(heads.q_heads, heads.kv_heads)) return "q_heads_per_kv";
    if (!deals_evenly(heads.kv_heads, tp) && !deals_evenly(tp, heads.kv_heads)) return "kv_heads_per_tp";
    if (rules == topology_rules::vllm && pcp > 1 && dp > 1) return "pcp_with_dp";

    std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> groups; // (tp, pcp)
    for (std::int64_t t = 0; t < tp; ++t) {
        for (std::int64_t c = 0; c < pcp; ++c) {
            if (groups.empty() || static_cast<std::int64_t>(groups.back().size()) == dcp) groups.emplace_back();
            groups.back().emplace_back(t, c);
        }
    }
    for (const auto& group : groups) {
        std::set<std::int64_t> ts, cs;
        for (const auto& [t, c] : group) {
            ts.insert(t);
            cs.insert(c);
        }
        const bool full = static_cast<std::int64_t>(group.size()) == dcp;
        const bool rectangle = ts.size() * cs.size() == group.size();
        if (!full || !rectangle) return "dcp_shape";
        if (rules == topology_rules::vllm && pcp > 1 && dcp != 1 && dcp != pcp && dcp != tp * pcp) return "dcp_shape";
    }
    if (heads.kind == mla_kind) return "";
    for (const auto& group : groups) {
        std::set<std::int64_t> ts, held;
        for (const auto& [t, c] : group) {
            ts.insert(t);
            held.merge(kv_heads_of(t, sizes, heads));
        }
        if (ts.size() > 1 && held.size() != 1) return "dcp_kv_heads";
    }
    return "";
}

struct refusal {
    std::string code, text;
    numbers legal;
};

refusal ask(const topology& sizes, const model_heads& heads, topology_rules rules) {
    try {
        check_topology(sizes, heads, rules);
    } catch (const config_error& problem) {
        return {problem.code(), problem.what(), problem.legal()};
    }
    return {};
}

// Every value of one field, 1..largest, with which the reference finds nothing broken.
template <class Put>
numbers reference_legal(topology sizes, model_heads heads, topology_rules rules, std::int64_t largest, Put put) {
    numbers legal;
    for (std::int64_t value = 1; value <= largest; ++value) {
        put(sizes, heads, value);
        if (reference_rule(sizes, heads, rules).empty()) legal.push_back(value);
    }
    return legal;
}

void put_tp(topology& sizes, model_heads&, std::int64_t value) {
    sizes.tp = value;
}
void put_dcp(topology& sizes, model_heads&, std::int64_t value) {
    sizes.dcp = value;
}
void put_dp(topology& sizes, model_heads&, std::int64_t value) {
    sizes.dp = value;
}
void put_kv(topology&, model_heads& heads, std::int64_t value) {
    heads.kv_heads = value;
}

std::string listed(const numbers& values) {
    std::string text;
    for (const std::int64_t value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
    return text;
}

// The advice of a refusal: complete, accepted when followed, and said in the sentence under the field's name.
void check_advice(const refusal& got, const topology& sizes, const model_heads& heads, topology_rules rules) {
    CAPTURE(got.text);
    numbers expected;
    std::string said;
    if (got.code == "dcp_shape" || got.code == "dcp_kv_heads") {
        expected = reference_legal(sizes, heads, rules, sizes.tp * sizes.pcp, put_dcp);
        CHECK_FALSE(expected.empty());
        said = "dcp may be ";
    } else if (got.code == "q_heads_per_kv") {
        expected = reference_legal(sizes, heads, rules, heads.q_heads, put_kv);
        said = "kv_heads may be ";
    } else if (got.code == "pcp_with_dp") {
        expected = reference_legal(sizes, heads, rules, 1, put_dp);
        topology alone = sizes;
        alone.dp = 1;
        CHECK(got.text.find("dp 1 is legal with dcp " +
                            listed(reference_legal(alone, heads, rules, sizes.tp * sizes.pcp, put_dcp))) !=
              std::string::npos);
    } else if (got.code == "kv_heads_per_tp" || deals_evenly(heads.q_heads, heads.kv_heads)) {
        expected = reference_legal(sizes, heads, rules, heads.q_heads, put_tp);
        said = "tp may be ";
    } else { // neither tp nor kv_heads suits the query heads: they are what must change
        for (const std::int64_t q_heads : got.legal) {
            CHECK(reference_rule(sizes, {heads.kind, q_heads, heads.kv_heads}, rules).empty());
            CHECK(ask(sizes, {heads.kind, q_heads, heads.kv_heads}, rules).code.empty());
        }
        return;
    }
    CHECK(got.legal == expected);
    if (!expected.empty()) CHECK(got.text.find(said + listed(expected)) != std::string::npos);
    if (expected.empty() && !said.empty()) CHECK(got.text.find(" with dcp 1") != std::string::npos);
}

TEST_CASE("the rules agree with a count of heads and ranks, and every advice is legal and complete") {
    std::vector<model_heads> models = {{mla_kind, 0, 1}, {mla_kind, 12, 1}};
    for (const std::int64_t q_heads : {6, 8, 12, 24, 30}) {
        for (const std::int64_t kv_heads : {1, 2, 3, 4, 8}) models.push_back({gqa_kind, q_heads, kv_heads});
    }
    std::set<std::string> seen;
    for (const model_heads& heads : models) {
        for (const std::int64_t tp : {1, 2, 3, 4, 6, 8}) {
            for (std::int64_t pcp = 1; pcp <= 4; ++pcp) {
                for (std::int64_t dcp = 1; dcp <= tp * pcp + 1; ++dcp) {
                    for (const topology_rules rules : {topology_rules::general, topology_rules::vllm}) {
                        const topology sizes{.tp = tp, .pcp = pcp, .dcp = dcp, .dp = 1 + dcp % 2};
                        const refusal got = ask(sizes, heads, rules);
                        CAPTURE(tp);
                        CAPTURE(pcp);
                        CAPTURE(dcp);
                        CAPTURE(heads.q_heads);
                        CAPTURE(heads.kv_heads);
                        CHECK(got.code == reference_rule(sizes, heads, rules));
                        if (!got.code.empty()) check_advice(got, sizes, heads, rules);
                        seen.insert(got.code);
                    }
                }
            }
        }
    }
    CHECK(seen == std::set<std::string>{"", "q_heads_per_tp", "q_heads_per_kv", "kv_heads_per_tp", "pcp_with_dp",
                                        "dcp_shape", "dcp_kv_heads"});
}

TEST_CASE("legal_dcp lists, ascending, every size that is accepted, whatever size was given") {
    struct row {
        std::int64_t tp, pcp, kv_heads; // kv_heads 0: MLA
        numbers general, vllm;
    };
    const row rows[] = {{8, 1, 4, {1, 2}, {1, 2}},
                        {4, 1, 4, {1}, {1}},
                        {6, 1, 2, {1, 3}, {1, 3}},
                        {8, 1, 1, {1, 2, 4, 8}, {1, 2, 4, 8}},
                        {8, 1, 2, {1, 2, 4}, {1, 2, 4}},
                        {8, 1, 8, {1}, {1}},
                        {4, 2, 8, {1, 2}, {1, 2}},
                        {16, 2, 8, {1, 2, 4}, {1, 2}},
                        {4, 2, 1, {1, 2, 4, 8}, {1, 2, 8}},
                        {4, 2, 2, {1, 2, 4}, {1, 2}},
                        {4, 2, 4, {1, 2}, {1, 2}},
                        {2, 2, 1, {1, 2, 4}, {1, 2, 4}},
                        {8, 2, 2, {1, 2, 4, 8}, {1, 2}},
                        {2, 4, 8, {1, 2, 4}, {1, 4}},
                        {4, 2, 0, {1, 2, 4, 8}, {1, 2, 8}},
                        {2, 4, 0, {1, 2, 4, 8}, {1, 4, 8}},
                        {1, 4, 0, {1, 2, 4}, {1, 4}},
                        {3, 2, 0, {1, 2, 6}, {1, 2, 6}},
                        {8, 1, 0, {1, 2, 4, 8}, {1, 2, 4, 8}},
                        {6, 1, 0, {1, 2, 3, 6}, {1, 2, 3, 6}}};
    for (const row& each : rows) {
        const model_heads heads =
            each.kv_heads == 0 ? model_heads{mla_kind, 0, 1} : model_heads{gqa_kind, 48 * each.tp, each.kv_heads};
        CAPTURE(each.tp);
        CAPTURE(each.pcp);
        CAPTURE(each.kv_heads);
        for (const std::int64_t given : {1, 2, 0, 77}) {
            CHECK(legal_dcp({.tp = each.tp, .pcp = each.pcp, .dcp = given}, heads) == each.general);
            CHECK(legal_dcp({.tp = each.tp, .pcp = each.pcp, .dcp = given}, heads, topology_rules::vllm) == each.vllm);
        }
    }
    CHECK(legal_dcp({.tp = 4, .pcp = 2, .dp = 2}, {mla_kind, 0, 1}, topology_rules::vllm).empty());
}

TEST_CASE("a DCP group over several tp ranks holds exactly one KV head") {
    struct row {
        std::int64_t tp, kv_heads, q_heads, dcp;
        bool legal;
    };
    const row rows[] = {{8, 8, 64, 2, false},  {8, 4, 64, 2, true},  {8, 4, 64, 4, false},  {8, 2, 64, 4, true},
                        {6, 2, 12, 3, true},   {6, 2, 12, 2, false}, {12, 4, 24, 2, false}, {12, 4, 12, 3, true},
                        {12, 4, 12, 2, false}, {16, 4, 64, 4, true}, {16, 8, 64, 2, true},  {8, 1, 64, 8, true},
                        {4, 1, 4, 4, true},    {8, 3, 24, 2, false}};
    for (const row& each : rows) {
        CAPTURE(each.tp);
        CAPTURE(each.kv_heads);
        CAPTURE(each.dcp);
        for (const topology_rules rules : {topology_rules::general, topology_rules::vllm}) {
            const refusal got = ask({.tp = each.tp, .dcp = each.dcp}, {gqa_kind, each.q_heads, each.kv_heads}, rules);
            const char* refused = each.kv_heads == 3 ? "kv_heads_per_tp" : "dcp_kv_heads";
            CHECK(got.code == (each.legal ? "" : refused));
        }
    }
}

TEST_CASE("no check is skipped because another one fired") {
    const model_heads odd{gqa_kind, 30, 2};
    CHECK(ask({.tp = 4, .dcp = 3}, odd, topology_rules::general).code == "q_heads_per_tp");
    CHECK(ask({.tp = 4, .dcp = 3}, {gqa_kind, 32, 2}, topology_rules::general).code == "dcp_shape");
    CHECK(ask({.tp = 4, .dcp = 2}, odd, topology_rules::general).code == "q_heads_per_tp");
    CHECK(ask({.tp = 4, .dcp = 2}, {gqa_kind, 32, 2}, topology_rules::general).code.empty());
    CHECK(ask({.tp = 6, .dcp = 3}, odd, topology_rules::general).code.empty());
    CHECK(ask({.tp = 4, .dcp = 3}, odd, topology_rules::general).legal == numbers{6, 30});
}

TEST_CASE("refused sizes name the size, its value and what is accepted") {
    const topology good{.tp = 4, .pcp = 2, .dcp = 2, .dp = 1, .pp = 3, .external_dp = 2};
    const model_heads heads{gqa_kind, 32, 4};
    struct axis {
        const char* name;
        std::int64_t topology::*size;
        numbers legal;
    };
    const axis axes[] = {{"tp", &topology::tp, {1, 2, 4, 8, 16, 32}},
                         {"pcp", &topology::pcp, {2}},
                         {"dcp", &topology::dcp, {1, 2}},
                         {"dp", &topology::dp, {1}},
                         {"pp", &topology::pp, {1}},
                         {"external_dp", &topology::external_dp, {1}}};
    for (const axis& each : axes) {
        for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-7}, INT64_MIN}) {
            topology sizes = good;
            sizes.*each.size = bad;
            const refusal got = ask(sizes, heads, topology_rules::vllm);
            CAPTURE(got.text);
            CHECK(got.code == "size");
            CHECK(got.legal == each.legal);
            CHECK(got.text.find(std::string(each.name) + " is " + std::to_string(bad)) == 0);
            for (const std::int64_t value : got.legal) {
                sizes.*each.size = value;
                CHECK(ask(sizes, heads, topology_rules::vllm).code.empty());
            }
        }
    }
    CHECK(ask({.tp = 0, .pcp = 2, .dcp = 6}, {mla_kind, 0, 1}, topology_rules::general).legal == numbers{3});
    CHECK(ask({.tp = 0, .dcp = 0}, {mla_kind, 0, 1}, topology_rules::general).legal.empty());
}

TEST_CASE("refused head counts name an accepted one") {
    const topology sizes{.tp = 4, .dcp = 2};
    const auto check = [&](const model_heads& heads, const numbers& legal, bool query) {
        const refusal got = ask(sizes, heads, topology_rules::general);
        CAPTURE(got.text);
        CHECK(got.code == "size");
        CHECK(got.legal == legal);
        for (const std::int64_t value : got.legal) {
            const model_heads put =
                query ? model_heads{heads.kind, value, heads.kv_heads} : model_heads{heads.kind, heads.q_heads, value};
            CHECK(ask(sizes, put, topology_rules::general).code.empty());
        }
    };
    check({gqa_kind, 0, 2}, {4}, true);
    check({gqa_kind, -1, 2}, {4}, true);
    check({mla_kind, -1, 1}, {4}, true);
    check({gqa_kind, 32, 0}, {1, 2}, false);
    check({gqa_kind, 32, INT64_MIN}, {1, 2}, false);
    check({mla_kind, 32, 4}, {1}, false);
    check({gqa_kind, 0, 0}, {}, true);
    CHECK(ask(sizes, {mla_kind, 0, 1}, topology_rules::general).code.empty());

    const refusal unfit = ask({.tp = 4, .dcp = 2}, {gqa_kind, 31, 2}, topology_rules::general);
    CHECK(unfit.code == "q_heads_per_tp");
    CHECK(unfit.legal == numbers{28, 32});
    CHECK(unfit.text.find("q_heads may be 28, 32") != std::string::npos);
}

TEST_CASE("products past 31 and 63 bits are refused, never wrapped") {
    const model_heads mla_heads{mla_kind, 0, 1};
    const std::int64_t largest = 2147483647;
    CHECK(ask({.tp = largest}, mla_heads, topology_rules::general).code.empty());
    CHECK(ask({.tp = largest, .dcp = largest}, mla_heads, topology_rules::vllm).code.empty());
    CHECK(ask({.tp = largest + 1}, mla_heads, topology_rules::general).code == "size");
    CHECK(ask({.tp = 65536, .pcp = 65536}, mla_heads, topology_rules::general).code == "size");
    // 2^32 * 2^32 would be 0 and 2^33 * 2^31 = 1 in wrapped arithmetic.
    CHECK(ask({.tp = std::int64_t{1} << 32, .pcp = std::int64_t{1} << 32}, mla_heads, topology_rules::general).code ==
          "size");
    CHECK(ask({.tp = INT64_MAX,
               .pcp = INT64_MAX,
               .dcp = INT64_MAX,
               .dp = INT64_MAX,
               .pp = INT64_MAX,
               .external_dp = INT64_MAX},
              {gqa_kind, INT64_MAX, INT64_MAX}, topology_rules::vllm)
              .code == "size");
    const refusal world = ask({.tp = 8, .dp = std::int64_t{1} << 29}, mla_heads, topology_rules::general);
    CHECK(world.text.find("2147483647") != std::string::npos);
    CHECK(ask({.tp = 8, .dcp = INT64_MAX}, mla_heads, topology_rules::general).code == "dcp_shape");

    // Head counts may be of any size; the list in a refusal stays short and quick.
    CHECK(ask({.tp = 1 << 20}, {gqa_kind, std::int64_t{1} << 62, std::int64_t{1} << 40}, topology_rules::general)
              .code.empty());
    const refusal prime = ask({.tp = 2}, {gqa_kind, INT64_MAX - 24, 1}, topology_rules::general); // a prime number
    CHECK(prime.code == "q_heads_per_tp");
    CHECK(prime.legal == numbers{1});
    CHECK(ask({.tp = largest}, {gqa_kind, INT64_MAX, INT64_MAX - 1}, topology_rules::general).code == "q_heads_per_tp");
}

TEST_CASE("distinct_tp counts the tp coordinates of a DCP group") {
    CHECK(distinct_tp({.tp = 4, .pcp = 2, .dcp = 1}) == 1);
    CHECK(distinct_tp({.tp = 4, .pcp = 2, .dcp = 2}) == 1);
    CHECK(distinct_tp({.tp = 4, .pcp = 2, .dcp = 4}) == 2);
    CHECK(distinct_tp({.tp = 4, .pcp = 2, .dcp = 8}) == 4);
    CHECK(distinct_tp({.tp = 2, .pcp = 4, .dcp = 2}) == 1);
    CHECK(distinct_tp({.tp = 6, .pcp = 1, .dcp = 3}) == 3);
}

} // namespace
