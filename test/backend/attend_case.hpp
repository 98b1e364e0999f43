// A paged cache with queries over it, and what attention must make of it, key by key in double.
//
// Everything in the pool that no row sees is full of NaN, as are outputs and scratch memory before the call.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <support/plain_merge.hpp>
#include <support/plain_numbers.hpp>

#include <ctxpar/backend/cpu.hpp>

namespace plain {

struct attend_sizes {
    std::int64_t kv_heads = 1;
    std::int64_t group = 1; // query heads of a KV head
    std::int64_t query_width = 16;
    std::int64_t value_width = 16;
    std::int64_t page_size = 16;
    std::int64_t block_size = 0; // tokens of a table's entry, a divisor of page_size; 0: page_size
    bool latent = false;         // values are the first part of the keys
    ctxpar::page_order order = ctxpar::page_order::nhd;
};

// A request's own keys on this rank, and what its rows see of them.
struct attend_request {
    std::int64_t keys = 0;
    std::vector<ctxpar::visible_keys> rows;
};

// How scores follow each other along the keys.
enum class course { random, rising, falling, one_huge, equal };

enum class scaled { not_at_all, tensor, head, token };

inline bool row_sees_key(const ctxpar::visible_keys& row, std::int64_t key) {
    const bool inside = key < row.prefix || (row.lo <= key && key < row.hi);
    return inside && (key < row.tail || (row.tail_bits >> (key - row.tail) & 1U) != 0);
}

// Rows that see [lo, hi).
inline ctxpar::visible_keys interval(std::int64_t lo, std::int64_t hi) {
    return {0, lo, hi, hi, 0};
}

template <class O>
struct attend_result {
    std::vector<O> out;                   // [rows][heads][dv]
    std::vector<ctxpar::natural_lse> lse; // [rows][heads]

    bool operator==(const attend_result& other) const {
        return out.size() == other.out.size() &&
               std::memcmp(out.data(), other.out.data(), out.size() * sizeof(O)) == 0 &&
               std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
    }
};

template <class Q, class Kv>
class attend_case {
public:
    attend_case(const attend_sizes& sizes, std::vector<attend_request> requests, course scores, std::uint32_t seed,
                scaled scales = scaled::not_at_all, std::int64_t padding = 0)
        : sizes_(sizes), requests_(std::move(requests)), random_(seed) {
        for (const attend_request& one : requests_) num_rows_ += static_cast<std::int64_t>(one.rows.size());
        num_rows_ += padding;
        options.scale = 1.0F / static_cast<float>(sizes.query_width);
        direction_.resize(static_cast<std::size_t>(sizes.query_width));
        for (float& x : direction_) x = random_() % 2 == 0 ? 1.0F : -1.0F;
        make_pool();
        make_scales(scales);
        make_queries();
        for (std::size_t r = 0; r < requests_.size(); ++r) make_keys(r, scores);
    }

    std::int64_t rows() const { return num_rows_; }
    std::int64_t heads() const { return sizes_.kv_heads * sizes_.group; }
    const attend_sizes& sizes() const { return sizes_; }
    const std::vector<attend_request>& requests() const { return requests_; }

    ctxpar::score_options options;

    Q* query(std::int64_t row, std::int64_t head) { return q_.data() + (row * heads() + head) * sizes_.query_width; }
    Kv* key(std::size_t request, std::int64_t j, std::int64_t kv_head) {
        return view_.k.at(page(request, j), token(request, j), kv_head);
    }
    Kv* value(std::size_t request, std::int64_t j, std::int64_t kv_head) {
        return view_.v.at(page(request, j), token(request, j), kv_head);
    }

