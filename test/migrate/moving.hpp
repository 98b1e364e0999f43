// A request whose cache goes from one layout to another, on real bytes: every token of every layer has bits of its own,
// made from its position, so that each can be looked for where the law says that it is.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <suite_ranks.hpp>

#include <ctxpar/migrate.hpp>

#include "../support/deployment.hpp"

namespace moving {

using namespace ctxpar;
using ctxpar_test::random_numbers;
using ctxpar_test::scale_choice;
using ctxpar_test::suite_ranks;

struct side {
    std::int64_t ranks = 1;
    std::int64_t interleave = 1;
    std::int64_t block = 4;
    std::int64_t first = 0; // rank of the domain

    // The law as semantics states it, apart from the library's.
    bool owns(std::int64_t rank, std::int64_t token) const { return token / interleave % ranks == rank - first; }
    std::int64_t local(std::int64_t token) const {
        return token / (ranks * interleave) * interleave + token % interleave;
    }
};

struct setting {
    std::int64_t domain = 1;
    side from, to;
    std::int64_t length = 0;
    std::int64_t chunk = 16;
    std::int64_t kv_heads = 2;
    std::int64_t layers = 2;
    page_order from_order = page_order::nhd;
    page_order to_order = page_order::nhd;
    scale_choice scales = scale_choice::none;
    bool one_pool = true; // both layouts in one pool of each layer
    check_level checks = check_level::collective;
    std::uint64_t seed = 1;
};

inline std::string describe(const setting& s) {
    const auto text = [](const side& x) {
        return sentence("(", x.ranks, ",", x.interleave, ",", x.block, ",", x.first, ")");
    };
    return sentence("domain ", s.domain, " ", text(s.from), " -> ", text(s.to), " length ", s.length, " chunk ",
                    s.chunk, " one pool ", static_cast<int>(s.one_pool), " orders ", static_cast<int>(s.from_order),
                    static_cast<int>(s.to_order), " scales ", static_cast<int>(s.scales));
}

inline std::uint64_t bits_of(std::int64_t layer, std::int64_t token, std::int64_t place) {
    return random_numbers(static_cast<std::uint64_t>((token * 64 + layer) * 4096 + place)).next();
}

// One layer's pool: bytes of 0xEE until tokens are written.
template <class Attention>
class pool {
public:
    using kv = typename Attention::kv_element;

    pool(const setting& s, page_order order, std::int64_t slots) : pages_((slots + page - 1) / page) {
        const Attention widths{};
        const std::int64_t key = widths.query_width(), value = widths.value_width();
        const std::int64_t heads = s.kv_heads, rows = pages_ * page;
        const std::int64_t elements = rows * heads * (key + (Attention::values_in_keys ? 0 : value));
        const std::int64_t scales_at = (elements * static_cast<std::int64_t>(sizeof(kv)) + 15) / 16 * 16;
        memory_.assign(static_cast<std::size_t>(scales_at + (2 * rows + 2) * heads * 4), std::byte{0xEE});
        kv* const k = reinterpret_cast<kv*>(memory_.data());
        if constexpr (Attention::values_in_keys) {
            view_ = latent_kv(k, pages_, page, value, key - value);
        } else {
            kv* const v = k + rows * heads * key;
            view_ = order == page_order::nhd ? nhd_kv(k, v, pages_, page, heads, key, value)
                                             : hnd_kv(k, v, pages_, page, heads, key, value);
        }
        set_scales(s.scales, heads, reinterpret_cast<float*>(memory_.data() + scales_at), rows);
    }

    const kv_view<kv>& view() const { return view_; }
    const std::vector<std::byte>& bytes() const { return memory_; }
    void clear() { std::fill(memory_.begin(), memory_.end(), std::byte{0xEE}); }

    // Calls use(bytes of a vector or a scale, how many, place) for all that is a token's own.
    template <class Use>
    void each_vector(std::int64_t slot, const Use& use) const {
        std::int64_t place = 0;
        for (std::int64_t head = 0; head < view_.kv_heads; ++head) {
            use(view_.key(slot, head), view_.key_width * sizeof(kv), place += 64);
            if (!Attention::values_in_keys) use(view_.value(slot, head), view_.value_width * sizeof(kv), place += 64);
            for (const kv_scale* scale : {&view_.k_scale, &view_.v_scale}) {
                if (scale->kind != scale_kind::token || (scale->head_stride == 0 && head > 0)) continue;
                if (Attention::values_in_keys && scale == &view_.v_scale) continue;
                use(scale->data + scale->offset(view_.page_of(slot), view_.token_of(slot), head), sizeof(float),
                    place += 64);
            }
        }
    }

