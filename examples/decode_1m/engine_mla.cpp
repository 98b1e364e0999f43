#include "sharded_engine.hpp"

#include <ctxpar/attention/mla.hpp>

namespace demo {
namespace {

template <class Element, class KvElement>
std::unique_ptr<engine> make(const problem& all, const kv_data& data) {
    using attention = ctxpar::mla<Element, 512, 64, KvElement>;
    return std::make_unique<sharded_engine<attention>>(all, data, attention());
}

} // namespace

std::unique_ptr<engine> make_mla_engine(const problem& all, const kv_data& data) {
    using namespace ctxpar;
    if (all.kv_type == scalar_type::f16) return make<f16, f16>(all, data);
    return all.kv_type == scalar_type::e4m3 ? make<bf16, fp8_e4m3>(all, data) : make<bf16, bf16>(all, data);
}

} // namespace demo
