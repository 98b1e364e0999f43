// The zigzag split of batches worked by hand.
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/zigzag.hpp>

namespace {

using ctxpar::row_kind;
using ctxpar::zigzag;
using ctxpar::zigzag_request;
using ctxpar::zigzag_segment;
using ctxpar::zigzag_split;
using numbers = std::vector<std::int64_t>;
using requests = std::vector<zigzag_request>;
using segments = std::vector<zigzag_segment>;

zigzag_request prefill(std::int64_t tokens, std::int64_t computed = 0) {
    return {tokens, computed, row_kind::prefill};
}
zigzag_request decode(std::int64_t tokens, std::int64_t computed) {
    return {tokens, computed, row_kind::decode};
}

std::string joined(const numbers& values) {
    std::string text;
    for (const std::int64_t value : values) text += " " + std::to_string(value);
    return text;
}

// "1101" of {true, true, false, true}
std::string marks(const std::vector<bool>& values) {
    std::string text;
    for (const bool value : values) text += value ? '1' : '0';
    return text;
}

// All arrays of a plan: rows; for each rank its segments (request, first, count, context) and positions; the rest.
std::string text_of(const zigzag& plan) {
    std::string text = "M " + std::to_string(plan.rows()) + " | ";
    for (std::int64_t rank = 0; rank < plan.law().pcp; ++rank) {
        text += "r" + std::to_string(rank) + " ";
        for (const zigzag_segment& run : plan.segments(rank))
            text += "(" + std::to_string(run.request) + "," + std::to_string(run.first) + "," +
                    std::to_string(run.count) + "," + std::to_string(run.context) + ")";
        text += (plan.segments(rank).empty() ? "pos" : " pos") + joined(plan.positions(rank)) + " | ";
    }
    return text + "gather" + joined(plan.gather()) + " | restore" + joined(plan.restore()) + " | kv " +
           marks(plan.kv_write()) + " | work" + joined(plan.work());
}

numbers gather_of(std::int64_t ranks, const requests& batch, zigzag_split split = zigzag_split::balanced) {
    return zigzag(ranks, batch, split).gather();
}

numbers restore_of(std::int64_t ranks, const requests& batch, zigzag_split split = zigzag_split::balanced) {
    return zigzag(ranks, batch, split).restore();
}

std::int64_t rows_of(std::int64_t ranks, const requests& batch, zigzag_split split = zigzag_split::balanced) {
    return zigzag(ranks, batch, split).rows();
}

} // namespace

