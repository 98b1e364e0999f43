// What the calls of a step refuse before they write, and how ranks find out that they plan different things.
#include <doctest/doctest.h>

#include <string>

#include "refusals.hpp"
#include "small_world.hpp"

using namespace refusals;

TEST_CASE("append refuses rows and caches that do not fit") {
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step& step) {
                   r.used.append(step, r.k().slice_rows(0, 5), r.v(), r.cache(), {});
               }),
               "shape", {"k has 5 rows", "6 rows"}));
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step& step) {
                   kv_view<bf16> cache = r.cache();
                   cache.kv_heads = 1;
                   r.used.append(step, r.k(), r.v(), cache, {});
               }),
               "kv_heads", {"1 heads", "2"}));
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step& step) {
                   kv_view<bf16> cache = r.cache();
                   cache.pages = 2;
                   r.used.append(step, r.k(), r.v(), cache, {});
               }),
               "pool", {"8 slots", "need 20"}));
}

TEST_CASE("attend refuses tensors, steps and options that do not fit") {
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step& step) { r.attend(step, r.q().slice_heads(0, 3)); }),
               "shape", {"q has 6 rows of 3 heads", "4 heads"}));
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step& step) {
                   r.used.attend(step, r.q(), kv_view<const bf16>(r.cache()), r.o().slice_rows(0, 4), layer_options<>{},
                                 {});
               }),
               "shape", {"out has 4 rows"}));
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step& step) {
                   layer_options<> options;
                   options.lse_out = dense_view(r.lse.data(), 6, 4, 1);
                   r.used.attend(step, r.q(), kv_view<const bf16>(r.cache()), r.o(), options, {});
               }),
               "merged_lse", {"merged_lse"}));
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step&) { r.attend(prefill_step{}, r.q()); }), "step",
               {"not planned"}));
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step& step) {
                   step.prefiller ^= 2;
                   r.attend(step, r.q());
               }),
               "step", {"another policy or shape"}));
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step& step) {
                   const auto project = [](auto, auto, auto, auto, host_stream) {};
                   r.used.attend(step, r.q(), projected_rows<bf16, float>{r.q(), r.o()}, project,
                                 kv_view<const bf16>(r.cache()), r.o(), layer_options<>{}, {});
               }),
               "projection", {"absorbed"}));
}

TEST_CASE("scatter and restore refuse rows of other counts or widths") {
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step& step) {
                   r.used.scatter(step, head_view<const float>(r.rows()).slice_rows(0, 5), r.rows(), {});
               }),
               "shape", {"all has 5 rows", "6 rows"}));
    CHECK(says(refusal_after_plan([](one_rank& r, prefill_step& step) {
                   r.used.restore_last(step, head_view<const float>(r.rows()), r.rows(), {});
               }),
               "shape", {"6 rows", "2 rows"}));
}

TEST_CASE("restore over ranks needs to know how wide a row is") {
    small_world::setting s;
    s.sizes.pcp = 2;
    s.requests = {{0, 5, false}};
    const small_world::all_groups world(s);
    std::vector<std::string> refusal(2);
    small_world::on_all_ranks(s, [&](std::int64_t rank) {
        small_world::one_rank<> one(s, world, rank);
        const prefill_step step = one.plan();
        std::vector<double> unused;
        std::vector<float> own(static_cast<std::size_t>(step.rows()) * 5, 1.0F), all(25, -5.0F);
        refusal[static_cast<std::size_t>(rank)] = refusal_of([&] {
            one.used().restore(step, dense_view(static_cast<const float*>(own.data()), step.rows(), 1, 5),
                               dense_view(all.data(), 5, 1, 5), {});
        });
        CHECK(all == std::vector<float>(25, -5.0F));
    });
    for (const std::string& each : refusal) CHECK(says(each, "hidden", {"20 bytes", "16"}));
}

