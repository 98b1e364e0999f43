// One rank of a deployment with a real prefiller over its own pool, block tables and communicators. What it is given is
// cut from the planted data of the whole model; what it does not own it never sees, and what pads hold must not matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "decode_rank.hpp"
#include "prefill_exactness.hpp"

namespace ctxpar_test {

// The arrays by which an engine states a batch, in one of the forms that it may choose.
class batch_arrays {
public:
    batch_arrays(const prefill_deployment& d, const prefill_data& data, const new_batch& batch)
        : trees_(d.tree && decode_rows_of(batch) > 0), offsets_form_(d.seed % 3 == 0),
          kinds_form_(d.seed % 2 == 0 || decode_rows_of(batch) > 0) {
        std::int64_t row = 0;
        offsets_.push_back(0);
        for (const new_tokens& each : batch) {
            computed_.push_back(static_cast<std::int32_t>(each.computed));
            tokens_.push_back(each.tokens);
            offsets_.push_back(offsets_.back() + static_cast<std::int32_t>(each.tokens));
            kinds_.push_back(each.decodes ? 1 : 0);
            kinds_form_ = kinds_form_ || each.decodes;
            for (std::int64_t i = 0; i < each.tokens && each.decodes && trees_; ++i)
                tree_bits_.push_back(data.tree_bits[static_cast<std::size_t>(row + i)]);
            row += each.tokens;
        }
    }

    prefill_batch view(const prefill_deployment& d, const block_table& table) const {
        prefill_batch batch;
        batch.requests = static_cast<std::int64_t>(computed_.size());
        batch.computed = index_of(computed_.data());
        if (offsets_form_) {
            batch.row_offsets = index_of(offsets_.data());
        } else {
            batch.tokens = index_of(tokens_.data());
        }
        if (kinds_form_) batch.kinds = index_of(kinds_.data());
        batch.table = table;
        batch.mask = d.mask;
        if (trees_) batch.tree_bits = tree_bits_.data();
        return batch;
    }

private:
    bool trees_, offsets_form_, kinds_form_;
    std::vector<std::int32_t> computed_, offsets_, kinds_;
    std::vector<std::int64_t> tokens_;
    std::vector<std::uint64_t> tree_bits_;
};

// The groups of a decoder, and the PCP group.
template <class Ranks>
struct prefill_groups {
    using communicator = typename Ranks::communicator;
    rank_groups<Ranks> decode;
    std::optional<communicator> rows;

    prefill_groups(communicator& world, const prefill_deployment& d) : decode(world, d) {
        const mesh ranks(d.sizes, {d.is_mla ? attention_kind::mla : attention_kind::gqa, d.q_heads, d.kv_heads});
        const rank_group mine = ranks.groups_of(world.rank()).rows;
        rows = Ranks::split(world, static_cast<int>(mine.color), static_cast<int>(mine.key));
        if (d.seed % 2 == 0 && d.sizes.pcp == 1) rows.reset();
    }
    groups<communicator> pointers() {
        groups<communicator> all = decode.pointers();
        all.rows = rows ? &*rows : nullptr;
        return all;
    }
    std::uint64_t bytes_sent() const { return decode.bytes_sent() + (rows ? rows->bytes_sent() : 0); }
};

inline prefill_shape shape_of(const prefill_deployment& d, std::int64_t rank, std::int64_t pool_blocks) {
    prefill_shape shape;
    shape.sizes = d.sizes;
    shape.q_heads = d.q_heads;
    shape.kv_heads = d.kv_heads;
    shape.rank = d.seed % 2 == 0 ? rank : -1;
    shape.max_requests =
        std::max({std::int64_t{1}, d.room_requests, static_cast<std::int64_t>(d.batch.size() + d.seed % 2)});
    for (const new_batch& step : steps_of(d)) shape.max_rows = std::max(shape.max_rows, rows_of_ranks(d, step));
    shape.max_rows = std::max(d.room_rows, shape.max_rows + static_cast<std::int64_t>(d.seed % 3));
    shape.max_decode_rows = decode_rows_of(d.batch);
    shape.longest = d.longest();
    shape.pool_blocks = pool_blocks;
    shape.split = d.split;
    shape.prefill_rows = d.prefill_rows;
    shape.decode_rows = d.decode_rows;
    shape.context_rows = d.context_rows;
    const bool token_scales = d.scales == scale_choice::token || d.scales == scale_choice::shared_token;
    shape.kv_scales = token_scales ? scale_kind::token : scale_kind::tensor;
    shape.projected_query_width = d.projects() ? d.projected_key_width() : 0;
    shape.projected_value_width = d.projected_value_width;
    shape.merged_lse = d.merged_lse;
    shape.output = d.output;
    shape.max_splits = d.max_splits;
    shape.hidden_bytes = d.hidden_bytes;
    return shape;
}

// Writes tokens that a rank owns into its pool, by plain code.
template <class Kv>
class plain_cache {
public:
    // `tables` before any block is forgotten.
    plain_cache(const prefill_deployment& d, const prefill_data& data, const rank_facts& facts,
                const rank_tables& tables)
        : d_(d), data_(data), facts_(facts) {
        const block_table table = tables.view();
        for (std::size_t i = 0; i < d.requests.size(); ++i) {
            std::int64_t local = 0;
            slots_.emplace_back();
            for (std::int64_t token = 0; token < d.requests[i].length; ++token) {
                const bool mine = d.owner(token) == facts.shard;
                const std::int64_t slot = table.id(static_cast<std::int64_t>(i), local / d.block_size) * d.block_size;
                slots_.back().push_back(mine ? slot + local % d.block_size : -1);
                local += mine ? 1 : 0;
            }
        }
    }

