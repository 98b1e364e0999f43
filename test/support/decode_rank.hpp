// One rank of a deployment with a real decoder over its own pool, block tables and communicators. What it is given is
// cut from the planted data of the whole model; what it does not own it never sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <suite_ranks.hpp>

#include "exactness.hpp"
#include "kv_pool.hpp"

namespace ctxpar_test {

template <class T>
T element_from(float value) {
    if constexpr (std::is_same_v<T, float>) {
        return value;
    } else {
        return T::from_bits(static_cast<decltype(T::bits)>(bits_of(format_of(scalar_type_of<T>), value)));
    }
}

template <class T>
float number_of(T value) {
    if constexpr (std::is_same_v<T, float>) {
        return value;
    } else {
        return static_cast<float>(value_of(format_of(scalar_type_of<T>), value.bits));
    }
}

template <class T>
std::vector<T> elements_of(const std::vector<float>& values) {
    std::vector<T> result;
    result.reserve(values.size());
    for (const float value : values) result.push_back(element_from<T>(value));
    return result;
}

// Block ids of all requests on one rank, in random order, some blocks of the pool left unused.
class rank_tables {
public:
    rank_tables(const deployment& d, std::int64_t shard) : d_(d), shard_(shard) {
        random_numbers random(d.seed * 131 + static_cast<std::uint64_t>(shard));
        std::int64_t used = 0;
        for (const request& each : d.requests) {
            std::int64_t held = 0;
            for (std::int64_t token = 0; token < each.length; ++token) held += d.owner(token) == shard ? 1 : 0;
            offsets_.push_back(used);
            used += (held + d.block_size - 1) / d.block_size;
            columns_ = std::max(columns_, used - offsets_.back());
        }
        offsets_.push_back(used);
        pool_blocks_ = is_contiguous() ? static_cast<std::int64_t>(d.requests.size()) : used + 3;
        for (std::int64_t block = 0; block < used + 3; ++block) ids_.push_back(block);
        random.shuffle(ids_);
        build();
    }

    std::int64_t pool_blocks() const { return pool_blocks_; }

    // Tells the table that a block is gone: what no row sees may have any id.
    void forget_unseen(const planted_data& data) {
        for (std::size_t i = 0; i < d_.requests.size() && !is_contiguous(); ++i) {
            const cached_sequence none;
            attention_problem ask = problem_of(d_, data, none, i);
            std::vector<bool> seen(static_cast<std::size_t>(offsets_[i + 1] - offsets_[i]), false);
            std::int64_t local = 0;
            for (std::int64_t token = 0; token < ask.length; ++token) {
                if (d_.owner(token) != shard_) continue;
                bool needed = token >= ask.length - ask.rows;
                for (std::int64_t row = 0; row < ask.rows; ++row) needed = needed || is_visible(ask, row, token);
                if (needed) seen[static_cast<std::size_t>(local / d_.block_size)] = true;
                ++local;
            }
            for (std::size_t block = 0; block < seen.size() && ask.rows > 0; ++block)
                if (!seen[block]) ids_[static_cast<std::size_t>(offsets_[i]) + block] = -1;
        }
        build();
    }

    block_table view() const {
        const auto requests = static_cast<std::int64_t>(d_.requests.size());
        if (is_contiguous()) return identity_table(requests, d_.block_size);
        switch (d_.table) {
        case table_form::i32:
            return table_2d(ids_32_.data(), requests, columns_, d_.block_size, columns_ + 2);
        case table_form::u32:
            return table_2d(reinterpret_cast<const std::uint32_t*>(ids_32_.data()), requests, columns_, d_.block_size,
                            columns_ + 2);
        case table_form::i64:
            return table_2d(ids_64_.data(), requests, columns_, d_.block_size, columns_ + 2);
        case table_form::csr:
            break;
        }
        return table_csr(ids_.data(), offsets_.data(), requests, d_.block_size);
    }

private:
    bool is_contiguous() const { return d_.layout == pool_layout::contiguous; }

