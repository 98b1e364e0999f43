// The items of attention on the CPU cover every query vector and every split once, however KV heads are grouped.
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <random>
#include <tuple>

#include <ctxpar/backend/cpu/attend.hpp>

using namespace ctxpar;

TEST_CASE("Every (KV head, pair, split) of a segment belongs to one item") {
    std::mt19937 random(21);
    const auto upto = [&](std::int64_t n) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)) + 1;
    };
    int grouped = 0;
    int large = 0;
    for (int round = 0; round < 500; ++round) {
        attend_args<bf16, bf16, float, lse_base::natural> args;
        args.cache.kv_heads = upto(12);
        const std::int64_t group = upto(20);
        args.q = dense_view<const bf16>(nullptr, 100, args.cache.kv_heads * group, round % 3 == 0 ? 40 : 64);
        args.out = dense_view<float>(nullptr, 100, args.cache.kv_heads * group, 64);
        segment run;
        run.rows = upto(9);
        run.end = round % 7 == 0 ? 0 : upto(30000);
        schedule_splits(run, upto(8));
        const std::int64_t wanted = upto(64);
        const cpu::segment_items items(args, run, wanted);
        const bool streams = cpu::streams_keys(args, run.rows * group);
        const std::int64_t most_pairs = cpu::most_item_pairs(args.q.width, args.out.width);
        std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, int> seen;
        for (std::int64_t index = 0; index < items.count(); ++index) {
            const cpu::attend_item item = items.item(run, index);
            grouped += item.kv_heads > 1 ? 1 : 0;
            REQUIRE(item.pairs >= 1);
            REQUIRE(item.kv_head + item.kv_heads <= args.cache.kv_heads);
            CHECK(item.streams == streams); // how a row is walked must not depend on the items
            CHECK((item.kv_heads == 1 || streams));
            CHECK(item.pairs <= most_pairs);
            // Items are as large as may be, unless there would be fewer than wanted.
            large += item.pairs > cpu::pair_block ? 1 : 0;
            if (item.pairs > 2 * cpu::pair_block) CHECK(items.count() * 2 >= wanted);
            for (std::int64_t h = 0; h < item.kv_heads; ++h)
                for (std::int64_t i = 0; i < item.pairs; ++i)
                    ++seen[{item.kv_head + h, item.first_pair + i, item.split}];
        }
        const std::int64_t splits = run.splits() > 1 ? run.splits() : 1;
        CHECK(static_cast<std::int64_t>(seen.size()) == args.cache.kv_heads * run.rows * group * splits);
        bool once = true;
        for (const auto& [what, times] : seen) once = once && times == 1;
        CHECK(once);
    }
    CHECK(grouped > 0);
    CHECK(large > 0);
}