    // The first tokens of every request: those before its new ones, or all.
    void write(const kv_view<Kv>& pool, bool new_ones_too) const {
        for (std::size_t i = 0; i < d_.requests.size(); ++i) {
            const cached_sequence cache = cached(d_, data_, i);
            const std::int64_t count = d_.requests[i].length - (new_ones_too ? 0 : d_.requests[i].rows);
            for (std::int64_t token = 0; token < count; ++token) {
                const std::int64_t slot = slots_[i][static_cast<std::size_t>(token)];
                if (slot < 0) continue;
                write_plane(pool.k, pool.k_scale, slot, token, d_.key_width, cache.k, cache.k_scale);
                if (!d_.is_mla) write_plane(pool.v, pool.v_scale, slot, token, d_.value_width, cache.v, cache.v_scale);
            }
        }
    }

private:
    void write_plane(const kv_plane<Kv>& plane, const kv_scale& scale, std::int64_t slot, std::int64_t token,
                     std::int64_t width, const std::vector<float>& stored, const std::vector<float>& factors) const {
        const std::int64_t page_size = d_.page_size == 0 ? d_.block_size : d_.page_size;
        for (std::int64_t head = 0; head < facts_.kv.count; ++head) {
            const std::int64_t cell = token * d_.kv_heads + facts_.kv.first + head;
            Kv* const place = plane.at(slot / page_size, slot % page_size, head);
            for (std::int64_t x = 0; x < width; ++x)
                place[x] = element_from<Kv>(stored[static_cast<std::size_t>(cell * width + x)]);
            if (d_.scales == scale_choice::token || d_.scales == scale_choice::shared_token)
                scale.data[scale.offset(slot / page_size, slot % page_size, head)] =
                    factors[static_cast<std::size_t>(cell)];
        }
    }

    const prefill_deployment& d_;
    const prefill_data& data_;
    rank_facts facts_;
    std::vector<std::vector<std::int64_t>> slots_; // of each token of each request, -1 where another rank owns it
};

// The up-projection of one rank: its own heads, latents in the order in which they come. It is plain code, for which
// the latents must be there.
template <class E, class Ranks>
struct up_projection {
    const prefill_deployment& d;
    const prefill_data& data;
    heads_held own;

    void operator()(const head_view<const E>& latent, const head_view<const E>& rope, const head_view<E>& keys,
                    const head_view<E>& values, typename Ranks::stream_type stream) const {
        Ranks::finish(stream);
        std::vector<float> row(static_cast<std::size_t>(d.value_width));
        for (std::int64_t i = 0; i < latent.rows; ++i) {
            for (std::size_t x = 0; x < row.size(); ++x) row[x] = number_of(latent.at(i, 0)[x]);
            for (std::int64_t head = 0; head < own.count; ++head) {
                const auto write = [&](const std::vector<float>& weights, std::int64_t width, E* to) {
                    const auto made = up_projected(weights, own.first + head, width, row.data(), d.value_width);
                    for (std::int64_t x = 0; x < width; ++x)
                        to[x] = element_from<E>(static_cast<float>(
                            rounded_to(format_of(scalar_type_of<E>), made[static_cast<std::size_t>(x)])));
                };
                write(data.key_weights, d.nope_width, keys.at(i, head));
                std::copy_n(rope.at(i, 0), d.rope_width(), keys.at(i, head) + d.nope_width);
                write(data.value_weights, d.projected_value_width, values.at(i, head));
            }
        }
    }
};

template <class Policy, class Backend = suite_ranks::backend, class Ranks = suite_ranks>
class prefill_rank {
public:
    using element = typename Policy::element;
    using kv_element = typename Policy::attention_type::kv_element;
    using communicator = typename Ranks::communicator;
    using prefiller_type = prefiller<Policy, Backend, communicator>;

