// The engine for multi-head latent attention, of any communicator.
#pragma once

#include <ctxpar/attention/mla.hpp>

#include "sharded_engine.hpp"

namespace demo {

template <class Communicator>
std::unique_ptr<engine_over<Communicator>> mla_engine_over(const problem& all, const kv_data& data) {
    using namespace ctxpar;
    const auto make = [&](auto element, auto kv_element) -> std::unique_ptr<engine_over<Communicator>> {
        using attention = mla<decltype(element), 512, 64, decltype(kv_element)>;
        return std::make_unique<sharded_engine<attention, Communicator>>(all, data, attention());
    };
    if (all.kv_type == scalar_type::f16) return make(f16{}, f16{});
    return all.kv_type == scalar_type::e4m3 ? make(bf16{}, fp8_e4m3{}) : make(bf16{}, bf16{});
}

} // namespace demo
