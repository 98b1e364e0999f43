// A merge chosen at run time: merge::dynamic{merge_kind::a2a}. All ranks of a group must choose the same.
#pragma once

#include <cstdint>
#include <string_view>

#include <ctxpar/core/error.hpp>
#include <ctxpar/merge/a2a.hpp>
#include <ctxpar/merge/ag_ar.hpp>
#include <ctxpar/merge/ag_rs.hpp>
#include <ctxpar/merge/deferred.hpp>

namespace ctxpar::inline v0_1 {

enum class merge_kind : std::uint8_t { ag_rs, ag_ar, a2a, deferred };

// The kind named "ag_rs", "ag_ar", "a2a" or "deferred"; config_error "merge" otherwise.
inline merge_kind merge_named(std::string_view name) {
    if (name == "ag_rs") return merge_kind::ag_rs;
    if (name == "ag_ar") return merge_kind::ag_ar;
    if (name == "a2a") return merge_kind::a2a;
    require(name == "deferred", "merge", "there is no merge called '", std::string(name),
            "'; there are ag_rs, ag_ar, a2a and deferred");
    return merge_kind::deferred;
}

namespace merge {

template <class P, lse_base Base>
struct dynamic_buffers {
    ag_buffers<P, Base> ag;
    a2a_buffers<P, Base> all_to_all;
};

class dynamic {
    template <class Visitor>
    constexpr auto visit(const Visitor& visitor) const {
        switch (kind) {
        case merge_kind::ag_rs:
            return visitor(ag_rs{});
        case merge_kind::ag_ar:
            return visitor(ag_ar{});
        case merge_kind::deferred:
            return visitor(deferred{});
        case merge_kind::a2a:
            break;
        }
        return visitor(a2a{});
    }

    // The buffers of a kind, const or not.
    template <class Buffers>
    static constexpr auto& of(a2a, Buffers& buffers) {
        return buffers.all_to_all;
    }
    template <class Merge, class Buffers>
    static constexpr auto& of(Merge, Buffers& buffers) {
        return buffers.ag;
    }

public:
    merge_kind kind = merge_kind::a2a;

    constexpr const char* name() const {
        return visit([](auto merge) { return merge.name(); });
    }
    constexpr bool scatters_heads() const {
        return visit([](auto merge) { return merge.scatters_heads(); });
    }
    constexpr bool knows_all_lse() const {
        return visit([](auto merge) { return merge.knows_all_lse(); });
    }
    constexpr bool leaves_partial_sums() const { return kind == merge_kind::deferred; }
    constexpr void schedule(const exchange_shape& shape, collective_schedule& list) const {
        visit([&](auto merge) { merge.schedule(shape, list); });
    }

    // Only the buffers of the chosen kind are carved.
    template <class P, lse_base Base>
    dynamic_buffers<P, Base> carve(carver& memory, const exchange_shape& shape) const {
        dynamic_buffers<P, Base> buffers;
        visit([&](auto merge) { of(merge, buffers) = merge.template carve<P, Base>(memory, shape); });
        return buffers;
    }

    template <class P, lse_base Base>
    partial_views<P, Base> partials(const exchange_shape& shape, std::int64_t rank,
                                    const dynamic_buffers<P, Base>& buffers) const {
        return visit([&](auto merge) { return merge.partials(shape, rank, of(merge, buffers)); });
    }

    template <communicator C, class Backend, class P, lse_base Base, class Out, lse_base OutBase>
    void run(C& kv, Backend& backend, const merge_call<Out, OutBase>& call, const dynamic_buffers<P, Base>& buffers,
             typename C::stream_type stream) const {
        visit([&](auto merge) { merge.run(kv, backend, call, of(merge, buffers), stream); });
    }
};

static_assert(merge_policy<dynamic>);

} // namespace merge

} // namespace ctxpar::inline v0_1