    // Attention of all requests, or of request `only` as a step of its own.
    template <class O>
    attend_result<O> run(const ctxpar::cpu_options& with = {}, std::int64_t max_splits = 1,
                         std::int64_t only = -1) const {
        const float nothing = std::numeric_limits<float>::quiet_NaN();
        std::vector<ctxpar::visible_keys> visible;
        std::vector<ctxpar::segment> segments = make_segments(visible, max_splits, only);
        const auto num_rows = static_cast<std::int64_t>(visible.size());
        const std::int64_t states = num_rows * heads();
        const Q* const queries =
            q_.data() + (only < 0 ? 0 : first_row(static_cast<std::size_t>(only))) * heads() * sizes_.query_width;
        ctxpar::cpu_backend backend(with);

        ctxpar::attend_args<Q, Kv, O, ctxpar::lse_base::natural> args;
        args.plan.arrays.rows = visible.data();
        args.plan.arrays.segments = segments.data();
        args.plan.table =
            ctxpar::table_2d(table_.data(), static_cast<std::int64_t>(requests_.size()), columns_, block_size());
        args.plan.rows = num_rows;
        args.plan.segments = static_cast<std::int64_t>(segments.size());
        args.plan.requests = args.plan.segments - 1;
        args.plan.heads = heads();
        args.plan.kv_heads = sizes_.kv_heads;
        args.plan.query_width = sizes_.query_width;
        args.plan.value_width = sizes_.value_width;
        args.q = ctxpar::dense_view(queries, num_rows, heads(), sizes_.query_width);
        args.cache = view_;
        args.score = options;

        args.scratch.max_splits = max_splits;
        args.scratch.thread_floats = backend.attend_thread_floats(sizes_.query_width, sizes_.value_width);
        std::vector<float> threads(static_cast<std::size_t>(args.scratch.thread_floats * backend.threads()), nothing);
        std::vector<float> split_out(static_cast<std::size_t>(max_splits * states * sizes_.value_width), nothing);
        std::vector<ctxpar::natural_lse> split_lse(static_cast<std::size_t>(max_splits * states), {nothing});
        args.scratch.threads = threads.data();
        args.scratch.split_out = split_out.data();
        args.scratch.split_lse = split_lse.data();

        attend_result<O> to{std::vector<O>(static_cast<std::size_t>(states * sizes_.value_width), O(nothing)),
                            std::vector<ctxpar::natural_lse>(static_cast<std::size_t>(states), {nothing})};
        args.out = ctxpar::dense_view(to.out.data(), num_rows, heads(), sizes_.value_width);
        args.lse_out = ctxpar::dense_view(to.lse.data(), num_rows, heads(), 1);
        backend.attend(args, {});
        return to;
    }

    // One row and head by the definition; `row` counts the request's rows.
    merged expect(std::size_t request, std::size_t row, std::int64_t head) const {
        const ctxpar::visible_keys& sees = requests_[request].rows[row];
        const auto width = static_cast<std::size_t>(sizes_.value_width);
        const Q* q =
            q_.data() + ((first_row(request) + static_cast<std::int64_t>(row)) * heads() + head) * sizes_.query_width;
        const std::int64_t kv_head = head / sizes_.group;
        merged result{std::vector<double>(width, 0.0)};
        std::vector<std::pair<std::int64_t, double>> scores;
        double largest = -infinity;
        for (std::int64_t j = 0; j < requests_[request].keys; ++j) {
            if (!row_sees_key(sees, j)) continue;
            scores.emplace_back(j, score(q, request, j, kv_head));
            largest = std::max(largest, scores.back().second);
        }
        double sum = 0;
        for (auto& [j, s] : scores) sum += s = s == -infinity ? 0.0 : std::exp(s - largest);
        if (sum == 0) return result;
        for (const auto& [j, weight] : scores) {
            const Kv* v = view_.v.at(page(request, j), token(request, j), kv_head);
            const double factor = view_.v_scale.at(page(request, j), token(request, j), kv_head) * weight / sum;
            for (std::size_t d = 0; d < width; ++d) result.out[d] += factor * number(v[d]);
        }
        result.lse = largest + std::log(sum);
        return result;
    }

    // The same for all requests, rows and heads in order.
    std::vector<merged> expect_all() const {
        std::vector<merged> all;
        for (std::size_t request = 0; request < requests_.size(); ++request)
            for (std::size_t row = 0; row < requests_[request].rows.size(); ++row)
                for (std::int64_t head = 0; head < heads(); ++head) all.push_back(expect(request, row, head));
        return all;
    }

    std::int64_t first_row(std::size_t request) const {
        std::int64_t row = 0;
        for (std::size_t r = 0; r < request; ++r) row += static_cast<std::int64_t>(requests_[r].rows.size());
        return row;
    }

private:
    double score(const Q* q, std::size_t request, std::int64_t j, std::int64_t kv_head) const {
        const Kv* k = view_.k.at(page(request, j), token(request, j), kv_head);
        double dot = 0;
        for (std::int64_t d = 0; d < sizes_.query_width; ++d) dot += number(q[d]) * number(k[d]);
        dot *= static_cast<double>(options.scale) * view_.k_scale.at(page(request, j), token(request, j), kv_head);
        return options.soft_cap > 0 ? options.soft_cap * std::tanh(dot / options.soft_cap) : dot;
    }

