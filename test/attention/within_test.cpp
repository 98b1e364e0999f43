// A row's sight of a part of its sequence against asking every key, and rows that see nothing, wherever that is said.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <attention/plain_rows.hpp>

#include <ctxpar/attention/batch.hpp>
#include <ctxpar/attention/rows.hpp>

using namespace ctxpar;

namespace {

std::int64_t at_most(std::mt19937_64& random, std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
}

// A row that nothing produced: any prefix, interval and tail that are legal.
visible_keys random_row(std::mt19937_64& random, std::int64_t longest) {
    visible_keys row;
    row.hi = at_most(random, longest);
    row.lo = at_most(random, row.hi);
    row.prefix = random() % 2 == 0 ? 0 : at_most(random, row.lo);
    row.tail = random() % 3 == 0 ? row.hi : row.hi - at_most(random, std::min<std::int64_t>(row.hi, max_tree_nodes));
    row.tail_bits = random();
    return row;
}

// Whether `part` sees exactly those of keys [0, length) of which it is true.
template <class Sees>
bool sees_exactly(const visible_keys& part, std::int64_t length, const Sees& sees) {
    std::int64_t count = 0;
    for (std::int64_t key = 0; key < length + 70; ++key) {
        const bool expected = key < length && sees(key);
        if (part.sees(key) != expected) return false;
        count += expected ? 1 : 0;
    }
    for (std::int64_t first = 0; first < length + 40; first += 7)
        for (std::int64_t x = 0; x < 32; ++x)
            if ((part.tile_mask(first) >> x & 1U) != (part.sees(first + x) ? 1U : 0U)) return false;
    const bool ordered = 0 <= part.prefix && part.prefix <= part.lo && part.lo <= part.hi && part.hi <= length &&
                         part.tail <= part.hi && part.hi - part.tail <= max_tree_nodes;
    return ordered && part.count() == count;
}

bool same_sight(const visible_keys& a, const visible_keys& b, std::int64_t length) {
    return sees_exactly(a, length, [&](std::int64_t key) { return b.sees(key); }) &&
           sees_exactly(b, length, [&](std::int64_t key) { return a.sees(key); });
}

template <class Body>
void for_each_shard(Body body) {
    for (std::int64_t ranks = 1; ranks <= 4; ++ranks)
        for (const std::int64_t interleave : {1, 2, 3, 16})
            for (std::int64_t rank = 0; rank < ranks; ++rank) body(shard{ranks, rank, interleave});
}

const mask_rule all_rules[] = {{},        {1, 0, 0}, {5, 0, 0}, {0, 4, 0}, {0, 1, 0},
                               {5, 0, 3}, {3, 0, 9}, {0, 4, 2}, {6, 9, 2}, {0, 0, 1000}};

} // namespace

TEST_CASE("A part of a row sees those of its keys that the row sees, and nothing else, for any row and cut") {
    std::mt19937_64 random(81);
    int wrong = 0;
    for (int round = 0; round < 4000; ++round) {
        const visible_keys row = random_row(random, round % 2 == 0 ? 20 : 150);
        const std::int64_t start = at_most(random, row.hi + 5);
        const std::int64_t length = at_most(random, row.hi + 5);
        wrong +=
            sees_exactly(within(row, start, length), length, [&](std::int64_t key) { return row.sees(start + key); })
                ? 0
                : 1;
    }
    CHECK(wrong == 0);
}

TEST_CASE("Every cut of a small sequence, under every mask and with draft trees, is what asking its tokens gives") {
    std::mt19937_64 random(82);
    for (const mask_rule& rule : all_rules)
        for (const std::int64_t total : {1, 2, 7, 12})
            for (const bool tree : {false, true}) {
                int wrong = 0;
                for (std::int64_t rows = 1; rows <= std::min<std::int64_t>(total, 5); ++rows)
                    for (std::int64_t i = 0; i < rows; ++i) {
                        const std::uint64_t bits = random() % 32;
                        const std::uint64_t* given = tree ? &bits : nullptr;
                        const visible_keys row = causal_row(total, rows, i, rule, given);
                        for (std::int64_t start = 0; start <= total; ++start)
                            for (std::int64_t length = 0; start + length <= total + 2; ++length)
                                wrong +=
                                    sees_exactly(within(row, start, length), length,
                                                 [&](std::int64_t key) {
                                                     return plain::row_sees(total, rows, i, rule, given, start + key);
                                                 })
                                        ? 0
                                        : 1;
                    }
                CHECK(wrong == 0);
            }
}

TEST_CASE("A tree of 64 nodes may be cut anywhere") {
    std::mt19937_64 random(83);
    int wrong = 0;
    for (int round = 0; round < 50; ++round) {
        const std::uint64_t bits = round == 0 ? ~std::uint64_t{0} : random();
        const std::int64_t total = 64 + at_most(random, 20);
        const visible_keys row = causal_row(total, 64, at_most(random, 63), {}, &bits);
        for (std::int64_t start = 0; start < total; ++start)
            for (const std::int64_t length : {std::int64_t{1}, std::int64_t{5}, total - start})
                wrong += sees_exactly(within(row, start, length), length,
                                      [&](std::int64_t key) { return row.sees(start + key); })
                             ? 0
                             : 1;
    }
    CHECK(wrong == 0);
}

