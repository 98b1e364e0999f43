// A deployment that decodes one step, described by plain values: model, ranks, cache, batch and options. Tests change
// the fields they are about and run it over ranks that are threads (decode_ranks.hpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <ctxpar/ctxpar.hpp>

namespace ctxpar_test {

using namespace ctxpar;

struct request {
    std::int64_t length = 0; // tokens, the step's included
    std::int64_t rows = 1;   // query rows: the last tokens
};

// How a rank's pool lies in memory. `gaps` is nhd with unused elements behind each token and page; `contiguous` has one
// page and an identity table for each request. MLA has one kind of row, so there nhd, hnd and gaps are the same.
enum class pool_layout { nhd, hnd, gaps, joint_nhd, joint_hnd, stacked_nhd, stacked_hnd, page_pointers, contiguous };

enum class table_form { i32, u32, i64, csr };

// shared_token: one factor a token for all KV heads of a rank.
enum class scale_choice { none, tensor, head, token, shared_token };

struct deployment {
    // Model. MLA: value_width is the latent width, key_width latent and rope together.
    bool is_mla = false;
    std::int64_t q_heads = 8;
    std::int64_t kv_heads = 1;
    std::int64_t key_width = 16;
    std::int64_t value_width = 16;
    scalar_type element = scalar_type::bf16;
    scalar_type kv_element = scalar_type::bf16;

    // Ranks and policy.
    topology sizes; // tp, pcp, dcp
    std::int64_t interleave = 1;
    merge_kind merge = merge_kind::a2a;
    partial partials = partial::fp32;
    output_placement placement = output_placement::own_heads;
    bool replicated_q = false;
    scalar_type output = scalar_type::f32;
    bool merged_lse = true;
    lse_base lse = lse_base::natural;

    // Cache.
    std::int64_t block_size = 16;
    std::int64_t page_size = 0; // tokens; 0: the block size
    pool_layout layout = pool_layout::nhd;
    table_form table = table_form::i32;
    scale_choice scales = scale_choice::none;
    bool pages_alone = false; // the pool starts and ends with a page of memory, so that it can be protected

    // The step.
    std::vector<request> requests;
    mask_rule mask;
    bool tree = false;
    bool sinks = false;
    float soft_cap = 0.0F;
    float softmax_scale = 0.0F; // 0: the policy's default
    bool bounds_plan = false;   // plan from bounds, as for lengths that only a device knows
    std::int64_t pad_rows = 0;  // rows without a request; with bounds_plan only
    bool strided_views = false; // q, out and LSE with gaps, LSE head-major

    // Widths in q and out where decode maps heads; 0: those of the model.
    std::int64_t unmapped_query_width = 0;
    std::int64_t mapped_width = 0;

    // Room that the shape has at least, whatever the step needs.
    std::int64_t room_requests = 0;
    std::int64_t room_rows = 0;

    // Execution.
    std::int64_t threads = 1;
    cpu::isa instructions = cpu::best_isa();
    std::int64_t max_splits = 4;
    check_level checks = check_level::collective;
    bool same_bits = false; // as another run: no transport may choose the order of sums
    std::uint64_t seed = 1;