    std::int64_t block_size() const { return sizes_.block_size == 0 ? sizes_.page_size : sizes_.block_size; }
    std::int64_t blocks_of(const attend_request& one) const { return (one.keys + block_size() - 1) / block_size(); }
    std::int64_t slot(std::size_t request, std::int64_t j) const {
        const auto entry = static_cast<std::size_t>(j / block_size());
        return table_[request * static_cast<std::size_t>(columns_) + entry] * block_size() + j % block_size();
    }
    std::int64_t page(std::size_t request, std::int64_t j) const { return slot(request, j) / sizes_.page_size; }
    std::int64_t token(std::size_t request, std::int64_t j) const { return slot(request, j) % sizes_.page_size; }

    void make_pool() {
        std::int64_t used = 0;
        for (const attend_request& one : requests_) {
            columns_ = std::max(columns_, blocks_of(one));
            used += blocks_of(one);
        }
        const std::int64_t blocks_of_page = sizes_.page_size / block_size();
        const std::int64_t pages = (used + blocks_of_page - 1) / blocks_of_page + 3;
        std::vector<std::int32_t> ids;
        for (std::int64_t p = 0; p < pages * blocks_of_page; ++p) ids.push_back(static_cast<std::int32_t>(p));
        std::shuffle(ids.begin(), ids.end(), random_);
        for (const attend_request& one : requests_)
            for (std::int64_t b = 0; b < columns_; ++b) {
                const bool has = b < blocks_of(one);
                table_.push_back(has ? ids.back() : -1);
                if (has) ids.pop_back();
            }
        const std::int64_t tokens = pages * sizes_.page_size * sizes_.kv_heads;
        keys_.resize(static_cast<std::size_t>(tokens * sizes_.query_width));
        values_.resize(static_cast<std::size_t>(sizes_.latent ? 0 : tokens * sizes_.value_width));
        std::memset(static_cast<void*>(keys_.data()), 0xff, keys_.size() * sizeof(Kv)); // NaN in every type
        if (!values_.empty()) std::memset(static_cast<void*>(values_.data()), 0xff, values_.size() * sizeof(Kv));
        if (sizes_.latent) {
            view_ = ctxpar::latent_kv(keys_.data(), pages, sizes_.page_size, sizes_.value_width,
                                      sizes_.query_width - sizes_.value_width);
        } else {
            const auto make = sizes_.order == ctxpar::page_order::nhd ? ctxpar::nhd_kv<Kv> : ctxpar::hnd_kv<Kv>;
            view_ = make(keys_.data(), values_.data(), pages, sizes_.page_size, sizes_.kv_heads, sizes_.query_width,
                         sizes_.value_width);
        }
    }

    void make_scales(scaled kind) {
        std::uniform_real_distribution<float> factor(0.5F, 1.5F);
        const bool token = kind == scaled::token;
        for (std::vector<float>* memory : {&key_scales_, &value_scales_})
            for (std::int64_t i = 0; i < (token ? view_.pages * sizes_.page_size : 1) * sizes_.kv_heads; ++i)
                memory->push_back(factor(random_));
        if (sizes_.latent) value_scales_ = key_scales_;
        const auto give = [&](ctxpar::kv_scale& scale, std::vector<float>& memory) {
            if (kind == scaled::tensor) scale = ctxpar::per_tensor(memory[0]);
            if (kind == scaled::head) scale = ctxpar::per_head(memory.data());
            if (token) scale = ctxpar::per_token(memory.data(), sizes_.page_size * sizes_.kv_heads, sizes_.kv_heads, 1);
        };
        give(view_.k_scale, key_scales_);
        give(view_.v_scale, value_scales_);
    }

    void make_queries() {
        std::normal_distribution<float> normal;
        for (std::int64_t i = 0; i < num_rows_ * heads(); ++i) {
            const float length = 0.75F + 0.25F * std::fabs(normal(random_));
            for (const float x : direction_) q_.push_back(static_cast<Q>(length * x + 0.3F * normal(random_)));
        }
    }

