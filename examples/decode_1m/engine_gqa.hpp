// The engine for grouped-query attention, of any communicator.
#pragma once

#include <ctxpar/attention/gqa.hpp>

#include "sharded_engine.hpp"

namespace demo {

template <class Communicator>
std::unique_ptr<engine_over<Communicator>> gqa_engine_over(const problem& all, const kv_data& data) {
    using namespace ctxpar;
    const auto make = [&](auto element, auto kv_element) -> std::unique_ptr<engine_over<Communicator>> {
        using attention = gqa<decltype(element), dynamic, dynamic, decltype(kv_element)>;
        return std::make_unique<sharded_engine<attention, Communicator>>(all, data,
                                                                         attention(all.query_width, all.value_width));
    };
    if (all.kv_type == scalar_type::f16) return make(f16{}, f16{});
    return all.kv_type == scalar_type::e4m3 ? make(bf16{}, fp8_e4m3{}) : make(bf16{}, bf16{});
}

} // namespace demo
