// The sizes of a parallel deployment, and the rules that say which of them are legal together.
//
// One function, check_topology, holds every rule and reports the first one broken, in this order:
//
//   size              every size and head count >= 1, and the world has at most 2^31 - 1 ranks
//   q_heads_per_tp    q_heads mod tp == 0
//   q_heads_per_kv    q_heads mod kv_heads == 0
//   kv_heads_per_tp   kv_heads mod tp == 0 or tp mod kv_heads == 0
//   pcp_with_dp       rules vllm only: not pcp > 1 together with dp > 1
//   dcp_shape         general: dcp divides tp*pcp, and dcp divides pcp or pcp divides dcp
//                     vllm: pcp == 1: dcp divides tp; pcp > 1: dcp is 1, pcp or tp*pcp
//   dcp_kv_heads      GQA: m == 1, or tp mod kv_heads == 0 and (tp/kv_heads) mod m == 0
//
// where m is the number of different tp coordinates in one DCP group. The last rule says that a group which spans
// several tp coordinates holds exactly one KV head. MLA counts as one KV head, held by every rank.
//
// A refusal lists values of one field, named in its sentence, that these same rules accept with every other value as
// it was given.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <ctxpar/core/error.hpp>

namespace ctxpar::inline v0_1 {

enum class attention_kind { gqa, mla };

// Which set of rules decides. `vllm` narrows the general rules to the group shapes that engines of that kind make.
enum class topology_rules { general, vllm };

// The sizes of the axes. The world has external_dp*dp*pp*pcp*tp ranks; DCP regroups those and adds none.
struct topology {
    std::int64_t tp = 1;
    std::int64_t pcp = 1;
    std::int64_t dcp = 1; // ranks that share one KV cache
    std::int64_t dp = 1;
    std::int64_t pp = 1;
    std::int64_t external_dp = 1;

    friend constexpr bool operator==(const topology&, const topology&) = default;
};

// Head counts of the whole model.
struct model_heads {
    attention_kind kind = attention_kind::gqa;
    std::int64_t q_heads = 0;  // 0 = not known; legal for MLA only
    std::int64_t kv_heads = 1; // 1 for MLA

