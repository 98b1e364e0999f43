// Attention by matrix units against a sum in double, over pages, masks, splits and element types.
#include <ctxpar/backend/cuda/attend_items.cuh>
#include <ctxpar/backend/cuda/attend_plain.cuh>
#include <ctxpar/backend/cuda/attend_splits.cuh>
#include <ctxpar/backend/cuda/attend_tiles.cuh>
#include <ctxpar/backend/cuda/tuning.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels.hpp"

using namespace ctxpar;

namespace {

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

template <class Tiles, class Q, class Kv>
distances run_tiles(const problem& p, simt::thread_order order, std::uint64_t seed, int stages = 2) {
    setting<Q, Kv> s(p);
    using layout = cuda::tile_layout<Tiles, Q, Kv>;
    const auto shared = static_cast<std::size_t>(layout::stages + stages * layout::stage_bytes);
    simt::launch({3, static_cast<unsigned>(Tiles::shape.threads()), shared, order, seed},
                 cuda::attend_tiles_kernel<Tiles, Q, Kv>, cuda::tile_args_of(s.args()), stages);
    if (p.max_splits > 1) simt::launch({2, 64, 0, order, seed}, cuda::combine_splits_kernel<Q, Kv, float>, s.args());
    return distance(s);
}

template <int Width, bool Many, class Q, class Kv>
void check_tiles(const problem& p, int stages = 2) {
    constexpr bool halves = std::is_same_v<Kv, f16>;
    using exact = cuda::tiles<Width, Width, false, Many, halves ? 2 : 3>;
    const distances far = run_tiles<exact, Q, Kv>(p, simt::thread_order::any, p.seed, stages);
    CHECK(far.out <= 2e-6);
    CHECK(far.lse <= 2e-6);
}

} // namespace

TEST_CASE("rows of requests of any length, none among them") {
    problem p;
    p.requests = {{200, 1}, {64, 1}, {0, 1}, {1, 1}, {63, 1}, {63, 2}, {65, 3}};
    p.group = 4;
    check_tiles<64, false, bf16, bf16>(p);
    check_tiles<64, false, f16, f16>(p);
    check_tiles<64, true, bf16, bf16>(p);
}

TEST_CASE("every head size, also one that is less than its tile's") {
    problem p;
    p.requests = {{150, 2}, {40, 1}};
    p.kv_heads = 2;
    p.group = 3;
    p.key_width = p.value_width = 96;
    check_tiles<96, false, bf16, bf16>(p);
    check_tiles<96, true, f16, f16>(p);
    check_tiles<128, false, bf16, bf16>(p);
    p.key_width = 72;
    p.value_width = 40;
    check_tiles<96, false, bf16, bf16>(p);
    p.key_width = p.value_width = 192;
    check_tiles<192, false, bf16, bf16>(p);
    check_tiles<192, true, bf16, bf16>(p);
    p.key_width = p.value_width = 256;
    check_tiles<256, false, f16, f16>(p);
    check_tiles<256, true, bf16, bf16>(p);
}

TEST_CASE("values that are a part of the keys, with 576 and 512 elements") {
    problem p;
    p.requests = {{90, 1}, {33, 2}};
    p.group = 20;
    p.key_width = 576;
    p.value_width = 512;
    p.shared_values = true;
    for (const bool scales : {false, true}) {
        p.token_scales = scales;
        using few = cuda::tiles<576, 512, true, false, 3>;
        using many = cuda::tiles<576, 512, true, true, 3>;
        const distances far[] = {run_tiles<few, bf16, bf16>(p, simt::thread_order::any, 1),
                                 run_tiles<many, bf16, bf16>(p, simt::thread_order::one_warp, 2),
                                 run_tiles<few, bf16, fp8_e4m3>(p, simt::thread_order::one_warp, 3),
                                 run_tiles<many, f16, fp8_e4m3>(p, simt::thread_order::any, 4)};
        for (const distances& each : far) {
            CHECK(each.out <= 2e-6);
            CHECK(each.lse <= 2e-6);
        }
    }
}

TEST_CASE("windows, chunks, prefixes and draft trees; keys that no row sees are not read") {
    for (int kind = 0; kind < 5; ++kind) {
        problem p;
        p.requests = {{230, 9}, {5, 5}, {140, 20}, {3, 6}};
        p.group = 5;
        p.seed = static_cast<std::uint64_t>(kind + 1);
        if (kind == 1 || kind == 2) p.rule.window = 50;
        if (kind == 2) p.rule.prefix = 7;
        if (kind == 3) p.rule.chunk = 48;
        if (kind == 4) p.tree = true;
        check_tiles<64, false, bf16, bf16>(p, 3);
        check_tiles<64, true, bf16, bf16>(p, 2);
        check_tiles<64, true, f16, f16>(p, 4);
    }
}