TEST_CASE("Parts that follow one another have every key of the row once, and a part of a part is a part") {
    std::mt19937_64 random(84);
    int wrong = 0;
    for (int round = 0; round < 2000; ++round) {
        const visible_keys row = random_row(random, 100);
        std::int64_t counted = 0;
        for (std::int64_t start = 0; start < row.hi;) {
            const std::int64_t length = 1 + at_most(random, 30);
            counted += within(row, start, length).count();
            start += length;
        }
        wrong += counted == row.count() ? 0 : 1;
        wrong += same_sight(within(row, 0, row.hi), row, row.hi) ? 0 : 1;

        const std::int64_t start = at_most(random, 40);
        const std::int64_t length = at_most(random, 60);
        const std::int64_t again = at_most(random, length);
        const std::int64_t rest = at_most(random, length - again);
        const visible_keys once = within(row, start + again, rest);
        wrong += same_sight(within(within(row, start, length), again, rest), once, rest) ? 0 : 1;
    }
    CHECK(wrong == 0);
}

TEST_CASE("From a multiple of a round on, the local keys of a part are a part of the local keys") {
    std::mt19937_64 random(85);
    for_each_shard([&](const shard& part) {
        int wrong = 0;
        for (int round = 0; round < 60; ++round) {
            const visible_keys row = random_row(random, 120);
            const std::int64_t unit = part.ranks * part.interleave;
            const std::int64_t start = at_most(random, 120 / unit) * unit;
            const std::int64_t length = at_most(random, 80);
            const std::int64_t first = part.local_len(start);
            const std::int64_t count = part.local_len(start + length) - first;
            wrong +=
                same_sight(localise(within(row, start, length), part), within(localise(row, part), first, count), count)
                    ? 0
                    : 1;
        }
        CHECK(wrong == 0);
    });
}

TEST_CASE("Parts past 2^32 keep their place") {
    const std::int64_t start = std::int64_t{1} << 36;
    const std::uint64_t bits = 0b101;
    const visible_keys row = causal_row(start + 9, 3, 2, {1000, 0, 16}, &bits);
    const visible_keys part = within(row, start, 9);
    CHECK(part.count() == 8); // all but the second node
    CHECK_FALSE(part.sees(7));
    CHECK(within(row, 0, start).count() == 16 + 1000 - 9);
    CHECK(within(row, start, std::int64_t{1} << 40).hi == 9);
}

TEST_CASE("A row that sees nothing may say so anywhere: lo = hi = tail") {
    for (const std::int64_t at : {0, 1, 31, 32, 33, 64, 100}) {
        const visible_keys nothing{0, at, at, at, 0};
        CHECK(sees_exactly(nothing, at, [](std::int64_t) { return false; }));
        for (const std::int64_t start : {0, 5, 32, 200}) {
            const visible_keys part = within(nothing, start, 40);
            CHECK(part.count() == 0);
            CHECK(part.lo == part.hi);
            CHECK(part.tail == part.hi);
            CHECK(part.prefix == 0);
        }
        for_each_shard([&](const shard& part) {
            const visible_keys local = localise(nothing, part);
            CHECK(local == visible_keys{0, local.hi, local.hi, local.hi, 0});
            CHECK(local.hi ==
                  static_cast<std::int64_t>(plain::positions_of(part.ranks, part.interleave, part.rank, at).size()));
        });
    }
}

TEST_CASE("A row that sees nothing is live nowhere, has no length, and leaves its segment as it is") {
    for_each_shard([](const shard& part) {
        std::vector<visible_keys> rows(3);
        std::vector<std::uint8_t> live(static_cast<std::size_t>(3 * part.ranks), 77);
        std::vector<std::int64_t> lengths(3, 77), requests(3, 77);
        step_arrays out;
        out.rows = rows.data();
        out.live = live.data();
        out.row_lengths = lengths.data();
        out.row_requests = requests.data();
        write_row(out, part, 3, 1, 4, {0, 90, 90, 90, 0});
        for (std::int64_t rank = 0; rank < part.ranks; ++rank) {
            CHECK(live[static_cast<std::size_t>(3 * rank + 1)] == 0);
            CHECK(live[static_cast<std::size_t>(3 * rank)] == 77);
        }
        CHECK(rows[1].lo == part.local_len(90));
        CHECK(lengths == std::vector<std::int64_t>{77, 0, 77});
        CHECK(requests == std::vector<std::int64_t>{77, 4, 77});

        segment run;
        run.begin = 3;
        run.end = 8;
        widen(run, rows[1]);
        CHECK(run.begin == 3);
        CHECK(run.end == 8);
        segment empty;
        widen(empty, rows[1]);
        CHECK(empty.begin == empty.end);
    });
}
