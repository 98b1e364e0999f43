// A cache, queries and a plan as a step would make them, and how far a kernel's results are from a sum in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <ctxpar/backend/backend.hpp>

namespace attend_setting {

using namespace ctxpar;

struct request {
    std::int64_t length = 0; // keys on this rank
    std::int64_t rows = 1;
};

struct problem {
    std::vector<request> requests;
    std::int64_t kv_heads = 1;
    std::int64_t group = 1;
    std::int64_t key_width = 64;
    std::int64_t value_width = 64;
    bool shared_values = false;
    mask_rule rule{};
    bool tree = false;
    bool filled = false; // the last row of each request is filling and sees nothing
    std::int64_t block_size = 16;
    std::int64_t max_splits = 1;
    std::int64_t split_tokens = 4096;
    float cap = 0.0F;
    bool token_scales = false;
    std::int64_t first_block = 0; // added to all block ids; the pool begins as far before its memory
    std::uint64_t seed = 1;

    std::int64_t heads() const { return kv_heads * group; }
    std::int64_t rows() const {
        std::int64_t sum = 0;
        for (const request& each : requests) sum += each.rows;
        return sum;
    }
};

// A cache, queries and a plan, as a step would make them.
template <class Q, class Kv>
struct setting {
    problem asked;
    std::vector<Q> q;
    std::vector<Kv> k, v;
    std::vector<float> k_scales, v_scales;
    std::vector<std::int64_t> table;
    std::vector<visible_keys> seen;
    std::vector<segment> segments;
    std::vector<float> out, split_out;
    std::vector<natural_lse> lse_out, split_lse;
    std::int64_t columns = 0;

    explicit setting(const problem& p) : asked(p) {
        std::mt19937_64 random(p.seed);
        std::normal_distribution<float> normal;
        for (const request& each : p.requests) columns = std::max(columns, each.length / p.block_size + 1);
        const auto blocks = static_cast<std::int64_t>(p.requests.size()) * columns;
        table.resize(static_cast<std::size_t>(blocks));
        for (std::size_t i = 0; i < table.size(); ++i) table[i] = p.first_block + static_cast<std::int64_t>(i);
        std::shuffle(table.begin(), table.end(), random);
        const std::int64_t slots = blocks * p.block_size * p.kv_heads;
        k.assign(static_cast<std::size_t>(slots * p.key_width), Kv(float_nan)); // what is not written is not read
        v.assign(static_cast<std::size_t>(slots * p.value_width), Kv(float_nan));
        k_scales.assign(static_cast<std::size_t>(slots), 1.0F);
        v_scales = k_scales;
        std::int64_t row = 0;
        for (std::size_t r = 0; r < p.requests.size(); ++r) {
            const request& each = p.requests[r];
            segment run;
            run.request = static_cast<std::int64_t>(r);
            run.first_row = row;
            run.rows = each.rows;
            std::vector<std::uint64_t> bits;
            for (std::int64_t i = 0; i < each.rows; ++i) {
                std::uint64_t own = std::uint64_t{1} << i;
                if (i > 0) own |= bits[random() % static_cast<std::uint64_t>(i)];
                bits.push_back(own);
                seen.push_back(causal_row(each.length, each.rows, i, p.rule, p.tree ? &bits.back() : nullptr));
                if (p.filled && i == each.rows - 1) seen.back() = {0, each.length, each.length, each.length, 0};
                widen_run(run, seen.back());
            }
            run.split_tokens = p.split_tokens;
            run.first_split = run.begin / run.split_tokens;
            segments.push_back(run);
            row += each.rows;
            for (std::int64_t token = 0; token < each.length; ++token) write_token(run, token, random, normal);
        }
        for (std::int64_t i = 0; i < row * p.heads() * p.key_width; ++i) q.push_back(Q(normal(random)));
        out.assign(static_cast<std::size_t>(row * p.heads() * p.value_width), float_nan);
        lse_out.resize(static_cast<std::size_t>(row * p.heads()));
        split_out.assign(out.size() * static_cast<std::size_t>(p.max_splits), float_nan);
        split_lse.resize(lse_out.size() * static_cast<std::size_t>(p.max_splits));
    }

    void write_token(const segment& run, std::int64_t token, std::mt19937_64& random,
                     std::normal_distribution<float>& normal) {
        bool needed = false;
        for (std::int64_t i = 0; i < run.rows; ++i)
            needed = needed || seen[static_cast<std::size_t>(run.first_row + i)].sees(token);
        if (!needed) return;
        for (std::int64_t head = 0; head < asked.kv_heads; ++head) {
            const std::int64_t cell = cell_of(run.request, token, head);
            if (asked.token_scales) {
                k_scales[static_cast<std::size_t>(cell)] = 0.5F + 0.25F * static_cast<float>(random() % 5);
                v_scales[static_cast<std::size_t>(cell)] = 0.001F * static_cast<float>(1 + random() % 9);
            }
            const float factor = token % 37 == 5 ? 1.5F : 0.4F;
            for (std::int64_t d = 0; d < asked.key_width; ++d)
                k[static_cast<std::size_t>(cell * asked.key_width + d)] = Kv(factor * normal(random));
            for (std::int64_t d = 0; d < asked.value_width; ++d)
                v[static_cast<std::size_t>(cell * asked.value_width + d)] = Kv(normal(random));
        }
    }
    static void widen_run(segment& run, const visible_keys& keys) {
        if (keys.hi <= keys.lo && keys.prefix == 0) return;
        const std::int64_t first = keys.prefix > 0 ? 0 : keys.lo;
        run.begin = run.end == 0 || first < run.begin ? first : run.begin;
        run.end = std::max(run.end, keys.hi);
    }
    std::int64_t slot_of(std::int64_t request, std::int64_t token) const {
        return table[static_cast<std::size_t>(request * columns + token / asked.block_size)] * asked.block_size +
               token % asked.block_size;
    }
    std::int64_t cell_of(std::int64_t request, std::int64_t token, std::int64_t head) const {
        return (slot_of(request, token) - asked.first_block * asked.block_size) * asked.kv_heads + head;
    }
    static const Kv* moved_back(const Kv* place, std::int64_t elements) {
        return reinterpret_cast<const Kv*>(reinterpret_cast<std::uintptr_t>(place) -
                                           static_cast<std::uintptr_t>(elements) * sizeof(Kv));
    }