    friend constexpr bool operator==(const model_heads&, const model_heads&) = default;
};

// Communicators number their ranks with int.
inline constexpr std::int64_t max_world_size = 2147483647;

// m, the number of different tp coordinates in one DCP group of a legal topology.
constexpr std::int64_t distinct_tp(const topology& sizes) {
    return sizes.pcp % sizes.dcp == 0 ? 1 : sizes.dcp / sizes.pcp;
}

namespace detail {

struct topology_axis {
    const char* name;
    std::int64_t topology::*size;
};

inline constexpr topology_axis topology_axes[] = {{"tp", &topology::tp},   {"pcp", &topology::pcp},
                                                  {"dcp", &topology::dcp}, {"dp", &topology::dp},
                                                  {"pp", &topology::pp},   {"external_dp", &topology::external_dp}};

// Everything the rules look at.
struct topology_question {
    topology sizes;
    model_heads heads;
    topology_rules rules;
};

constexpr bool heads_known(const model_heads& heads) {
    return heads.kind == attention_kind::gqa || heads.q_heads != 0;
}

// Ranks of the world, or 0 where there are more than max_world_size. Every size is at least 1.
constexpr std::int64_t world_or_zero(const topology& sizes) {
    std::int64_t world = 1;
    for (const std::int64_t size : {sizes.external_dp, sizes.dp, sizes.pp, sizes.pcp, sizes.tp}) {
        if (size > max_world_size / world) return 0;
        world *= size;
    }
    return world;
}

constexpr bool sizes_hold(const topology_question& ask) {
    for (const topology_axis& axis : topology_axes) {
        if (ask.sizes.*axis.size < 1) return false;
    }
    const bool heads_hold = ask.heads.kind == attention_kind::mla ? ask.heads.q_heads >= 0 && ask.heads.kv_heads == 1
                                                                  : ask.heads.q_heads >= 1 && ask.heads.kv_heads >= 1;
    return heads_hold && world_or_zero(ask.sizes) != 0;
}

constexpr bool dcp_shape_holds(const topology& sizes, topology_rules rules) {
    const std::int64_t plane = sizes.tp * sizes.pcp;
    if (plane % sizes.dcp != 0) return false;
    if (rules == topology_rules::vllm && sizes.pcp > 1) {
        return sizes.dcp == 1 || sizes.dcp == sizes.pcp || sizes.dcp == plane;
    }
    return sizes.pcp % sizes.dcp == 0 || sizes.dcp % sizes.pcp == 0;
}

constexpr bool dcp_kv_heads_hold(const topology& sizes, const model_heads& heads) {
    const std::int64_t m = distinct_tp(sizes);
    if (heads.kind == attention_kind::mla || m == 1) return true;
    return sizes.tp % heads.kv_heads == 0 && sizes.tp / heads.kv_heads % m == 0;
}

// The code of the first rule broken, or null. Every rule of the library about topologies is asked here.
constexpr const char* broken_rule(const topology_question& ask) {
    const topology& sizes = ask.sizes;
    const model_heads& heads = ask.heads;
    if (!sizes_hold(ask)) return "size";
    if (heads.q_heads % sizes.tp != 0) return "q_heads_per_tp";
    if (heads.q_heads % heads.kv_heads != 0) return "q_heads_per_kv";
    if (heads.kv_heads % sizes.tp != 0 && sizes.tp % heads.kv_heads != 0) return "kv_heads_per_tp";
    if (ask.rules == topology_rules::vllm && sizes.pcp > 1 && sizes.dp > 1) return "pcp_with_dp";
    if (!dcp_shape_holds(sizes, ask.rules)) return "dcp_shape";
    if (!dcp_kv_heads_hold(sizes, heads)) return "dcp_kv_heads";
    return nullptr;
}

// Divisors of `value`, ascending, none above max_world_size. All of them for values below 2^32; for larger ones, whose
// search would take too long for a refusal, those that are or pair with a number up to 2^16.
inline std::vector<std::int64_t> candidate_divisors(std::int64_t value) {
    std::vector<std::int64_t> found;
    for (std::int64_t small = 1; small <= 65536 && small <= value / small; ++small) {
        if (value % small != 0) continue;
        found.push_back(small);
        if (value / small != small && value / small <= max_world_size) found.push_back(value / small);
    }
    std::sort(found.begin(), found.end());
    return found;
}

// The candidates that, put in place by `put(question, candidate)`, make a question that no rule refuses; ascending.
template <class Put>
std::vector<std::int64_t> accepted(const topology_question& ask, const std::vector<std::int64_t>& candidates, Put put) {
    std::vector<std::int64_t> legal;
    for (const std::int64_t candidate : candidates) {
        topology_question changed = ask;
        put(changed, candidate);
        if (broken_rule(changed) == nullptr) legal.push_back(candidate);
    }
    std::sort(legal.begin(), legal.end());
    legal.erase(std::unique(legal.begin(), legal.end()), legal.end());
    return legal;
}

inline std::vector<std::int64_t> accepted_sizes(const topology_question& ask, std::int64_t topology::*axis,
                                                const std::vector<std::int64_t>& candidates) {
    return accepted(ask, candidates,
                    [axis](topology_question& changed, std::int64_t size) { changed.sizes.*axis = size; });
}

// Every dcp that the rules accept. Any legal shape divides pcp, or is pcp times a divisor of tp.
inline std::vector<std::int64_t> accepted_dcp(const topology_question& ask) {
    std::vector<std::int64_t> candidates = candidate_divisors(ask.sizes.pcp);
    for (const std::int64_t m : candidate_divisors(ask.sizes.tp)) {
        if (ask.sizes.pcp <= max_world_size / m) candidates.push_back(ask.sizes.pcp * m);
    }
    return accepted_sizes(ask, &topology::dcp, candidates);
}

// Every tp that the rules accept; where no head count binds it, the smallest that carries the DCP group.
inline std::vector<std::int64_t> accepted_tp(const topology_question& ask) {
    std::vector<std::int64_t> candidates = candidate_divisors(ask.heads.q_heads);
    if (candidates.empty() && ask.sizes.dcp >= 1 && ask.sizes.pcp >= 1) {
        candidates = {ask.sizes.dcp / std::gcd(ask.sizes.dcp, ask.sizes.pcp)};
    }
    return accepted_sizes(ask, &topology::tp, candidates);
}

inline std::vector<std::int64_t> accepted_kv_heads(const topology_question& ask) {
    if (ask.heads.kind == attention_kind::mla) {
        return accepted(ask, {1}, [](topology_question& changed, std::int64_t k) { changed.heads.kv_heads = k; });
    }
    return accepted(ask, candidate_divisors(ask.heads.q_heads),
                    [](topology_question& changed, std::int64_t k) { changed.heads.kv_heads = k; });
}

// The head counts next to the given one that suit tp and kv_heads.
inline std::vector<std::int64_t> accepted_q_heads(const topology_question& ask) {
    const std::int64_t tp = ask.sizes.tp, kv = ask.heads.kv_heads, given = ask.heads.q_heads;
    if (tp < 1 || kv < 1 || tp / std::gcd(tp, kv) > max_world_size / kv) return {};
    const std::int64_t step = std::lcm(tp, kv);
    std::vector<std::int64_t> candidates = {step};
    if (given >= step) candidates = {given / step * step};
    if (given > step && given <= std::numeric_limits<std::int64_t>::max() - step)
        candidates.push_back(given / step * step + step);
    return accepted(ask, candidates, [](topology_question& changed, std::int64_t h) { changed.heads.q_heads = h; });
}

// The same question where the rules about groups can not fail, for advice where no single change is enough.
inline topology_question without_groups(topology_question ask) {
    ask.sizes.dcp = 1;
    if (ask.rules == topology_rules::vllm && ask.sizes.pcp > 1) ask.sizes.dp = 1;
    return ask;
}

// "; with the other values as given, tp may be 1, 2" where one change is enough, else what else has to change, or
// nothing where more than that is wrong.
inline std::string advice(const topology_question& ask, const char* field,
                          std::vector<std::int64_t> (*values)(const topology_question&)) {
    const std::vector<std::int64_t> legal = values(ask);
    if (!legal.empty()) return sentence("; with the other values as given, ", field, " may be ", join(legal));
    const topology_question alone = without_groups(ask);
    const std::vector<std::int64_t> ungrouped = values(alone);
    if (ungrouped.empty()) return "";
    return sentence("; ", field, " may be ", join(ungrouped), " with dcp 1",
                    alone.sizes.dp != ask.sizes.dp ? " and dp 1" : "");
}

// Sizes of one axis that the rules accept: all of them for dcp and tp, the plainest for the others.
inline std::vector<std::int64_t> accepted_on(const topology_axis& axis, const topology_question& ask) {
    if (axis.size == &topology::dcp) return accepted_dcp(ask);
    if (axis.size == &topology::tp) return accepted_tp(ask);
    if (axis.size == &topology::pcp) return accepted_sizes(ask, axis.size, {1, ask.sizes.dcp});
    return accepted_sizes(ask, axis.size, {1});
}

[[noreturn]] inline void refuse_size(const topology_question& ask) {
    const topology& sizes = ask.sizes;
    const model_heads& heads = ask.heads;
    for (const topology_axis& axis : topology_axes) {
        if (sizes.*axis.size >= 1) continue;
        const std::vector<std::int64_t> legal = accepted_on(axis, ask);
        raise(config_error("size",
                           sentence(axis.name, " is ", sizes.*axis.size, "; it must be at least 1",
                                    legal.empty() ? "" : sentence(", and may be ", join(legal))),
                           legal));
    }
    const bool mla = heads.kind == attention_kind::mla;
    if (heads.q_heads < (mla ? 0 : 1)) {
        const std::vector<std::int64_t> legal = accepted_q_heads(ask);
        raise(config_error("size",
                           sentence("q_heads is ", heads.q_heads, "; it must be at least 1",
                                    mla ? ", or 0 where it is not known" : "",
                                    legal.empty() ? "" : sentence(", for instance ", join(legal))),
                           legal));
    }
    if (mla ? heads.kv_heads != 1 : heads.kv_heads < 1) {
        const std::vector<std::int64_t> legal = accepted_kv_heads(ask);
        raise(config_error("size",
                           sentence("kv_heads is ", heads.kv_heads, "; it must be ",
                                    mla ? "1, because MLA caches one latent row for all heads" : "at least 1",
                                    mla || legal.empty() ? "" : sentence(", and may be ", join(legal))),
                           legal));
    }
    raise(config_error("size", sentence("external_dp ", sizes.external_dp, " x dp ", sizes.dp, " x pp ", sizes.pp,
                                        " x pcp ", sizes.pcp, " x tp ", sizes.tp,
                                        " is more ranks than a communicator can number; the product may be at most ",
                                        max_world_size)));
}

[[noreturn]] inline void refuse_heads(const topology_question& ask, std::string_view code) {
    const std::int64_t tp = ask.sizes.tp, q_heads = ask.heads.q_heads, kv_heads = ask.heads.kv_heads;
    if (code == "q_heads_per_kv") {
        raise(config_error(std::string(code),
                           sentence("q_heads ", q_heads, " is not a multiple of kv_heads ", kv_heads,
                                    advice(ask, "kv_heads", accepted_kv_heads)),
                           accepted_kv_heads(ask)));
    }
    if (code == "kv_heads_per_tp") {
        raise(config_error(std::string(code),
                           sentence("kv_heads ", kv_heads, " and tp ", tp, ": one must be a multiple of the other",
                                    advice(ask, "tp", accepted_tp)),
                           accepted_tp(ask)));
    }
    if (q_heads % kv_heads == 0) {
        raise(
            config_error(std::string(code),
                         sentence("q_heads ", q_heads, " is not a multiple of tp ", tp, advice(ask, "tp", accepted_tp)),
                         accepted_tp(ask)));
    }
    // No tp can help here, so the advice is about the head count.
    raise(config_error(std::string(code),
                       sentence("q_heads ", q_heads, " is a multiple neither of tp ", tp, " nor of kv_heads ", kv_heads,
                                "; it must be of both", advice(ask, "q_heads", accepted_q_heads)),
                       accepted_q_heads(ask)));
}

[[noreturn]] inline void refuse_groups(const topology_question& ask, std::string_view code) {
    const topology& sizes = ask.sizes;
    if (code == "pcp_with_dp") {
        topology_question alone = ask;
        alone.sizes.dp = 1;
        raise(config_error(std::string(code),
                           sentence("the vllm rules do not take pcp ", sizes.pcp, " together with dp ", sizes.dp,
                                    "; dp 1 is legal with dcp ", join(accepted_dcp(alone))),
                           accepted_sizes(ask, &topology::dp, {1})));
    }
    const std::vector<std::int64_t> legal = accepted_dcp(ask);
    if (code == "dcp_shape") {
        const char* rule = ask.rules == topology_rules::general ? "divide tp*pcp, and divide pcp or be a multiple of it"
                           : sizes.pcp == 1                     ? "divide tp (vllm rules)"
                                                                : "be 1, pcp or tp*pcp (vllm rules)";
        raise(config_error(std::string(code),
                           sentence("dcp ", sizes.dcp, " does not group tp ", sizes.tp, " x pcp ", sizes.pcp,
                                    ": it must ", rule, "; dcp may be ", join(legal)),
                           legal));
    }
    raise(config_error(std::string(code),
                       sentence("dcp ", sizes.dcp, " spans ", distinct_tp(sizes), " tp ranks, but with kv_heads ",
                                ask.heads.kv_heads, " over tp ", sizes.tp,
                                " they do not hold one and the same KV head; dcp may be ", join(legal)),
                       legal));
}

} // namespace detail

// Refuses a topology that breaks a rule: config_error with the code of the first broken rule (see the head of this
// file), and in legal() the values that would be accepted for the field its sentence names.
inline void check_topology(const topology& sizes, const model_heads& heads, topology_rules rules) {
    const detail::topology_question ask{sizes, heads, rules};
    const char* broken = detail::broken_rule(ask);
    if (broken == nullptr) return;
    const std::string_view code = broken;
    if (code == "size") detail::refuse_size(ask);
    if (code == "q_heads_per_tp" || code == "q_heads_per_kv" || code == "kv_heads_per_tp") {
        detail::refuse_heads(ask, code);
    }
    detail::refuse_groups(ask, code);
}

// Every dcp, ascending, that the rules accept with all other values as given; sizes.dcp itself is not looked at.
// Empty where another rule is broken.
inline std::vector<std::int64_t> legal_dcp(const topology& sizes, const model_heads& heads,
                                           topology_rules rules = topology_rules::general) {
    return detail::accepted_dcp({sizes, heads, rules});
}

} // namespace ctxpar::inline v0_1