TEST_CASE("whole plans worked by hand") {
    struct example {
        std::int64_t ranks;
        zigzag_split split;
        requests batch;
        const char* text;
    };
    const std::vector<example> examples = {
        {2,
         zigzag_split::balanced,
         {prefill(7)},
         "M 4 | "
         "r0 (0,0,2,0)(0,6,1,6) pos 0 1 6 | "
         "r1 (0,2,2,2)(0,4,2,4) pos 2 3 4 5 | "
         "gather 0 1 6 -1 2 3 4 5 | "
         "restore 0 1 4 5 6 7 2 | "
         "kv 11101111 | "
         "work 10 18"},
        {2,
         zigzag_split::balanced,
         {prefill(8)},
         "M 4 | "
         "r0 (0,0,2,0)(0,6,2,6) pos 0 1 6 7 | "
         "r1 (0,2,2,2)(0,4,2,4) pos 2 3 4 5 | "
         "gather 0 1 6 7 2 3 4 5 | "
         "restore 0 1 4 5 6 7 2 3 | "
         "kv 11111111 | "
         "work 18 18"},
        {2,
         zigzag_split::balanced,
         {prefill(8, 16)},
         "M 4 | "
         "r0 (0,0,2,16)(0,6,2,22) pos 16 17 22 23 | "
         "r1 (0,2,2,18)(0,4,2,20) pos 18 19 20 21 | "
         "gather 0 1 6 7 2 3 4 5 | "
         "restore 0 1 4 5 6 7 2 3 | "
         "kv 11111111 | "
         "work 82 82"},
        {2,
         zigzag_split::balanced,
         {prefill(18)},
         "M 9 | "
         "r0 (0,0,5,0)(0,14,4,14) pos 0 1 2 3 4 14 15 16 17 | "
         "r1 (0,5,5,5)(0,10,4,10) pos 5 6 7 8 9 10 11 12 13 | "
         "gather 0 1 2 3 4 14 15 16 17 5 6 7 8 9 10 11 12 13 | "
         "restore 0 1 2 3 4 9 10 11 12 13 14 15 16 17 5 6 7 8 | "
         "kv 111111111111111111 | "
         "work 81 90"},
        {2,
         zigzag_split::ceil,
         {prefill(18)},
         "M 10 | "
         "r0 (0,0,5,0)(0,15,3,15) pos 0 1 2 3 4 15 16 17 | "
         "r1 (0,5,5,5)(0,10,5,10) pos 5 6 7 8 9 10 11 12 13 14 | "
         "gather 0 1 2 3 4 15 16 17 -1 -1 5 6 7 8 9 10 11 12 13 14 | "
         "restore 0 1 2 3 4 10 11 12 13 14 15 16 17 18 19 5 6 7 | "
         "kv 11111111001111111111 | "
         "work 66 105"},
        {2,
         zigzag_split::padded,
         {prefill(18)},
         "M 10 | "
         "r0 (0,0,5,0)(0,15,5,15) pos 0 1 2 3 4 15 16 17 18 19 | "
         "r1 (0,5,5,5)(0,10,5,10) pos 5 6 7 8 9 10 11 12 13 14 | "
         "gather 0 1 2 3 4 15 16 17 -1 -1 5 6 7 8 9 10 11 12 13 14 | "
         "restore 0 1 2 3 4 10 11 12 13 14 15 16 17 18 19 5 6 7 | "
         "kv 11111111001111111111 | "
         "work 66 105"},
        {2,
         zigzag_split::balanced,
         {decode(1, 20), prefill(8)},
         "M 5 | "
         "r0 (0,0,1,20)(1,0,2,0)(1,6,2,6) pos 20 0 1 6 7 | "
         "r1 (0,0,1,20)(1,2,2,2)(1,4,2,4) pos 20 2 3 4 5 | "
         "gather 0 1 2 7 8 0 3 4 5 6 | "
         "restore 0 1 2 6 7 8 9 3 4 | "
         "kv 1111101111 | "
         "work 18 18"},
        {2,
         zigzag_split::balanced,
         {decode(1, 20), prefill(8, 16), prefill(5)},
         "M 8 | "
         "r0 (0,0,1,20)(1,0,2,16)(1,6,2,22)(2,0,2,0)(2,4,1,4) pos 20 16 17 22 23 0 1 4 | "
         "r1 (0,0,1,20)(1,2,2,18)(1,4,2,20)(2,2,1,2)(2,3,1,3) pos 20 18 19 20 21 2 3 | "
         "gather 0 1 2 7 8 9 10 13 0 3 4 5 6 11 12 -1 | "
         "restore 0 1 2 9 10 11 12 3 4 5 6 13 14 7 | "
         "kv 1111111101111110 | "
         "work 90 89"},
        {2,
         zigzag_split::padded,
         {decode(1, 30), prefill(5), prefill(8)},
         "M 9 | "
         "r0 (0,0,1,30)(1,0,2,0)(1,6,2,6)(2,0,2,0)(2,6,2,6) pos 30 0 1 6 7 0 1 6 7 | "
         "r1 (0,0,1,30)(1,2,2,2)(1,4,2,4)(2,2,2,2)(2,4,2,4) pos 30 2 3 4 5 2 3 4 5 | "
         "gather 0 1 2 -1 -1 6 7 12 13 0 3 4 5 -1 8 9 10 11 | "
         "restore 0 1 2 10 11 12 5 6 14 15 16 17 7 8 | "
         "kv 111001111011101111 | "
         "work 21 30"},
        {2,
         zigzag_split::balanced,
         {prefill(8), prefill(6)},
         "M 7 | "
         "r0 (0,0,2,0)(0,6,2,6)(1,0,2,0)(1,5,1,5) pos 0 1 6 7 0 1 5 | "
         "r1 (0,2,2,2)(0,4,2,4)(1,2,2,2)(1,4,1,4) pos 2 3 4 5 2 3 4 | "
         "gather 0 1 6 7 8 9 13 2 3 4 5 10 11 12 | "
         "restore 0 1 7 8 9 10 2 3 4 5 11 12 13 6 | "
         "kv 11111111111111 | "
         "work 27 30"},
        {3,
         zigzag_split::balanced,
         {prefill(13)},
         "M 5 | "
         "r0 (0,0,3,0)(0,11,2,11) pos 0 1 2 11 12 | "
         "r1 (0,3,2,3)(0,9,2,9) pos 3 4 9 10 | "
         "r2 (0,5,2,5)(0,7,2,7) pos 5 6 7 8 | "
         "gather 0 1 2 11 12 3 4 9 10 -1 5 6 7 8 -1 | "
         "restore 0 1 2 5 6 10 11 12 13 7 8 3 4 | "
         "kv 111111111011110 | "
         "work 31 30 30"},
        {3,
         zigzag_split::ceil,
         {prefill(13)},
         "M 6 | "
         "r0 (0,0,3,0) pos 0 1 2 | "
         "r1 (0,3,3,3)(0,12,1,12) pos 3 4 5 12 | "
         "r2 (0,6,3,6)(0,9,3,9) pos 6 7 8 9 10 11 | "
         "gather 0 1 2 -1 -1 -1 3 4 5 12 -1 -1 6 7 8 9 10 11 | "
         "restore 0 1 2 6 7 8 12 13 14 15 16 17 9 | "
         "kv 111000111100111111 | "
         "work 6 28 57"},
        {4,
         zigzag_split::balanced,
         {prefill(16)},
         "M 4 | "
         "r0 (0,0,2,0)(0,14,2,14) pos 0 1 14 15 | "
         "r1 (0,2,2,2)(0,12,2,12) pos 2 3 12 13 | "
         "r2 (0,4,2,4)(0,10,2,10) pos 4 5 10 11 | "
         "r3 (0,6,2,6)(0,8,2,8) pos 6 7 8 9 | "
         "gather 0 1 14 15 2 3 12 13 4 5 10 11 6 7 8 9 | "
         "restore 0 1 4 5 8 9 12 13 14 15 10 11 6 7 2 3 | "
         "kv 1111111111111111 | "
         "work 34 34 34 34"},
        {4,
         zigzag_split::balanced,
         {prefill(10)},
         "M 3 | "
         "r0 (0,0,2,0)(0,9,1,9) pos 0 1 9 | "
         "r1 (0,2,2,2)(0,8,1,8) pos 2 3 8 | "
         "r2 (0,4,1,4)(0,7,1,7) pos 4 7 | "
         "r3 (0,5,1,5)(0,6,1,6) pos 5 6 | "
         "gather 0 1 9 2 3 8 4 7 -1 5 6 -1 | "
         "restore 0 1 3 4 6 9 10 7 5 2 | "
         "kv 111111110110 | "
         "work 13 16 13 13"},
        {4,
         zigzag_split::balanced,
         {prefill(3)},
         "M 1 | "
         "r0 (0,0,1,0) pos 0 | "
         "r1 (0,1,1,1) pos 1 | "
         "r2 (0,2,1,2) pos 2 | "
         "r3 pos | "
         "gather 0 1 2 -1 | "
         "restore 0 1 2 | "
         "kv 1110 | "
         "work 1 2 3 0"},
        {2,
         zigzag_split::balanced,
         {prefill(1)},
         "M 1 | "
         "r0 (0,0,1,0) pos 0 | "
         "r1 pos | "
         "gather 0 -1 | "
         "restore 0 | "
         "kv 10 | "
         "work 1 0"},
        {2,
         zigzag_split::balanced,
         {decode(1, 5), decode(1, 5), decode(1, 5)},
         "M 3 | "
         "r0 (0,0,1,5)(1,0,1,5)(2,0,1,5) pos 5 5 5 | "
         "r1 (0,0,1,5)(1,0,1,5)(2,0,1,5) pos 5 5 5 | "
         "gather 0 1 2 0 1 2 | "
         "restore 0 1 2 | "
         "kv 111000 | "
         "work 0 0"}};
    for (const example& e : examples) CHECK(text_of(zigzag(e.ranks, e.batch, e.split)) == e.text);
}

