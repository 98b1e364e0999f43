// A request that is decoded in one layout after another, over ranks that are threads: what the tests of live migration
// have in common. Next to the sharded caches every rank has an unsharded one, for what should come out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "moving.hpp"

namespace serving {

using namespace ctxpar;
using ctxpar_test::random_numbers;

inline constexpr std::int64_t heads = 4, kv_heads = 2, width = 8, longest = 160;

using attention = gqa<float, width>;
using policy_type = policy<attention, interleave<>, merge::ag_ar>;
using decoder_type = decoder<policy_type, cpu_backend, local_communicator>;

// A layout on some ranks of the domain.
struct layout {
    std::int64_t ranks = 1;
    std::int64_t interleave = 1;
    std::int64_t block = 4;
    std::int64_t first = 0;
};

inline decode_shape shape_of(std::int64_t ranks) {
    decode_shape shape;
    shape.sizes = {1, ranks, ranks, 1, 1, 1};
    shape.q_heads = heads;
    shape.kv_heads = kv_heads;
    shape.max_requests = 1;
    shape.max_rows = 1;
    shape.longest = longest;
    shape.output = scalar_type::f32;
    shape.placement = output_placement::all_heads;
    return shape;
}

// Numbers of a token: its keys, values or query.
inline std::vector<float> row_of(std::uint64_t seed, std::int64_t token, std::int64_t kind, std::int64_t count) {
    random_numbers random(seed * 1'000'003 + static_cast<std::uint64_t>(token * 4 + kind));
    std::vector<float> row;
    for (std::int64_t i = 0; i < count; ++i) row.push_back(static_cast<float>(random.normal()));
    return row;
}

// Decodes one token a step of one request, in a layout that the caller's ranks have; `group` is null for one rank.
class server {
public:
    server(local_communicator* group, const layout& l)
        : layout_(l), decoder_({group, nullptr, nullptr, nullptr}, shape_of(l.ranks),
                               policy_type{{}, {l.interleave}, {}}, cpu_backend()),
          memory_(decoder_.workspace_bytes()) {}

    // Appends the last token of `length`, and what it attends to: [heads][width].
    std::vector<float> decode(std::uint64_t seed, std::int64_t length, const block_table& table,
                              const kv_view<float>& cache, bool appends = true) {
        decode_batch batch;
        batch.lengths = index_of(&length);
        batch.requests = 1;
        batch.table = table;
        const decode_step step = decoder_.plan(batch, memory_, {});
        const std::vector<float> k = row_of(seed, length - 1, 0, kv_heads * width);
        const std::vector<float> v = row_of(seed, length - 1, 1, kv_heads * width);
        const std::vector<float> q = row_of(seed, length - 1, 2, heads * width);
        if (appends)
            decoder_.append(step, dense_view(k.data(), 1, kv_heads, width), dense_view(v.data(), 1, kv_heads, width),
                            cache, {});
        std::vector<float> out(static_cast<std::size_t>(heads * width));
        decoder_.decode(step, dense_view(q.data(), 1, heads, width), kv_view<const float>(cache),
                        dense_view(out.data(), 1, heads, width), layer_options<>{}, {});
        return out;
    }

    const layout& of() const { return layout_; }

private:
    layout layout_;
    decoder_type decoder_;
    host_workspace memory_;
};

inline double relative_distance(const std::vector<float>& got, const std::vector<float>& due) {
    double off = 0, size = 0;
    for (std::size_t i = 0; i < due.size(); ++i) {
        const double difference = static_cast<double>(got[i]) - static_cast<double>(due[i]);
        off += difference * difference;
        size += static_cast<double>(due[i]) * static_cast<double>(due[i]);
    }
    return std::sqrt(off / size);
}

// A rank's pool, from which requests take granules of 12 slots: 12 / B blocks of B tokens each.
class pool {
public:
    static constexpr std::int64_t granule = 12, granules = 40;

    explicit pool(std::uint64_t seed) : keys_(granule * granules * row, unused), values_(keys_) {
        for (std::int64_t i = 0; i < granules; ++i) free_.push_back(i);
        random_numbers(seed).shuffle(free_);
    }

    kv_view<float> view() { // a page size that has nothing to do with the blocks
        return nhd_kv(keys_.data(), values_.data(), granule * granules / 5, 5, kv_heads, width, width);
    }
    std::int64_t take() {
        const std::int64_t taken = free_.back();
        free_.pop_back();
        return taken;
    }
    // What is given back must not be read any more: NaN.
    void give(std::int64_t taken) {
        std::fill_n(keys_.begin() + taken * granule * row, granule * row, unused);
        std::fill_n(values_.begin() + taken * granule * row, granule * row, unused);
        free_.insert(free_.begin(), taken);
    }
    // The numbers of one granule.
    std::vector<float> numbers(std::int64_t taken) const {
        std::vector<float> all(keys_.begin() + taken * granule * row, keys_.begin() + (taken + 1) * granule * row);
        all.insert(all.end(), values_.begin() + taken * granule * row, values_.begin() + (taken + 1) * granule * row);
        return all;
    }

private:
    static constexpr std::int64_t row = kv_heads * width;
    static constexpr float unused = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> keys_, values_;
    std::vector<std::int64_t> free_;
};

// The blocks that a request has on a rank in one layout.
class holding {
public:
    holding(pool& from, const layout& l, int rank) : pool_(&from), layout_(l), rank_(rank) {}

    void grow(std::int64_t length) {
        const ownership law{layout_.ranks, layout_.interleave};
        const std::int64_t held = member() ? law.local_len(length, rank_ - layout_.first) : 0;
        while (static_cast<std::int64_t>(ids_.size()) * layout_.block < held) {
            taken_.push_back(pool_->take());
            const std::int64_t each = pool::granule / layout_.block;
            for (std::int64_t i = 0; i < each; ++i) ids_.push_back(taken_.back() * each + i);
        }
    }
    void drop() {
        for (const std::int64_t each : taken_) pool_->give(each);
        taken_.clear();
        ids_.clear();
    }

    bool member() const { return rank_ >= layout_.first && rank_ < layout_.first + layout_.ranks; }
    const layout& of() const { return layout_; }
    block_table table() const {
        return table_2d(ids_.data(), 1, static_cast<std::int64_t>(ids_.size()), layout_.block);
    }
    domain_request side() const { return {{layout_.ranks, layout_.interleave}, layout_.first, table(), 0}; }
    std::vector<float> numbers() const {
        std::vector<float> all;
        for (const std::int64_t each : taken_) {
            const std::vector<float> more = pool_->numbers(each);
            all.insert(all.end(), more.begin(), more.end());
        }
        return all;
    }

private:
    pool* pool_;
    layout layout_;
    int rank_;
    std::vector<std::int64_t> taken_;
    std::vector<std::int64_t> ids_;
};

// The same request without ranks and migrations.
class unsharded {
public:
    unsharded() : keys_(longest * kv_heads * width), values_(keys_), server_(nullptr, {1, 1, longest, 0}) {}
    std::vector<float> decode(std::uint64_t seed, std::int64_t length) {
        return server_.decode(seed, length, identity_table(1, longest),
                              contiguous_kv(keys_.data(), values_.data(), 1, longest, kv_heads, width, width));
    }

private:
    std::vector<float> keys_, values_;
    server server_;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

} // namespace serving
