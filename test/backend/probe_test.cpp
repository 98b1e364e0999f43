// The probe names what an attention really writes.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include <ctxpar/attention/mla.hpp>
#include <ctxpar/backend/cpu.hpp>
#include <ctxpar/backend/probe.hpp>
#include <ctxpar/backend/with_attention.hpp>

#include "plain_attention.hpp"

using namespace ctxpar;
using support::attention_fault;
using support::plain_attention;

namespace {

template <class Backend>
std::string refusal_of(Backend backend) {
    try {
        check_attention(backend, gqa<bf16, 16>{}, {});
    } catch (const config_error& refused) {
        CHECK(refused.code() == "attention");
        return refused.what();
    }
    return "";
}

template <lse_base Base, attention_fault Fault>
std::string refusal_of_callable() {
    return refusal_of(with_attention<cpu_backend, plain_attention<Base, Fault>>{});
}

} // namespace

TEST_CASE("a base is named by the LSE of known scores, and nothing else passes for one") {
    CHECK(base_of_lse(0.693147F, std::log(2.0)) == probed_base::natural);
    CHECK(base_of_lse(1.0F, std::log(2.0)) == probed_base::binary);
    CHECK(base_of_lse(0.85F, std::log(2.0)) == probed_base::neither);
    CHECK(base_of_lse(std::nanf(""), std::log(2.0)) == probed_base::neither);
}

TEST_CASE("the CPU backend passes the probe with every policy") {
    cpu_backend backend;
    check_attention(backend, gqa<bf16, 128>{}, {});
    check_attention(backend, gqa<f16, 1>{}, {});
    check_attention(backend, gqa<float, 5, 3, fp8_e4m3>{}, {});
    check_attention(backend, mla<bf16, 512, 64>{}, {});
    const attention_report report = probe_attention(backend, gqa<bf16, 64>{}, {});
    CHECK(report.base == probed_base::natural);
    CHECK(report.lse_in_place);
    CHECK(report.outputs_right);
}

TEST_CASE("a callable that keeps its word passes in either base") {
    CHECK(refusal_of_callable<lse_base::natural, attention_fault::none>().empty());
    CHECK(refusal_of_callable<lse_base::binary, attention_fault::none>().empty());
}

TEST_CASE("each broken promise is refused with what was found") {
    CHECK(refusal_of_callable<lse_base::binary, attention_fault::natural_base>().find("fits natural") !=
          std::string::npos);
    CHECK(refusal_of_callable<lse_base::natural, attention_fault::head_major>().find("LSE of every row") !=
          std::string::npos);
    CHECK(refusal_of_callable<lse_base::natural, attention_fault::one_length>().find("LSE of every row") !=
          std::string::npos);
    CHECK(refusal_of_callable<lse_base::natural, attention_fault::values_off>().find("softmax means") !=
          std::string::npos);
}