TEST_CASE("pads never count, are never restored, and keep their real positions") {
    const zigzag plan(2, requests{prefill(5, 10)}, zigzag_split::padded);
    CHECK(plan.positions(0) == numbers{10, 11, 16, 17});
    CHECK(plan.positions(1) == numbers{12, 13, 14, 15});
    CHECK(plan.segments(0) == segments{{0, 0, 2, 10}, {0, 6, 2, 16}});
    CHECK(plan.gather() == numbers{0, 1, -1, -1, 2, 3, 4, -1});
    CHECK(plan.restore() == numbers{0, 1, 4, 5, 6});
    CHECK(marks(plan.kv_write()) == "11001110");
    CHECK(plan.work() == numbers{23, 42});
    CHECK(plan.last() == numbers{6});
}

TEST_CASE("a chunk of pads alone stays, a chunk of no rows goes") {
    CHECK(zigzag(2, requests{prefill(1)}, zigzag_split::padded).segments(1) == segments{{0, 1, 1, 1}, {0, 2, 1, 2}});
    CHECK(zigzag(2, requests{prefill(1)}, zigzag_split::ceil).segments(1).empty());
    CHECK(zigzag(2, requests{prefill(1)}).segments(1).empty());
    const zigzag none(3, requests{prefill(0, 12), decode(0, 4)}, zigzag_split::padded);
    CHECK(none.rows() == 0);
    CHECK(none.gather().empty());
    CHECK(none.last() == numbers{-1, -1});
}