    // Rows of the 2-D tables, two entries of nonsense behind each.
    void build() {
        ids_64_.assign(d_.requests.size() * static_cast<std::size_t>(columns_ + 2) + 1, -7);
        for (std::size_t i = 0; i < d_.requests.size(); ++i)
            for (std::int64_t block = 0; block < offsets_[i + 1] - offsets_[i]; ++block)
                ids_64_[i * static_cast<std::size_t>(columns_ + 2) + static_cast<std::size_t>(block)] =
                    ids_[static_cast<std::size_t>(offsets_[i] + block)];
        ids_32_.assign(ids_64_.begin(), ids_64_.end());
    }

    const deployment& d_;
    std::int64_t shard_;
    std::int64_t columns_ = 0;
    std::int64_t pool_blocks_ = 0;
    std::vector<std::int64_t> offsets_;
    std::vector<std::int64_t> ids_;
    std::vector<std::int64_t> ids_64_;
    std::vector<std::int32_t> ids_32_;
};

// The communicators of one rank, split from the world by what the mesh says. Groups that may be left out are, for every
// second seed.
template <class Ranks>
struct rank_groups {
    using communicator = typename Ranks::communicator;
    std::optional<communicator> kv, query, heads;

    rank_groups(communicator& world, const deployment& d) {
        const mesh ranks(d.sizes, {d.is_mla ? attention_kind::mla : attention_kind::gqa, d.q_heads, d.kv_heads});
        const decode_groups mine = ranks.groups_of(world.rank());
        const auto split = [&](const rank_group& group) {
            return Ranks::split(world, static_cast<int>(group.color), static_cast<int>(group.key));
        };
        kv = split(mine.kv);
        query = split(mine.query);
        heads = split(mine.heads);
        if (d.seed % 2 == 1) return;
        if (mine.query.members.size() == mine.kv.members.size() || d.replicated_q) query.reset();
        if (mine.heads.members.size() == mine.kv.members.size()) heads.reset();
        if (mine.kv.members.size() == 1) kv.reset();
    }

    groups<communicator> pointers() {
        const auto pointer = [](std::optional<communicator>& group) { return group ? &*group : nullptr; };
        return {pointer(kv), pointer(query), pointer(heads), nullptr};
    }
    std::uint64_t bytes_sent() const {
        std::uint64_t sum = 0;
        for (const auto* group : {&kv, &query, &heads}) sum += *group ? (*group)->bytes_sent() : 0;
        return sum;
    }
};

// Memory of a workspace: as many bytes as were asked for, NaN at first, with guards behind that must not change.
class guarded_workspace {
public:
    explicit guarded_workspace(std::size_t bytes) : bytes_(bytes), memory_(bytes + guard, true) {}
    workspace view() const { return {memory_.data(), bytes_}; }
    bool guards_hold() const {
        for (std::size_t i = 0; i < guard; ++i)
            if (memory_.data()[bytes_ + i] != std::byte{0xff}) return false;
        return true;
    }

private:
    static constexpr std::size_t guard = 256;
    std::size_t bytes_;
    raw_memory memory_;
};

inline decode_shape shape_of(const deployment& d, std::int64_t rank, std::int64_t pool_blocks) {
    decode_shape shape;
    shape.sizes = d.sizes;
    shape.q_heads = d.q_heads;
    shape.kv_heads = d.kv_heads;
    shape.rank = rank;
    shape.max_requests = std::max(d.room_requests, static_cast<std::int64_t>(d.requests.size() + d.seed % 2));
    shape.max_rows =
        std::max({std::int64_t{1}, d.room_rows, d.rows() + d.pad_rows + static_cast<std::int64_t>(d.seed % 3)});
    shape.longest = d.longest();
    shape.pool_blocks = pool_blocks;
    shape.placement = d.placement;
    shape.replicated_q = d.replicated_q;
    shape.merged_lse = d.merged_lse;
    shape.output = d.output;
    shape.max_splits = d.max_splits;
    shape.unmapped_query_width = d.unmapped_query_width;
    shape.mapped_width = d.mapped_width;
    return shape;
}

// Work is given to the rank's stream and not waited for, but where memory of the host is about to be changed or read.
template <class Policy, class Backend = suite_ranks::backend, class Ranks = suite_ranks>
class decode_rank {
public:
    using element = typename Policy::element;
    using kv_element = typename Policy::attention_type::kv_element;
    using communicator = typename Ranks::communicator;
    using decoder_type = decoder<Policy, Backend, communicator>;