    void write(std::int64_t slot, std::int64_t layer, std::int64_t token) {
        each_vector(slot, [&](void* at, std::size_t count, std::int64_t place) {
            for (std::size_t i = 0; i < count; ++i)
                static_cast<std::uint8_t*>(at)[i] =
                    static_cast<std::uint8_t>(bits_of(layer, token, place + static_cast<std::int64_t>(i)));
        });
    }
    bool holds(std::int64_t slot, std::int64_t layer, std::int64_t token) const {
        bool same = true;
        each_vector(slot, [&](const void* at, std::size_t count, std::int64_t place) {
            for (std::size_t i = 0; i < count; ++i)
                same = same && static_cast<const std::uint8_t*>(at)[i] ==
                                   static_cast<std::uint8_t>(bits_of(layer, token, place + static_cast<int>(i)));
        });
        return same;
    }
    bool is_untouched(std::int64_t slot) const {
        bool same = true;
        each_vector(slot, [&](const void* at, std::size_t count, std::int64_t) {
            for (std::size_t i = 0; i < count; ++i) same = same && static_cast<const std::uint8_t*>(at)[i] == 0xEE;
        });
        return same;
    }

private:
    static constexpr std::int64_t page = 4; // tokens, whatever the blocks

    void set_scales(scale_choice choice, std::int64_t heads, float* at, std::int64_t rows) {
        float* const of_values = Attention::values_in_keys ? at : at + rows * heads;
        if (choice == scale_choice::head) {
            view_.k_scale = per_head(at);
            view_.v_scale = per_head(of_values);
        } else if (choice == scale_choice::tensor) {
            view_.k_scale = view_.v_scale = per_tensor(0.25F);
        } else if (choice == scale_choice::token) {
            view_.k_scale = per_token(at, page * heads, heads, 1);
            view_.v_scale = per_token(of_values, page * heads, heads, 1);
        } else if (choice == scale_choice::shared_token) {
            view_.k_scale = per_token(at, page, 1, 0);
            view_.v_scale = per_token(of_values, page, 1, 0);
        }
    }

    std::int64_t pages_;
    std::vector<std::byte> memory_;
    kv_view<kv> view_;
};

// One rank of the domain, with pools and tables of its own: blocks are others on every rank.
template <class Attention, class Communicator = suite_ranks::communicator>
class rank {
public:
    using kv = typename Attention::kv_element;
    using mover = migrator<Attention, typename suite_ranks::backend, Communicator>;

    // Tables have room for `room` tokens.
    rank(Communicator& world, const setting& s, std::int64_t room)
        : world_(world), s_(s), random_(s.seed * 977 + static_cast<std::uint64_t>(world.rank())) {
        const std::int64_t from_blocks = blocks_of(s.from, room), to_blocks = blocks_of(s.to, room);
        const std::int64_t from_slots = from_blocks * s.from.block;
        const std::int64_t first_target = s.one_pool ? (from_slots + s.to.block - 1) / s.to.block : 0;
        from_table_ = ids(0, from_blocks);
        to_table_ = ids(first_target, to_blocks);
        const std::int64_t to_slots = (first_target + to_blocks) * s.to.block;
        for (std::int64_t i = 0; i < s.layers; ++i) {
            from_pools_.emplace_back(s, s.from_order, s.one_pool ? to_slots : from_slots);
            if (!s.one_pool) to_pools_.emplace_back(s, s.to_order, to_slots);
        }
        for (std::size_t i = 0; i < from_pools_.size(); ++i)
            layers.push_back({from_pools_[i].view(), s.one_pool ? from_pools_[i].view() : to_pools_[i].view()});
        job.from = request_of(s.from, from_table_);
        job.to = request_of(s.to, to_table_);
    }
    rank(const rank&) = delete;

    migration job;
    std::vector<migrated_layer<kv>> layers;

    // The engine appends tokens in the source layout.
    void append(std::int64_t first, std::int64_t end) {
        each_own(s_.from, from_table_, first, end, [&](std::int64_t slot, std::int64_t token) {
            for (std::size_t i = 0; i < from_pools_.size(); ++i)
                from_pools_[i].write(slot, static_cast<std::int64_t>(i), token);
        });
    }

    migration_shape shape() const {
        const bool own = s_.scales == scale_choice::token, shared = s_.scales == scale_choice::shared_token;
        return {s_.kv_heads, own ? s_.kv_heads : (shared ? 1 : 0), s_.chunk};
    }

    // Tables have no more blocks than `length` tokens take.
    void fit_tables(std::int64_t length) {
        job.from.table.columns = blocks_of_own(s_.from, length);
        job.to.table.columns = blocks_of_own(s_.to, length);
    }