TEST_CASE("eight tokens on two ranks are the same under every split") {
    for (const zigzag_split split : {zigzag_split::balanced, zigzag_split::padded, zigzag_split::ceil}) {
        const zigzag plan(2, requests{prefill(8)}, split);
        CHECK(plan.positions(0) == numbers{0, 1, 6, 7});
        CHECK(plan.positions(1) == numbers{2, 3, 4, 5});
        CHECK(plan.gather() == numbers{0, 1, 6, 7, 2, 3, 4, 5});
        CHECK(plan.restore() == numbers{0, 1, 4, 5, 6, 7, 2, 3});
        CHECK(plan.work() == numbers{18, 18});
    }
}

TEST_CASE("seven tokens go in and seven come out") {
    const requests seven = {prefill(7)};
    const zigzag plan(2, seven);
    CHECK(plan.rows() == 4);
    CHECK(plan.positions(0) == numbers{0, 1, 6});
    CHECK(plan.positions(1) == numbers{2, 3, 4, 5});
    CHECK(plan.gather() == numbers{0, 1, 6, -1, 2, 3, 4, 5});
    CHECK(plan.restore() == numbers{0, 1, 4, 5, 6, 7, 2});
    CHECK(marks(plan.kv_write()) == "11101111");
    CHECK(plan.work() == numbers{10, 18});
    CHECK(zigzag(2, seven, zigzag_split::padded).positions(0) == numbers{0, 1, 6, 7});
    CHECK(gather_of(2, seven, zigzag_split::padded) == numbers{0, 1, 6, -1, 2, 3, 4, 5});
}

TEST_CASE("lengths that no split divides restore within their own rows") {
    const numbers three = {0, 1, 2, 6, 7, 8, 12, 13, 14, 15, 16, 17, 9};
    CHECK(restore_of(3, {prefill(13)}, zigzag_split::padded) == three);
    CHECK(restore_of(3, {prefill(13)}, zigzag_split::ceil) == three);
    CHECK(gather_of(3, {prefill(13)}, zigzag_split::ceil).size() == 18);
    CHECK(restore_of(3, {prefill(13)}) == numbers{0, 1, 2, 5, 6, 10, 11, 12, 13, 7, 8, 3, 4});
    CHECK(gather_of(3, {prefill(13)}).size() == 15);
    CHECK(restore_of(4, {prefill(9)}, zigzag_split::padded) == numbers{0, 1, 4, 5, 8, 9, 12, 13, 14});
    CHECK(restore_of(4, {prefill(9)}, zigzag_split::ceil) == numbers{0, 1, 3, 4, 6, 7, 9, 10, 11});
    CHECK(restore_of(4, {prefill(9)}) == numbers{0, 1, 3, 6, 9, 10, 7, 4, 2});
    const zigzag uneven(3, requests{prefill(13)}, zigzag_split::ceil);
    CHECK(uneven.segments(0) == segments{{0, 0, 3, 0}});
    CHECK(uneven.segments(1) == segments{{0, 3, 3, 3}, {0, 12, 1, 12}});
    CHECK(uneven.work() == numbers{6, 28, 57});
    CHECK(zigzag(3, requests{prefill(13)}).work() == numbers{31, 30, 30});
}