    attend_args<Q, Kv, float, lse_base::natural> args() {
        const problem& p = asked;
        attend_args<Q, Kv, float, lse_base::natural> a;
        a.plan.arrays.rows = seen.data();
        a.plan.arrays.segments = segments.data();
        a.plan.table.blocks = {table.data(), index_type::i64};
        a.plan.table.requests = static_cast<std::int64_t>(p.requests.size());
        a.plan.table.columns = a.plan.table.row_stride = columns;
        a.plan.table.block_size = p.block_size;
        a.plan.rows = p.rows();
        a.plan.requests = a.plan.table.requests;
        a.plan.segments = a.plan.requests;
        a.plan.heads = p.heads();
        a.plan.kv_heads = p.kv_heads;
        a.q = dense_view<const Q>(q.data(), p.rows(), p.heads(), p.key_width);
        const std::int64_t pages = static_cast<std::int64_t>(table.size());
        a.cache = nhd_kv<const Kv>(k.data(), v.data(), pages, p.block_size, p.kv_heads, p.key_width, p.value_width);
        a.cache.k.base = moved_back(a.cache.k.base, p.first_block * a.cache.k.page_stride);
        a.cache.v.base = moved_back(a.cache.v.base, p.first_block * a.cache.v.page_stride);
        if (p.shared_values) a.cache.v = a.cache.k;
        if (p.token_scales) {
            a.cache.k_scale = per_token(k_scales.data(), p.block_size * p.kv_heads, p.kv_heads, 1);
            a.cache.v_scale = per_token(v_scales.data(), p.block_size * p.kv_heads, p.kv_heads, 1);
            if (p.shared_values) a.cache.v_scale = a.cache.k_scale;
        }
        a.out = dense_view(out.data(), p.rows(), p.heads(), p.value_width);
        a.lse_out = dense_view(lse_out.data(), p.rows(), p.heads(), 1);
        a.score = {1.0F / std::sqrt(static_cast<float>(p.key_width)), p.cap};
        a.scratch.split_out = split_out.data();
        a.scratch.split_lse = split_lse.data();
        a.scratch.max_splits = p.max_splits;
        return a;
    }
};

struct distances {
    double out = 0.0; // relative L2
    double lse = 0.0; // largest
};

// p_bits: mantissa bits that probabilities were rounded to, 0: none.
template <class Q, class Kv>
distances distance(setting<Q, Kv>& s) {
    const problem& p = s.asked;
    double error = 0.0, norm = 0.0;
    distances far;
    for (const segment& run : s.segments)
        for (std::int64_t i = 0; i < run.rows; ++i)
            for (std::int64_t head = 0; head < p.heads(); ++head) {
                const std::int64_t row = run.first_row + i, kv = head / p.group;
                const auto& a = s.args();
                double sum = 0.0;
                std::vector<double> want(static_cast<std::size_t>(p.value_width));
                const std::int64_t length = p.requests[static_cast<std::size_t>(run.request)].length;
                for (std::int64_t token = 0; token < length; ++token) {
                    if (!s.seen[static_cast<std::size_t>(row)].sees(token)) continue;
                    const std::int64_t slot = s.slot_of(run.request, token);
                    double score = 0.0;
                    for (std::int64_t d = 0; d < p.key_width; ++d)
                        score += static_cast<double>(static_cast<float>(a.q.at(row, head)[d])) *
                                 static_cast<double>(static_cast<float>(a.cache.key(slot, kv)[d]));
                    score *= static_cast<double>(a.score.scale) * static_cast<double>(a.cache.key_scale(slot, kv));
                    if (p.cap > 0.0F)
                        score = static_cast<double>(p.cap) * std::tanh(score / static_cast<double>(p.cap));
                    const double weight = std::exp(score);
                    sum += weight;
                    for (std::size_t d = 0; d < want.size(); ++d)
                        want[d] += weight * static_cast<double>(static_cast<float>(a.cache.value(slot, kv)[d])) *
                                   static_cast<double>(a.cache.value_scale(slot, kv));
                }
                const double lse_got = static_cast<double>(a.lse_out.at(row, head)->value);
                if (sum == 0.0) {
                    if (!(lse_got < 0.0 && std::isinf(lse_got))) far.lse = 1e9;
                } else {
                    far.lse = std::max(far.lse, std::isnan(lse_got) ? 1e9 : std::fabs(lse_got - std::log(sum)));
                }
                for (std::size_t d = 0; d < want.size(); ++d) {
                    const double right = sum == 0.0 ? 0.0 : want[d] / sum;
                    const double wrong = static_cast<double>(a.out.at(row, head)[d]) - right;
                    error += wrong * wrong;
                    norm += right * right;
                }
            }
    far.out = error == 0.0 ? 0.0 : (std::isnan(error) ? 1e9 : std::sqrt(error / norm));
    return far;
}

} // namespace attend_setting