TEST_CASE("rows whose keys travel need the scales that the shape says") {
    using quantised = policy<gqa<bf16, 8, 8, fp8_e4m3>, interleave<1>, merge::a2a>;
    const auto refusal = [](scale_kind said, scale_kind cached, bool by_page) {
        local_options silent;
        silent.checks = check_level::off; // one rank alone, which talks to no one
        local_world kv(2, silent), rows(2, silent);
        local_communicator kv_rank = kv.rank(0), rows_rank = rows.rank(0);
        prefill_shape shape = small_shape();
        shape.sizes.pcp = shape.sizes.dcp = 2;
        shape.kv_scales = said;
        prefiller<quantised, cpu_backend, local_communicator> used({&kv_rank, nullptr, nullptr, &rows_rank}, shape);
        host_workspace memory(used.workspace_bytes());
        std::vector<fp8_e4m3> keys(2 * 4 * 2 * 8), values(keys.size());
        std::vector<float> scales(64, 1.0F);
        kv_view<fp8_e4m3> cache = nhd_kv(keys.data(), values.data(), 2, 4, 2, 8, 8);
        if (cached == scale_kind::token) cache.k_scale = cache.v_scale = per_token(scales.data(), 8, 2, 1);
        if (cached == scale_kind::head) cache.k_scale = cache.v_scale = per_head(scales.data());
        if (by_page) cache.v_scale.page_stride = 2;
        return refusal_of([&] {
            const prefill_step step = used.plan({}, memory, {});
            const head_view<const bf16> none{nullptr, 0, 2, 8, 2};
            used.append(step, none, none, cache, {});
        });
    };
    for (const scale_kind kind : {scale_kind::tensor, scale_kind::head, scale_kind::token})
        CHECK(refusal(kind, kind, false) == "none");
    CHECK(refusal(scale_kind::tensor, scale_kind::head, false) == "none"); // neither differs from token to token
    CHECK(says(refusal(scale_kind::tensor, scale_kind::token, false), "kv_scale", {"a scale for each", "kv_scales"}));
    CHECK(says(refusal(scale_kind::token, scale_kind::head, false), "kv_scale", {"no scale", "says token"}));
    CHECK(says(refusal(scale_kind::head, scale_kind::head, true), "kv_scale", {"page to page"}));
}

TEST_CASE("the scales of values are looked at too, in pools of page pointers as elsewhere") {
    prefill_shape shape = small_shape();
    shape.kv_scales = scale_kind::tensor;
    detail::prefill_limits limits;
    limits.shape = shape;
    limits.shape.sizes.dcp = 2;
    limits.row = {2, 8, 8, false, false};
    std::vector<float> scales(64, 1.0F);
    void* pages[1] = {};
    kv_view<const fp8_e4m3> cache = paged_pointers_kv<fp8_e4m3>(pages, 1, 0, 0, 64, 4, 2, 8, 8);
    CHECK(refusal_of([&] { detail::check_travelling_scales(cache, limits); }) == "none");
    cache.v_scale = per_token(scales.data(), 8, 2, 1);
    CHECK(says(refusal_of([&] { detail::check_travelling_scales(cache, limits); }), "kv_scale", {"a scale for each"}));
}

TEST_CASE("ranks that plan different batches stop, and say so") {
    small_world::setting s;
    s.sizes.pcp = s.sizes.dcp = 2;
    s.requests = {{9, 6, false}};
    small_world::setting other = s;
    other.requests = {{8, 7, false}};
    const small_world::all_groups world(s);
    std::vector<std::string> codes(2);
    small_world::on_all_ranks(s, [&](std::int64_t rank) {
        small_world::one_rank<> one(rank == 0 ? s : other, world, rank);
        try {
            one.plan();
        } catch (const comm_error& problem) {
            codes[static_cast<std::size_t>(rank)] = problem.code();
        }
    });
    CHECK(codes == std::vector<std::string>(2, "digest"));
}