TEST_CASE("two prefills keep their order on every rank") {
    const zigzag plan(2, requests{prefill(8), prefill(4)});
    CHECK(plan.positions(0) == numbers{0, 1, 6, 7, 0, 3});
    CHECK(plan.positions(1) == numbers{2, 3, 4, 5, 1, 2});
    CHECK(plan.restore() == numbers{0, 1, 6, 7, 8, 9, 2, 3, 4, 10, 11, 5});
    const requests with_nothing = {prefill(8), prefill(4), prefill(0), prefill(0)};
    CHECK(zigzag(2, with_nothing).gather() == plan.gather());
    CHECK(zigzag(2, with_nothing).restore() == plan.restore());
}

TEST_CASE("restore belongs to the split that made the rows") {
    const numbers restore = restore_of(2, {prefill(8)});
    const numbers own = gather_of(2, {prefill(8)}), contiguous = {0, 1, 2, 3, 4, 5, 6, 7};
    numbers restored, mixed;
    for (const std::int64_t place : restore) {
        restored.push_back(own[static_cast<std::size_t>(place)]);
        mixed.push_back(contiguous[static_cast<std::size_t>(place)]);
    }
    CHECK(restored == contiguous);
    CHECK(mixed == numbers{0, 1, 4, 5, 6, 7, 2, 3});
}

TEST_CASE("four tokens on two ranks are one chunk pair and its mirror each") {
    const zigzag plan(2, requests{prefill(4)});
    CHECK(plan.segments(0) == segments{{0, 0, 1, 0}, {0, 3, 1, 3}});
    CHECK(plan.segments(1) == segments{{0, 1, 1, 1}, {0, 2, 1, 2}});
    CHECK(plan.work() == numbers{5, 5});
}

TEST_CASE("rows of a step are the largest rank's, not a share of the batch") {
    const zigzag_request one = decode(1, 5);
    CHECK(rows_of(2, {prefill(8)}) == 4);
    CHECK(rows_of(2, {prefill(7)}) == 4);
    CHECK(rows_of(2, {one, one, one}) == 3);
    CHECK(rows_of(2, {one, one, one, prefill(8)}) == 7);
    CHECK(rows_of(4, {one, one, prefill(9)}) == 5);
    CHECK(rows_of(4, {one, one, prefill(9)}, zigzag_split::padded) == 6);
    CHECK(rows_of(2, {prefill(151)}) == 76);
}

TEST_CASE("ranks without a token still have the rows of the others") {
    CHECK(gather_of(2, {prefill(1)}) == numbers{0, -1});
    CHECK(gather_of(2, {prefill(2)}) == numbers{0, 1});
    CHECK(gather_of(2, {prefill(3)}) == numbers{0, -1, 1, 2});
    for (const std::int64_t n : {1, 2, 3}) {
        const zigzag plan(2, requests{prefill(n)});
        CHECK(plan.rows() == (n + 1) / 2);
        CHECK(static_cast<std::int64_t>(plan.gather().size()) == 2 * plan.rows());
    }
    CHECK(gather_of(4, {prefill(3)}) == numbers{0, 1, 2, -1});
    CHECK(zigzag(4, requests{prefill(3)}).work() == numbers{1, 2, 3, 0});
}

TEST_CASE("plans of equal requests in different buffers are equal") {
    const requests here = {decode(1, 20), prefill(8, 16), prefill(5)};
    for (const zigzag_split split : {zigzag_split::balanced, zigzag_split::padded, zigzag_split::ceil}) {
        requests there = here;
        REQUIRE(here.data() != there.data());
        const zigzag first(2, here, split), second(2, there, split);
        there[1] = prefill(3); // a plan keeps what it was given
        CHECK(text_of(first) == text_of(second));
        CHECK(first.last() == second.last());
        CHECK(text_of(first) != text_of(zigzag(2, there, split)));
    }
}
