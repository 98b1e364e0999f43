// A merge policy written by a user of the library: the library's own merge, chosen at run time, and on request a fault
// in what is merged.
#pragma once

#include <ctxpar/attention/softmax_state.hpp>
#include <ctxpar/core/lse.hpp>
#include <ctxpar/merge/dynamic.hpp>

#include "problem.hpp"

namespace demo {

struct faulty_merge {
    ctxpar::merge::dynamic real;
    fault injected = fault::none;

    const char* name() const { return real.name(); }
    bool scatters_heads() const { return real.scatters_heads(); }
    bool knows_all_lse() const { return real.knows_all_lse(); }
    void schedule(const ctxpar::exchange_shape& shape, ctxpar::collective_schedule& list) const {
        real.schedule(shape, list);
    }
    template <class P, ctxpar::lse_base Base>
    auto carve(ctxpar::carver& memory, const ctxpar::exchange_shape& shape) const {
        return real.carve<P, Base>(memory, shape);
    }
    template <class P, ctxpar::lse_base Base>
    auto partials(const ctxpar::exchange_shape& shape, std::int64_t rank,
                  const ctxpar::merge::dynamic_buffers<P, Base>& buffers) const {
        return real.partials(shape, rank, buffers);
    }

    template <ctxpar::communicator C, class Backend, class P, ctxpar::lse_base Base, class Out,
              ctxpar::lse_base OutBase>
    void run(C& kv, Backend& backend, const ctxpar::merge_call<Out, OutBase>& call,
             const ctxpar::merge::dynamic_buffers<P, Base>& buffers, typename C::stream_type stream) const {
        const auto own = real.partials(call.shape, call.rank, buffers).lse_out;
        for (std::int64_t row = 0; row < own.rows; ++row)
            for (std::int64_t head = 0; head < own.heads; ++head) spoil(*own.at(row, head), call.rank);
        real.run(kv, backend, call, buffers, stream);
    }

private:
    template <ctxpar::lse_base Base>
    void spoil(ctxpar::lse<Base>& value, std::int64_t rank) const {
        if (ctxpar::is_minus_infinity(value.value)) return;
        if (injected == fault::mean_merge) value = {0.0F};                         // all shards weigh the same
        if (injected == fault::wrong_base) value = {value.value * ctxpar::log2_e}; // base 2, taken for natural
        if (injected == fault::drop_shard && rank == 0) value = {};                // as if rank 0 held nothing
    }
};

static_assert(ctxpar::merge_policy<faulty_merge>);

} // namespace demo