    // The score of key j is about `along` times the query's length.
    void make_keys(std::size_t request, course kind) {
        std::normal_distribution<float> normal;
        const std::int64_t keys = requests_[request].keys;
        const std::int64_t huge =
            keys == 0 ? 0 : static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(keys));
        for (std::int64_t j = 0; j < keys; ++j) {
            const auto& rows = requests_[request].rows;
            const bool seen =
                std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row_sees_key(row, j); });
            if (!seen) continue;
            const float place = static_cast<float>(j) / static_cast<float>(keys);
            float along = 2.0F * normal(random_);
            if (kind == course::rising) along = 10.0F * place - 5.0F;
            if (kind == course::falling) along = 5.0F - 10.0F * place;
            if (kind == course::one_huge && j == huge) along = 60.0F;
            if (kind == course::equal) along = 1.0F;
            const float noise = kind == course::equal ? 0.0F : 0.2F;
            for (std::int64_t head = 0; head < sizes_.kv_heads; ++head) {
                Kv* k = key(request, j, head);
                for (std::int64_t d = 0; d < sizes_.query_width; ++d)
                    k[d] = static_cast<Kv>(along * direction_[static_cast<std::size_t>(d)] + noise * normal(random_));
                if (sizes_.latent) continue;
                Kv* v = value(request, j, head);
                for (std::int64_t d = 0; d < sizes_.value_width; ++d) v[d] = static_cast<Kv>(normal(random_));
            }
        }
    }

    std::vector<ctxpar::segment> make_segments(std::vector<ctxpar::visible_keys>& visible, std::int64_t max_splits,
                                               std::int64_t only) const {
        std::vector<ctxpar::segment> segments;
        for (std::size_t r = 0; r < requests_.size(); ++r) {
            if (only >= 0 && r != static_cast<std::size_t>(only)) continue;
            const attend_request& one = requests_[r];
            ctxpar::segment run;
            run.request = static_cast<std::int64_t>(r);
            run.first_row = static_cast<std::int64_t>(visible.size());
            run.rows = static_cast<std::int64_t>(one.rows.size());
            std::int64_t begin = one.keys;
            for (std::int64_t j = 0; j < one.keys; ++j)
                for (const auto& row : one.rows)
                    if (row_sees_key(row, j)) {
                        begin = std::min(begin, j);
                        run.end = j + 1;
                    }
            run.begin = std::min(begin, run.end);
            ctxpar::schedule_splits(run, max_splits);
            segments.push_back(run);
            visible.insert(visible.end(), one.rows.begin(), one.rows.end());
        }
        ctxpar::segment pad;
        pad.first_row = static_cast<std::int64_t>(visible.size());
        pad.rows = only >= 0 ? 0 : num_rows_ - pad.first_row;
        visible.resize(static_cast<std::size_t>(pad.first_row + pad.rows));
        segments.push_back(pad);
        return segments;
    }

    attend_sizes sizes_;
    std::vector<attend_request> requests_;
    std::mt19937 random_;
    std::int64_t num_rows_ = 0;
    std::int64_t columns_ = 1;
    std::vector<std::int32_t> table_;
    std::vector<float> direction_;
    std::vector<Q> q_;
    std::vector<Kv> keys_, values_;
    std::vector<float> key_scales_, value_scales_;
    ctxpar::kv_view<Kv> view_;
};

// What a kernel with P in fp32 owes: 2e-6 of the whole output, and one rounding where the output is narrower.
template <class O>
double attend_bound() {
    return 2e-6 + (sizeof(O) == 4 ? 0.0 : std::ldexp(1.0, -2 - format_of<O>().mantissa_bits));
}

struct attend_error {
    double out = 0;          // relative L2
    double lse = 0;          // worst, in units of its bound
    bool empty_right = true; // rows without keys: exactly 0 and -inf
};

template <class O>
attend_error error_of(const std::vector<merged>& expected, const attend_result<O>& got) {
    attend_error error;
    relative_error out;
    const std::size_t width = got.lse.empty() ? 0 : got.out.size() / got.lse.size();
    for (std::size_t at = 0; at < got.lse.size(); ++at) {
        const O* row = got.out.data() + at * width;
        if (at >= expected.size() || expected[at].lse == -infinity) { // padding and rows without keys
            const bool zero = std::all_of(row, row + width, [](O x) { return number(x) == 0; });
            error.empty_right = error.empty_right && zero && got.lse[at].value == -infinity;
            continue;
        }
        const double off = std::fabs(got.lse[at].value - expected[at].lse) / lse_bound(expected[at].lse);
        error.lse = std::isnan(off) ? infinity : std::max(error.lse, off);
        for (std::size_t d = 0; d < width; ++d) out.add(number(row[d]), expected[at].out[d]);
    }
    error.out = out.value();
    return error;
}

} // namespace plain