    decode_rank(communicator& world, const deployment& d, const planted_data& data, const Policy& policy,
                const Backend& backend)
        : world_(world), d_(d), facts_(facts_of(d, world.rank())), groups_(world, d), tables_(d, facts_.shard),
          pool_(d, facts_.kv, tables_.pool_blocks() * d.block_size, data.head_scales), data_(data),
          queries_(elements_of<element>(data.q)),
          decoder_(groups_.pointers(), shape_of(d, world.rank(), tables_.pool_blocks()), policy, backend),
          workspace_(decoder_.workspace_bytes()) {
        queries_.resize(static_cast<std::size_t>((d.rows() + d.pad_rows) * d.q_heads * d.key_width),
                        element_from<element>(1.0F));
        for (const request& each : d.requests) {
            lengths_.push_back(each.length);
            rows_.push_back(static_cast<std::int32_t>(each.rows));
        }
        new_rows_.resize(static_cast<std::size_t>((d.rows() + d.pad_rows) * d.kv_heads * row_width()));
        std::memset(static_cast<void*>(new_rows_.data()), 0xff, new_rows_.size() * sizeof(element));
    }

    decoder_type& used() { return decoder_; }
    rank_groups<Ranks>& communicators() { return groups_; }
    typename Ranks::stream_type stream() const { return stream_.get(); }
    void wait() { world_.wait(stream()); }
    kv_pool<kv_element>& pool() { return pool_; }
    rank_tables& tables() { return tables_; }
    const rank_facts& facts() const { return facts_; }
    const guarded_workspace& scratch() const { return workspace_; }

    // Caches all tokens before the step, from slots mapped here.
    void fill() {
        for (std::size_t i = 0; i < d_.requests.size(); ++i) {
            const std::int64_t old = d_.requests[i].length - d_.requests[i].rows;
            if (old <= 0) continue;
            const std::vector<element> rows = cached_rows(i, 0, old);
            std::vector<std::int64_t> positions;
            for (std::int64_t token = 0; token < old; ++token) positions.push_back(token);
            const shard part{d_.dcp(), facts_.shard, d_.interleave};
            const auto request = static_cast<std::int64_t>(i);
            if (i % 2 == 0) {
                std::vector<std::int64_t> slots(positions.size());
                map_slots(part, tables_.view(), request, positions, std::span<std::int64_t>(slots));
                write(index_of(slots.data()), rows.data(), old);
            } else {
                std::vector<std::int32_t> slots(positions.size());
                map_slots(part, tables_.view(), request, positions, std::span<std::int32_t>(slots));
                write(index_of(slots.data()), rows.data(), old);
            }
        }
        if (d_.mask.window > 0 || d_.mask.chunk > 0) tables_.forget_unseen(data_);
    }

    decode_batch batch() const {
        decode_batch batch;
        batch.requests = static_cast<std::int64_t>(d_.requests.size());
        batch.lengths = index_of(lengths_.data());
        batch.query_rows = index_of(rows_.data());
        batch.table = tables_.view();
        batch.mask = d_.mask;
        batch.tree_bits = d_.tree ? data_.tree_bits.data() : nullptr;
        return batch;
    }

    decode_step plan() { return plan_into(workspace_.view()); }
    decode_step plan_into(const workspace& memory) {
        if (d_.bounds_plan) return decoder_.plan(batch(), {d_.rows() + d_.pad_rows, d_.longest()}, memory, stream());
        return decoder_.plan(batch(), memory, stream());
    }

    // Caches the tokens of the step.
    void append(const decode_step& step) {
        std::size_t at = 0;
        for (std::size_t i = 0; i < d_.requests.size(); ++i) {
            const request& each = d_.requests[i];
            const std::int64_t before = std::max<std::int64_t>(0, each.rows - each.length); // rows before the start
            const std::vector<element> rows = cached_rows(i, each.length - each.rows + before, each.length);
            const auto width = static_cast<std::size_t>(d_.kv_heads * row_width());
            std::copy(rows.begin(), rows.end(),
                      new_rows_.begin() + static_cast<std::ptrdiff_t>((at + static_cast<std::size_t>(before)) * width));
            at += static_cast<std::size_t>(each.rows);
        }
        const std::int64_t count = d_.rows() + d_.pad_rows;
        decoder_.append(step, first_part(new_rows_.data(), count), second_part(new_rows_.data(), count), pool_.view(),
                        stream());
    }

