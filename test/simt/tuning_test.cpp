// The tiles of attention fit the devices that they are chosen for.
#include <ctxpar/backend/cuda/tuning.hpp>

#include <doctest/doctest.h>

#include <ctxpar/backend/cuda/attend_tiles.cuh>

using namespace ctxpar;

namespace {

// Stages that attention of these types would have on a device; 0: none.
template <class Tiles, class Q, class Kv>
int stages_on(int capability) {
    using layout = cuda::tile_layout<Tiles, Q, Kv>;
    const cuda::device_limits limits = cuda::limits_of(capability);
    const int stages = cuda::stages_for(limits, layout::stages, layout::stage_bytes, Tiles::shape.max_stages);
    if (stages > 0) CHECK(layout::stages + stages * layout::stage_bytes <= limits.shared_per_block);
    CHECK(stages <= Tiles::shape.max_stages);
    return stages;
}

template <int Width>
void check_width() {
    using few = cuda::tiles<Width, Width, false, false, 3>;
    using many = cuda::tiles<Width, Width, false, true, 3>;
    for (const int capability : {80, 90, 100}) {
        CHECK(stages_on<few, bf16, bf16>(capability) >= 2);
        CHECK(stages_on<few, f16, fp8_e4m3>(capability) >= 2);
        CHECK(stages_on<many, bf16, bf16>(capability) >= 2);
        CHECK(stages_on<many, f16, fp8_e4m3>(capability) >= 2);
    }
    CHECK(few::shape.threads() <= 1024);
    CHECK(many::shape.threads() <= 1024);
    CHECK(few::shape.value_tiles() * 8 * few::shape.columns == Width);
    CHECK(many::shape.value_tiles() * 8 * many::shape.columns == Width);
}

} // namespace

TEST_CASE("tiles of every head size fit data centre devices, in two stages or more") {
    check_width<64>();
    check_width<96>();
    check_width<128>();
    check_width<192>();
    check_width<256>();
}

TEST_CASE("tiles of MLA fit, those of few rows on small devices too") {
    using few = cuda::tiles<576, 512, true, false, 3>;
    using many = cuda::tiles<576, 512, true, true, 3>;
    for (const int capability : {80, 90, 100}) CHECK(stages_on<many, bf16, bf16>(capability) >= 2);
    for (const int capability : {80, 86, 89, 90, 100, 120}) CHECK(stages_on<few, bf16, bf16>(capability) >= 2);
}

TEST_CASE("devices that are not listed inherit what the ones before them have") {
    CHECK(cuda::limits_of(103).shared_per_block == cuda::limits_of(90).shared_per_block);
    CHECK(cuda::limits_of(87).shared_per_block == cuda::limits_of(80).shared_per_block);
    CHECK(cuda::limits_of(121).shared_per_block == cuda::limits_of(120).shared_per_block);
}