TEST_CASE("rows of filling see nothing, and change nothing for others") {
    problem p;
    p.requests = {{57, 12}, {80, 3}, {9, 1}};
    p.group = 2;
    p.filled = true;
    for (const std::int64_t prefix : {0, 11, 40}) {
        p.rule.prefix = prefix;
        p.rule.window = prefix > 0 ? 27 : 0;
        check_tiles<64, true, bf16, bf16>(p);
        check_tiles<64, false, f16, f16>(p);
    }
}

TEST_CASE("8-bit caches, with a scale for every token, and a soft cap") {
    problem p;
    p.requests = {{130, 1}, {70, 17}};
    p.group = 6;
    p.key_width = p.value_width = 128;
    for (const bool scales : {false, true}) {
        p.token_scales = scales;
        p.cap = scales ? 20.0F : 0.0F;
        check_tiles<128, false, bf16, fp8_e4m3>(p);
        check_tiles<128, false, f16, fp8_e5m2>(p, 3);
        check_tiles<128, true, bf16, fp8_e5m2>(p);
        check_tiles<128, true, f16, fp8_e4m3>(p);
        check_tiles<128, true, bf16, bf16>(p);
        check_tiles<128, false, f16, f16>(p);
    }
}

TEST_CASE("keys split among blocks") {
    problem p;
    p.requests = {{2500, 1}, {900, 2}, {1500, 1}};
    p.group = 2;
    p.split_tokens = 1024;
    p.max_splits = 3;
    check_tiles<64, false, bf16, bf16>(p);
    p.rule.window = 1200;
    p.rule.prefix = 10;
    check_tiles<64, false, f16, f16>(p, 3);
}

TEST_CASE("blocks beyond the range of 32 bits") {
    problem p;
    p.requests = {{100, 1}};
    p.group = 2;
    p.first_block = std::int64_t{1} << 33;
    check_tiles<64, false, bf16, bf16>(p);
    p.first_block = (std::int64_t{1} << 31) - 3;
    check_tiles<64, true, bf16, bf16>(p);
}

TEST_CASE("every order of threads gives the same bits") {
    problem p;
    p.requests = {{100, 4}, {75, 1}};
    p.group = 8;
    p.rule.window = 60;
    using few = cuda::tiles<64, 64, false, false, 3>;
    using many = cuda::tiles<64, 64, false, true, 3>;
    const distances first[] = {run_tiles<few, bf16, bf16>(p, simt::thread_order::first_in, 1),
                               run_tiles<many, bf16, bf16>(p, simt::thread_order::first_in, 1, 3)};
    CHECK(first[0].out <= 2e-6);
    CHECK(first[1].out <= 2e-6);
    simt::in_all_orders([&](simt::thread_order order, std::uint64_t seed) {
        CHECK(run_tiles<few, bf16, bf16>(p, order, seed).out == first[0].out);
        CHECK(run_tiles<many, bf16, bf16>(p, order, seed, 3).out == first[1].out);
    });
}

TEST_CASE("probabilities rounded to the values' type cost what the type says") {
    problem p;
    p.requests = {{300, 1}, {200, 3}};
    p.group = 4;
    using shape = cuda::tiles<64, 64, false, false, 1>;
    const distances wide = run_tiles<shape, bf16, bf16>(p, simt::thread_order::any, 1);
    CHECK(wide.out <= 4e-3);
    CHECK(wide.out > 2e-5);
    CHECK(wide.lse <= 2e-6);
    const distances halves = run_tiles<shape, f16, f16>(p, simt::thread_order::any, 1);
    CHECK(halves.out <= 5e-4);
    CHECK(halves.lse <= 2e-6);
}

TEST_CASE("every visible byte is read once") {
    problem p;
    p.requests = {{1000, 1}, {700, 1}};
    p.kv_heads = 2;
    p.group = 8;
    p.key_width = p.value_width = 128;
    simt::counters() = {};
    using shape = cuda::tiles<128, 128, false, false, 3>;
    (void)run_tiles<shape, bf16, bf16>(p, simt::thread_order::any, 1);
    const double cached = 1700.0 * 2 * 2 * 128 * 2;
    CHECK(static_cast<double>(simt::counters().bytes_read) >= cached);
    CHECK(static_cast<double>(simt::counters().bytes_read) <= 1.03 * cached);
}