    prefill_rank(communicator& world, const prefill_deployment& d, const prefill_data& data, const Policy& policy,
                 const Backend& backend)
        : world_(world), d_(d), data_(data), pcp_rank_(world.rank() / d.sizes.tp), facts_(facts_of(d, world.rank())),
          groups_(world, d), tables_(d, facts_.shard),
          pool_(d, facts_.kv, tables_.pool_blocks() * d.block_size, data.head_scales), plain_(d, data, facts_, tables_),
          prefiller_(prefiller_of(policy, backend)), workspace_(prefiller_.workspace_bytes()) {}
    prefill_rank(const prefill_rank&) = delete;
    prefill_rank& operator=(const prefill_rank&) = delete;
    ~prefill_rank() { beside_.reset(); } // where a test has failed, with work that needs the memory below

    prefiller_type& used() { return prefiller_; }
    prefill_groups<Ranks>& communicators() { return groups_; }
    typename Ranks::stream_type stream() const { return stream_.get(); }
    void wait() { world_.wait(stream()); }
    const rank_facts& facts() const { return facts_; }
    const guarded_workspace& scratch() const { return workspace_; }

    // Caches the context by plain code, where no earlier step does.
    void fill_plainly() { plain_.write(pool_.view(), false); }

    // Takes blocks away that no new row of the step sees. The step before it is done.
    void forget_unseen() {
        if ((d_.mask.window > 0 || d_.mask.chunk > 0) && !d_.tree) tables_.forget_unseen(data_);
    }

    // Whether the pool holds all tokens that are this rank's, and nothing else.
    bool pool_holds() const {
        const kv_pool<kv_element> right(d_, facts_.kv, tables_.pool_blocks() * d_.block_size, data_.head_scales);
        plain_.write(right.view(), true);
        std::vector<std::byte> held(pool_.data(), pool_.data() + pool_.bytes());
        if (void* const* mine = pool_.view().k.pages) { // where pages lie is each pool's own
            const auto at = reinterpret_cast<const std::byte*>(mine) - pool_.data();
            std::memcpy(held.data() + at, right.data() + at,
                        static_cast<std::size_t>(pool_.view().pages) * sizeof(void*));
        }
        return std::memcmp(right.data(), held.data(), held.size()) == 0;
    }

    // Begins a step: its rows are planned, and what they hold is laid out. The step before it is done.
    prefill_step plan(const new_batch& batch) {
        arrays_.emplace(d_, data_, batch);
        std::memset(workspace_.view().data, 0xff, workspace_.view().bytes);
        const prefill_step step = prefiller_.plan(arrays_->view(d_, tables_.view()), workspace_.view(), stream());
        rows_ = filled_rows(d_, batch, pcp_rank_);
        batch_ = batch;
        return step;
    }

    // What is wrong with the places of the rows of a step that is done, if anything.
    std::string wrong_places(const prefill_step& step) const {
        if (step.rows() != static_cast<std::int64_t>(rows_.size()))
            return sentence("there are ", step.rows(), " rows in place of ", rows_.size());
        for (std::size_t row = 0; row < rows_.size(); ++row) {
            const own_row& own = rows_[row];
            const std::int64_t position =
                own.request < 0 ? 0 : batch_[static_cast<std::size_t>(own.request)].computed + own.token;
            if (step.positions()[row] != position)
                return sentence("row ", row, " is at position ", step.positions()[row], " in place of ", position);
        }
        return "";
    }

    void append(const prefill_step& step) {
        const std::int64_t second = d_.is_mla ? d_.rope_width() : d_.value_width;
        const std::int64_t first = d_.is_mla ? d_.value_width : d_.key_width;
        std::vector<element>&k = new_first_, &v = new_second_;
        k.clear();
        v.clear();
        for (const own_row& own : rows_) {
            for (std::int64_t head = 0; head < facts_.kv.count; ++head) {
                if (!own.real) {
                    k.insert(k.end(), static_cast<std::size_t>(first), of_pads());
                    v.insert(v.end(), static_cast<std::size_t>(second), of_pads());
                    continue;
                }
                const planted_sequence& sequence = data_.sequences[static_cast<std::size_t>(own.request)];
                const std::int64_t token = batch_[static_cast<std::size_t>(own.request)].computed + own.token;
                const std::int64_t cell = token * d_.kv_heads + facts_.kv.first + head;
                add(sequence.k, cell * d_.key_width, first, k);
                add(d_.is_mla ? sequence.k : sequence.v, d_.is_mla ? cell * d_.key_width + first : cell * second,
                    second, v);
            }
        }
        prefiller_.append(step, rows_of(k, facts_.kv.count, first), rows_of(v, facts_.kv.count, second), pool_.view(),
                          stream());
    }