    // Query rows in place of the planted ones: [rows][heads this rank is given][query_width()].
    void set_queries(const std::vector<float>& own) { own_queries_ = elements_of<element>(own); }

    head_view<const element> queries() {
        const std::int64_t rows = d_.rows() + d_.pad_rows;
        const heads_held held = facts_.queries;
        const auto whole = dense_view(static_cast<const element*>(queries_.data()), rows, d_.q_heads, d_.key_width);
        const auto slice = whole.slice_heads(held.first, held.count);
        if (own_queries_.empty() && !d_.strided_views) {
            for (std::int64_t row = 0; row < rows; ++row)
                for (std::int64_t head = 0; head < held.count; ++head)
                    own_queries_.insert(own_queries_.end(), slice.at(row, head), slice.at(row, head) + d_.key_width);
        }
        if (own_queries_.empty()) return slice;
        return dense_view(static_cast<const element*>(own_queries_.data()), rows, held.count, d_.query_width());
    }

    template <class Out, lse_base Base, class Maps = head_maps<>>
    void decode(const decode_step& step, const head_view<Out>& out, const head_view<lse<Base>>& lse_out,
                const Maps& maps = {}) {
        layer_options<Base> options;
        options.softmax_scale = d_.softmax_scale;
        options.soft_cap = d_.soft_cap;
        options.sinks = d_.sinks ? data_.sinks.data() + facts_.gathered.first : nullptr;
        options.lse_out = lse_out;
        decoder_.decode(step, queries(), kv_view<const kv_element>(pool_.view()), out, options, maps, stream());
    }

private:
    // Elements of one cached row of one head, keys and values together.
    std::int64_t row_width() const { return d_.key_width + (d_.is_mla ? 0 : d_.value_width); }
    std::int64_t second_at() const { return d_.is_mla ? d_.value_width : d_.key_width; }

    // [tokens][kv heads of the model][key, value] of the tokens [from, to) of a request.
    std::vector<element> cached_rows(std::size_t index, std::int64_t from, std::int64_t to) const {
        const planted_sequence& sequence = data_.sequences[index];
        std::vector<element> rows;
        for (std::int64_t cell = from * d_.kv_heads; cell < to * d_.kv_heads; ++cell) {
            for (std::int64_t x = 0; x < d_.key_width; ++x)
                rows.push_back(element_from<element>(sequence.k[static_cast<std::size_t>(cell * d_.key_width + x)]));
            for (std::int64_t x = 0; x < d_.value_width && !d_.is_mla; ++x)
                rows.push_back(element_from<element>(sequence.v[static_cast<std::size_t>(cell * d_.value_width + x)]));
        }
        return rows;
    }

    head_view<const element> part_of(const element* rows, std::int64_t count, std::int64_t at,
                                     std::int64_t width) const {
        head_view<const element> view = dense_view(rows, count, d_.kv_heads, row_width());
        view.base += at;
        view.width = width;
        return view.slice_heads(facts_.kv.first, facts_.kv.count);
    }
    head_view<const element> first_part(const element* rows, std::int64_t count) const {
        return part_of(rows, count, 0, second_at());
    }
    head_view<const element> second_part(const element* rows, std::int64_t count) const {
        return part_of(rows, count, second_at(), row_width() - second_at());
    }

    void write(const index_view& slots, const element* rows, std::int64_t count) {
        decoder_.append(slots, first_part(rows, count), second_part(rows, count), pool_.view(), stream());
        wait(); // slots and rows are the caller's
    }

    communicator& world_;
    const deployment& d_;
    rank_facts facts_;
    rank_groups<Ranks> groups_;
    rank_tables tables_;
    kv_pool<kv_element> pool_;
    const planted_data& data_;
    std::vector<element> queries_;     // [rows][q_heads][key_width] of the model
    std::vector<element> own_queries_; // [rows][heads given][key_width]
    std::vector<element> new_rows_;
    std::vector<std::int64_t> lengths_;
    std::vector<std::int32_t> rows_;
    decoder_type decoder_;
    guarded_workspace workspace_;
    typename Ranks::stream stream_; // the last one: its work needs all of the above
};

} // namespace ctxpar_test