    std::int64_t world() const { return sizes.tp * sizes.pcp; }
    std::int64_t dcp() const { return sizes.dcp; }
    std::int64_t rows() const {
        std::int64_t sum = 0;
        for (const request& each : requests) sum += each.rows;
        return sum;
    }
    std::int64_t longest() const {
        std::int64_t most = 1;
        for (const request& each : requests) most = std::max(most, each.length);
        return most;
    }
    std::int64_t query_width() const { return unmapped_query_width > 0 ? unmapped_query_width : key_width; }
    std::int64_t output_width() const { return mapped_width > 0 ? mapped_width : value_width; }
    std::int64_t owner(std::int64_t token) const { return token / interleave % sizes.dcp; }
};

// A run of heads.
struct heads_held {
    std::int64_t first = 0;
    std::int64_t count = 0;
};

// What one rank of a world of tp x pcp ranks holds, from the definition of the mesh: tp runs fastest in rank numbers,
// pcp fastest in the order from which dcp groups are cut.
struct rank_facts {
    std::int64_t shard = 0; // its place in its dcp group
    std::int64_t group = 0; // its dcp group, the first is 0
    heads_held own;         // query heads
    heads_held gathered;    // query heads of the group
    heads_held kv;
    heads_held queries; // of the query rows it is given
    heads_held output;
};

inline rank_facts facts_of(const deployment& d, std::int64_t rank) {
    const std::int64_t tp = d.sizes.tp, n = d.sizes.dcp;
    const std::int64_t t = rank % tp;
    const std::int64_t place = t * d.sizes.pcp + rank / tp;
    const std::int64_t own = d.q_heads / tp;
    const std::int64_t m = n <= d.sizes.pcp ? 1 : n / d.sizes.pcp;
    const std::int64_t all = m * own;
    const std::int64_t first = t / m * all;
    rank_facts facts;
    facts.shard = place % n;
    facts.group = place / n;
    facts.own = {t * own, own};
    facts.gathered = {first, all};
    facts.kv =
        d.kv_heads >= tp ? heads_held{t * (d.kv_heads / tp), d.kv_heads / tp} : heads_held{t / (tp / d.kv_heads), 1};
    facts.queries = d.replicated_q ? facts.gathered : facts.own;
    facts.output = d.placement == output_placement::own_heads   ? facts.own
                   : d.placement == output_placement::scattered ? heads_held{first + facts.shard * (all / n), all / n}
                                                                : facts.gathered;
    return facts;
}

inline std::string describe(const deployment& d) {
    std::string text = sentence(
        d.is_mla ? "mla" : "gqa", " heads ", d.q_heads, "/", d.kv_heads, " widths ", d.key_width, "/", d.value_width,
        " ", name_of(d.element), " kv ", name_of(d.kv_element), " out ", name_of(d.output), " tp ", d.sizes.tp, " pcp ",
        d.sizes.pcp, " dcp ", d.sizes.dcp, " interleave ", d.interleave, " block ", d.block_size, " page ", d.page_size,
        " merge ", static_cast<int>(d.merge), " partials ", static_cast<int>(d.partials), " placement ",
        static_cast<int>(d.placement), " replicated ", static_cast<int>(d.replicated_q), " layout ",
        static_cast<int>(d.layout), " table ", static_cast<int>(d.table), " scales ", static_cast<int>(d.scales));
    text +=
        sentence(" window ", d.mask.window, " chunk ", d.mask.chunk, " prefix ", d.mask.prefix, " tree ",
                 static_cast<int>(d.tree), " sinks ", static_cast<int>(d.sinks), " cap ", std::to_string(d.soft_cap),
                 " lse base ", static_cast<int>(d.lse), " bounds ", static_cast<int>(d.bounds_plan), " pads ",
                 d.pad_rows, " strided ", static_cast<int>(d.strided_views), " threads ", d.threads, " splits ",
                 d.max_splits, " maps ", d.unmapped_query_width, " ", d.mapped_width, " seed ", d.seed, " requests");
    for (const request& each : d.requests) text += sentence(" ", each.length, ":", each.rows);
    return text;
}

// A fixed sequence of numbers for a seed.
class random_numbers {
public:
    explicit random_numbers(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 0x1234567ULL) {}

    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }

    // 0 <= result < count.
    std::int64_t below(std::int64_t count) {
        return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(count));
    }

    template <class T>
    T one_of(std::initializer_list<T> values) {
        return *(values.begin() + below(static_cast<std::int64_t>(values.size())));
    }

    // Close to normal, mean 0 and variance 1: the sum of four uniform numbers.
    double normal() {
        const std::uint64_t bits = next();
        const std::uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        return (static_cast<double>(sum) - 131070.0) / 37837.2;
    }

    template <class T>
    void shuffle(std::vector<T>& values) {
        for (std::size_t i = values.size(); i > 1; --i)
            std::swap(values[i - 1], values[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    }

private:
    std::uint64_t state_;
};

} // namespace ctxpar_test