    // All that is left of the tokens before `length`, step by step.
    void move_all(mover& used, std::int64_t length) {
        host_workspace memory(used.workspace_bytes());
        do {
            const auto step = used.plan(job, length, layers, memory, stream_.get());
            used.move(step, stream_.get());
            job.done = step.end;
            world_.wait(stream_.get());
        } while (job.done < length);
    }

    // Tokens [first, end) of a side that are not where the law has them.
    std::int64_t wrong_in_source(std::int64_t first, std::int64_t end) {
        return wrong(s_.from, from_table_, from_pools_, first, end);
    }
    std::int64_t wrong_in_target(std::int64_t first, std::int64_t end) {
        return wrong(s_.to, to_table_, s_.one_pool ? from_pools_ : to_pools_, first, end);
    }

    // Slots that hold something, of all layers and pools.
    std::int64_t touched_slots() const {
        std::int64_t count = 0;
        for (const auto* pools : {&from_pools_, &to_pools_})
            for (const pool<Attention>& each : *pools)
                for (std::int64_t slot = 0; slot < each.view().slots(); ++slot)
                    count += each.is_untouched(slot) ? 0 : 1;
        return count;
    }
    std::int64_t own_tokens(const side& x, std::int64_t first, std::int64_t end) const {
        std::int64_t count = 0;
        for (std::int64_t token = first; token < end; ++token) count += has(x) && x.owns(world_.rank(), token) ? 1 : 0;
        return count;
    }

    std::vector<pool<Attention>>& source() { return from_pools_; }
    std::vector<pool<Attention>>& target() { return s_.one_pool ? from_pools_ : to_pools_; }
    std::vector<std::int32_t>& source_table() { return from_table_; }
    std::vector<std::int32_t>& target_table() { return to_table_; }
    typename suite_ranks::stream_type stream() const { return stream_.get(); }
    Communicator& world() { return world_; }

    bool has(const side& x) const { return world_.rank() >= x.first && world_.rank() < x.first + x.ranks; }

private:
    std::int64_t blocks_of(const side& x, std::int64_t room) const {
        const std::int64_t most = (room / (x.ranks * x.interleave) + 1) * x.interleave;
        return (most + x.block - 1) / x.block;
    }
    std::int64_t blocks_of_own(const side& x, std::int64_t length) const {
        return (own_tokens(x, 0, length) + x.block - 1) / x.block;
    }
    std::vector<std::int32_t> ids(std::int64_t first, std::int64_t count) {
        std::vector<std::int32_t> list;
        for (std::int64_t i = 0; i < count; ++i) list.push_back(static_cast<std::int32_t>(first + i));
        random_.shuffle(list);
        return list;
    }
    domain_request request_of(const side& x, const std::vector<std::int32_t>& table) const {
        if (!has(x)) return {{x.ranks, x.interleave}, x.first, {}, 0}; // not looked at
        return {{x.ranks, x.interleave},
                x.first,
                table_2d(table.data(), 1, static_cast<std::int64_t>(table.size()), x.block),
                0};
    }
    template <class Use>
    void each_own(const side& x, const std::vector<std::int32_t>& table, std::int64_t first, std::int64_t end,
                  const Use& use) const {
        for (std::int64_t token = first; has(x) && token < end; ++token) {
            if (!x.owns(world_.rank(), token)) continue;
            const std::int64_t local = x.local(token);
            use(table[static_cast<std::size_t>(local / x.block)] * x.block + local % x.block, token);
        }
    }
    std::int64_t wrong(const side& x, const std::vector<std::int32_t>& table, const std::vector<pool<Attention>>& pools,
                       std::int64_t first, std::int64_t end) const {
        std::int64_t count = 0;
        each_own(x, table, first, end, [&](std::int64_t slot, std::int64_t token) {
            for (std::size_t i = 0; i < pools.size(); ++i)
                count += pools[i].holds(slot, static_cast<std::int64_t>(i), token) ? 0 : 1;
        });
        return count;
    }

    Communicator& world_;
    setting s_;
    random_numbers random_;
    typename suite_ranks::stream stream_;
    std::vector<std::int32_t> from_table_, to_table_;
    std::vector<pool<Attention>> from_pools_, to_pools_;
};

// Runs fn(world) on all ranks of the domain.
template <class Fn>
void on_domain(const setting& s, const Fn& fn) {
    ctxpar_test::deployment d;
    d.sizes.tp = s.domain;
    d.checks = s.checks;
    d.seed = s.seed;
    suite_ranks::run(d, fn);
}

} // namespace moving
