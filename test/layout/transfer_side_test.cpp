// Caches described by regions, offsets and strides in bytes.
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/transfer_side.hpp>

#include "refusal.hpp"

namespace {

using ctxpar::memory_place;
using ctxpar::memory_region;
using ctxpar::transfer_plane;
using ctxpar_test::refusal_of;
using ctxpar_test::says;

} // namespace

TEST_CASE("a cache is described by its bytes") {
    std::vector<ctxpar::fp8_e4m3> memory(2 * 5 * 4 * 2 * 8);
    std::vector<float> scales(5 * 4 * 2);
    auto cache = ctxpar::joint_kv(memory.data() + 16, 5, 4, 2, 8, 8);
    const auto address = [](const void* data) {
        return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(data));
    };
    const std::vector<memory_region> regions = {{address(scales.data()), 160}, {address(memory.data()), 640}};
    ctxpar::transfer_geometry geometry = ctxpar::transfer_geometry_of(cache);
    CHECK(geometry.element == ctxpar::scalar_type::e4m3);
    CHECK((!geometry.values_in_keys && geometry.key_width == 8 && geometry.value_width == 8));
    CHECK((geometry.pages == 5 && geometry.page_size == 4));
    CHECK(geometry.planes[0] == transfer_plane{8, 128, 16, 8});
    CHECK(geometry.planes[1] == transfer_plane{8, 128, 16, 8});
    CHECK(geometry.planes[2] == transfer_plane{});
    CHECK(geometry.key_factor == 1.0F);
    ctxpar::transfer_layer layer = ctxpar::transfer_layer_of(cache, regions);
    CHECK(layer.planes[0] == memory_place{1, 16});
    CHECK(layer.planes[1] == memory_place{1, 80});
    CHECK(ctxpar::address_of(regions, layer.planes[1]) == address(memory.data() + 80));

    cache.k_scale = ctxpar::per_token(scales.data(), 8, 2, 1);
    cache.v_scale = ctxpar::per_head(scales.data());
    geometry = ctxpar::transfer_geometry_of(cache);
    CHECK(geometry.planes[2] == transfer_plane{4, 32, 8, 4});
    CHECK(geometry.planes[3] == transfer_plane{});
    CHECK((geometry.key_scale == ctxpar::scale_kind::token && geometry.value_scale == ctxpar::scale_kind::head));
    CHECK((std::isnan(geometry.key_factor) && std::isnan(geometry.value_factor)));
    CHECK(ctxpar::transfer_layer_of(cache, regions).planes[2] == memory_place{0, 0});
    CHECK(says(refusal_of([&] { ctxpar::transfer_layer_of(cache, std::span(regions).first(1)); }), "region",
               {"keys", "none of the 1"}));

    const auto latent = ctxpar::latent_kv(memory.data(), 5, 4, 12, 4);
    geometry = ctxpar::transfer_geometry_of(latent);
    CHECK((geometry.values_in_keys && geometry.key_width == 16 && geometry.value_width == 12));
    CHECK(geometry.planes[1] == transfer_plane{});
    cache.pages = -1;
    CHECK(says(refusal_of([&] { ctxpar::transfer_geometry_of(cache); }), "size", {"-1 pages"}));

    void* pages[] = {memory.data() + 640 - 1, memory.data()};
    CHECK(ctxpar::transfer_pages_of(pages, regions) == std::vector<memory_place>{{1, 639}, {1, 0}});
    pages[1] = memory.data() + 640;
    CHECK(says(refusal_of([&] { ctxpar::transfer_pages_of(pages, std::span(regions).last(1)); }), "region", {"pages"}));
}