    template <class Out, lse_base Base>
    void attend(const prefill_step& step, const head_view<Out>& out, const head_view<Out>& projected,
                const head_view<lse<Base>>& lse_out) {
        const std::int64_t heads = facts_.own.count;
        layer_options<Base> options;
        options.softmax_scale = d_.softmax_scale;
        options.soft_cap = d_.soft_cap;
        options.sinks = d_.sinks ? data_.sinks.data() + facts_.gathered.first : nullptr;
        options.lse_out = lse_out;
        const kv_view<const kv_element> cache(pool_.view());
        q_ = own_queries(data_.queries, d_.key_width);
        const auto q_rows = rows_of(q_, heads, d_.key_width);
        if constexpr (Policy::attention_type::values_in_keys) {
            if (d_.projects()) {
                wide_q_ = own_queries(data_.projected_queries, d_.projected_key_width());
                const projected_rows<element, Out> rows{rows_of(wide_q_, heads, d_.projected_key_width()), projected};
                prefiller_.attend(step, q_rows, rows, up_projection<element, Ranks>{d_, data_, facts_.own}, cache, out,
                                  options, stream());
                return;
            }
        }
        prefiller_.attend(step, q_rows, cache, out, options, stream());
    }

private:
    // For every second seed context travels on a stream of its own, where there are streams.
    prefiller_type prefiller_of(const Policy& policy, const Backend& backend) {
        const prefill_shape shape = shape_of(d_, world_.rank(), tables_.pool_blocks());
        if constexpr (event_backend<Backend>) {
            if (d_.seed % 2 == 1) {
                beside_.emplace();
                return prefiller_type(groups_.pointers(), shape, policy, backend, beside_->get());
            }
        }
        return prefiller_type(groups_.pointers(), shape, policy, backend);
    }

    // Ones, or a NaN that is not the one of unwritten memory.
    element of_pads() const {
        element value = element_from<element>(1.0F);
        if (d_.finite_pads) return value;
        std::memset(static_cast<void*>(&value), 0xff, sizeof(value));
        reinterpret_cast<unsigned char*>(&value)[sizeof(value) - 1] = 0x7f;
        return value;
    }

    static void add(const std::vector<float>& from, std::int64_t at, std::int64_t count, std::vector<element>& to) {
        for (std::int64_t x = 0; x < count; ++x)
            to.push_back(element_from<element>(from[static_cast<std::size_t>(at + x)]));
    }

    // [rows][own heads][width]
    std::vector<element> own_queries(const std::vector<std::vector<float>>& queries, std::int64_t width) const {
        std::vector<element> own;
        for (const own_row& row : rows_) {
            if (!row.real) {
                own.insert(own.end(), static_cast<std::size_t>(facts_.own.count * width), of_pads());
                continue;
            }
            const std::int64_t token = batch_[static_cast<std::size_t>(row.request)].computed + row.token;
            add(queries[static_cast<std::size_t>(row.request)], (token * d_.q_heads + facts_.own.first) * width,
                facts_.own.count * width, own);
        }
        return own;
    }

    head_view<const element> rows_of(const std::vector<element>& values, std::int64_t heads, std::int64_t width) const {
        return dense_view(values.data(), static_cast<std::int64_t>(rows_.size()), heads, width);
    }

    communicator& world_;
    const prefill_deployment& d_;
    const prefill_data& data_;
    std::int64_t pcp_rank_;
    rank_facts facts_;
    prefill_groups<Ranks> groups_;
    rank_tables tables_;
    kv_pool<kv_element> pool_;
    plain_cache<kv_element> plain_;
    std::optional<typename Ranks::stream> beside_;
    prefiller_type prefiller_;
    guarded_workspace workspace_;
    std::optional<batch_arrays> arrays_;
    std::vector<own_row> rows_;
    new_batch batch_;
    std::vector<element> new_first_, new_second_, q_, wide_q_; // of the step, which may not be done yet
    typename Ranks::stream stream_;                            // the last one: its work needs all of the above
};

} // namespace ctxpar_test
