// The law of ownership against dealing tokens out one by one, as one deals cards.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ctxpar/layout/interleave.hpp>

namespace {

using ctxpar::ownership;
using ctxpar::shard;
using numbers = std::vector<std::int64_t>;

// Deals tokens first, first + 1, ... to the ranks, `interleave` at a time. `first` must be the start of a round, so
// that every rank has got the same number before.
class dealer {
public:
    dealer(std::int64_t ranks, std::int64_t interleave, std::int64_t first = 0)
        : interleave_(interleave), held_(static_cast<std::size_t>(ranks), first / ranks) {}

    struct card {
        std::int64_t rank;
        std::int64_t index;
    };

    card next() {
        if (given_ == interleave_) {
            given_ = 0;
            rank_ = rank_ + 1 == held_.size() ? 0 : rank_ + 1;
        }
        ++given_;
        return {static_cast<std::int64_t>(rank_), held_[rank_]++};
    }

    const numbers& held() const { return held_; }

private:
    std::int64_t interleave_;
    numbers held_;
    std::size_t rank_ = 0;
    std::int64_t given_ = 0;
};

template <class Body>
void for_each_layout(Body body) {
    for (const std::int64_t ranks : {1, 2, 3, 4, 5, 6, 8})
        for (const std::int64_t interleave : {1, 2, 3, 4, 16, 64}) body(ownership{ranks, interleave});
}

// Starts of rounds: the beginning, and one past 2^32.
numbers round_starts(const ownership& law) {
    const std::int64_t round = law.ranks * law.interleave;
    return {0, ((std::int64_t{1} << 33) / round + 1) * round};
}

numbers lengths_of(const ownership& law, std::int64_t length) {
    numbers result;
    for (std::int64_t rank = 0; rank < law.ranks; ++rank) result.push_back(law.local_len(length, rank));
    return result;
}

// The code of the config_error that `body` throws, or "" without one.
template <class Body>
std::string code_of(Body body) {
    try {
        body();
    } catch (const ctxpar::config_error& problem) {
        return problem.code();
    }
    return "";
}

} // namespace

TEST_CASE("every token has one owner and its place is its turn there") {
    for_each_layout([](const ownership& law) {
        for (const std::int64_t first : round_starts(law)) {
            dealer cards(law.ranks, law.interleave, first);
            int wrong = 0;
            for (std::int64_t position = first; position < first + 3 * law.unit() + 7; ++position) {
                const auto card = cards.next();
                wrong += law.owner(position) != card.rank || law.local(position) != card.index;
                for (std::int64_t rank = 0; rank < law.ranks; ++rank)
                    wrong += shard{law.ranks, rank, law.interleave}.owns(position) != (rank == card.rank);
            }
            CAPTURE(law.ranks);
            CAPTURE(law.interleave);
            CHECK(wrong == 0);
        }
    });
}

TEST_CASE("global is the inverse of local on the owner") {
    for_each_layout([](const ownership& law) {
        for (const std::int64_t first : round_starts(law)) {
            dealer cards(law.ranks, law.interleave, first);
            int wrong = 0;
            for (std::int64_t position = first; position < first + 300; ++position) {
                const auto card = cards.next();
                const shard part{law.ranks, card.rank, law.interleave};
                wrong += law.global(card.index, card.rank) != position;
                wrong += part.global(card.index) != position || part.local(position) != card.index;
            }
            CAPTURE(law.ranks);
            CAPTURE(law.interleave);
            CHECK(wrong == 0);
        }
    });
}

TEST_CASE("on one rank local order is global order, without gaps") {
    for_each_layout([](const ownership& law) {
        for (std::int64_t rank = 0; rank < law.ranks; ++rank) {
            std::int64_t expected = 0;
            for (std::int64_t position = 0; position < 3 * law.unit() + 5; ++position)
                if (law.owner(position) == rank) REQUIRE(law.local(position) == expected++);
        }
    });
}

TEST_CASE("local lengths count the tokens of every rank") {
    for_each_layout([](const ownership& law) {
        for (const std::int64_t first : round_starts(law)) {
            dealer cards(law.ranks, law.interleave, first);
            for (std::int64_t length = first; length <= first + 300; ++length) {
                const numbers lengths = lengths_of(law, length);
                REQUIRE(lengths == cards.held());
                for (std::int64_t rank = 0; rank < law.ranks; ++rank)
                    REQUIRE(shard{law.ranks, rank, law.interleave}.local_len(length) ==
                            lengths[static_cast<std::size_t>(rank)]);
                cards.next();
            }
        }
    });
}

TEST_CASE("local lengths sum to the length, differ by at most one interleave, and rank 0 has the most") {
    for_each_layout([](const ownership& law) {
        for (const std::int64_t first : round_starts(law)) {
            for (std::int64_t length = first; length <= first + 300; ++length) {
                std::int64_t sum = 0;
                const std::int64_t most = law.local_len(length, 0);
                for (std::int64_t rank = 0; rank < law.ranks; ++rank) {
                    const std::int64_t local = law.local_len(length, rank);
                    sum += local;
                    REQUIRE(local <= most);
                    REQUIRE(most - local <= law.interleave);
                }
                REQUIRE(sum == length);
            }
        }
    });
}

TEST_CASE("the rankless bound is the first multiple of the interleave that no rank passes") {
    for_each_layout([](const ownership& law) {
        for (const std::int64_t first : round_starts(law)) {
            for (std::int64_t length = first; length <= first + 300; ++length) {
                const std::int64_t bound = law.local_bound(length);
                REQUIRE(bound % law.interleave == 0);
                REQUIRE(bound >= law.local_len(length, 0));
                REQUIRE(bound - law.local_len(length, 0) < law.interleave);
            }
        }
    });
    CHECK(ownership{4, 4}.local_bound(25) == 8);
    CHECK(ownership{8, 64}.local_bound(1000) == 128);
    CHECK(ownership{4, 2}.local_bound(3) == 2);
    CHECK(ownership{4, 2}.local_bound(0) == 0);
}

TEST_CASE("a rank's tokens in a global interval are its local interval between the two lengths") {
    for_each_layout([](const ownership& law) {
        if (law.interleave > 16) return;
        const std::int64_t end = 60;
        for (std::int64_t rank = 0; rank < law.ranks; ++rank) {
            for (std::int64_t a = 0; a <= end; a += 3) {
                for (std::int64_t b = a; b <= end; b += 2) {
                    numbers inside;
                    for (std::int64_t position = a; position < b; ++position)
                        if (law.owner(position) == rank) inside.push_back(law.local(position));
                    numbers interval;
                    for (std::int64_t j = law.local_len(a, rank); j < law.local_len(b, rank); ++j)
                        interval.push_back(j);
                    REQUIRE(inside == interval);
                }
            }
        }
    });
}

TEST_CASE("the vector form equals the scalar form, also in place") {
    for_each_layout([](const ownership& law) {
        numbers lengths;
        for (std::int64_t length = 0; length <= 200; ++length) lengths.push_back(length);
        lengths.push_back((std::int64_t{1} << 40) + 3);
        for (std::int64_t rank = 0; rank < law.ranks; ++rank) {
            numbers apart(lengths.size(), -7);
            ctxpar::local_lengths(law, rank, lengths, apart);
            numbers in_place = lengths;
            ctxpar::local_lengths(law, rank, in_place, in_place);
            for (std::size_t i = 0; i < lengths.size(); ++i) REQUIRE(apart[i] == law.local_len(lengths[i], rank));
            REQUIRE(in_place == apart);
        }
    });
    numbers three(3);
    const numbers two(2);
    CHECK(code_of([&] { ctxpar::local_lengths({2, 1}, 0, two, three); }) == "length");
}

TEST_CASE("local lengths worked by hand") {
    struct example {
        ownership law;
        std::int64_t length;
        numbers expected;
    };
    const std::vector<example> examples = {
        {{2, 1}, 0, {0, 0}},
        {{2, 1}, 1, {1, 0}},
        {{2, 1}, 25, {13, 12}},
        {{2, 1}, 129, {65, 64}},
        {{3, 1}, 4, {2, 1, 1}},
        {{3, 1}, 100, {34, 33, 33}},
        {{4, 1}, 5, {2, 1, 1, 1}},
        {{4, 1}, 25, {7, 6, 6, 6}},
        {{4, 2}, 0, {0, 0, 0, 0}},
        {{4, 2}, 3, {2, 1, 0, 0}},
        {{4, 2}, 7, {2, 2, 2, 1}},
        {{4, 2}, 9, {3, 2, 2, 2}},
        {{4, 2}, 14, {4, 4, 4, 2}},
        {{4, 2}, 17, {5, 4, 4, 4}},
        {{4, 2}, 100, {26, 26, 24, 24}},
        {{4, 4}, 5, {4, 1, 0, 0}},
        {{4, 4}, 10, {4, 4, 2, 0}},
        {{4, 4}, 25, {8, 8, 5, 4}},
        {{4, 4}, 1000, {252, 252, 248, 248}},
        {{4, 16}, 33, {16, 16, 1, 0}},
        {{4, 16}, 1000, {256, 256, 248, 240}},
        {{8, 16}, 65, {16, 16, 16, 16, 1, 0, 0, 0}},
        {{8, 16}, 1000, {128, 128, 128, 128, 128, 128, 120, 112}},
        {{8, 1}, 5, {1, 1, 1, 1, 1, 0, 0, 0}},
        {{2, 64}, 65, {64, 1}},
        {{2, 64}, 1000, {512, 488}},
        {{3, 5}, 16, {6, 5, 5}},
        {{3, 5}, 127, {45, 42, 40}},
        {{2, 128}, 257, {129, 128}},
        {{4, 128}, 257, {128, 128, 1, 0}},
        {{3, 4}, 1'048'581, {349'528, 349'528, 349'525}},
        {{8, 1},
         8'589'934'597,
         {1'073'741'825, 1'073'741'825, 1'073'741'825, 1'073'741'825, 1'073'741'825, 1'073'741'824, 1'073'741'824,
          1'073'741'824}},
    };
    for (const example& e : examples) {
        CAPTURE(e.law.ranks);
        CAPTURE(e.law.interleave);
        CAPTURE(e.length);
        CHECK(lengths_of(e.law, e.length) == e.expected);
    }
}

TEST_CASE("interleave groups larger than 2^32 tokens are 64-bit too") {
    constexpr std::int64_t group = std::int64_t{1} << 33;
    const ownership law{3, group};
    CHECK(law.owner(2 * group + 5) == 2);
    CHECK(law.owner(3 * group + 5) == 0);
    CHECK(law.local(3 * group + 5) == group + 5);
    CHECK(law.global(group + 5, 0) == 3 * group + 5);
    CHECK(lengths_of(law, group - 1) == numbers{group - 1, 0, 0});
    CHECK(lengths_of(law, group + 7) == numbers{group, 7, 0});
    CHECK(lengths_of(law, 5 * group + 7) == numbers{2 * group, 2 * group, group + 7});
    CHECK(law.local_bound(group + 7) == group);
}

TEST_CASE("tokens go to the ranks in interleave groups") {
    const ownership law{4, 4};
    CHECK(law.owner(3) == 0);
    CHECK(law.owner(4) == 1);
    CHECK(law.owner(15) == 3);
    CHECK(law.owner(16) == 0);
    CHECK(law.local(16) == 4);
    CHECK(law.global(4, 0) == 16);
}

TEST_CASE("a larger interleave than the sequence leaves every rank but the first empty") {
    for (const std::int64_t ranks : {2, 3, 8}) {
        numbers expected(static_cast<std::size_t>(ranks), 0);
        expected[0] = 16;
        CHECK(lengths_of({ranks, 16}, 16) == expected);
    }
}

// The law is usable in constant expressions.
static_assert(ownership{4, 4}.owner(21) == 1 && ownership{4, 4}.local(21) == 5 && ownership{4, 4}.global(5, 1) == 21);
static_assert(ownership{4, 4}.local_len(25, 2) == 5 && ownership{4, 4}.local_bound(25) == 8);
static_assert(ownership{4, 4}.unit() == 16 && ownership{2, 1} == ownership{2, 1} && !(ownership{2, 1} == ownership{}));
static_assert(shard{4, 1, 4}.owns(21) && !shard{4, 0, 4}.owns(21) && shard{4, 1, 4}.law() == ownership{4, 4});
static_assert(ownership{1, 1}.local((std::int64_t{1} << 62) + 1) == (std::int64_t{1} << 62) + 1);

// Interleave policies: a static size is an empty object, a dynamic one holds its value, and users may write their own.
struct size_of_my_engine {
    static constexpr int size() { return 32; }
};
struct no_size {};
static_assert(ctxpar::interleave_policy<size_of_my_engine> && !ctxpar::interleave_policy<no_size>);
static_assert(ctxpar::interleave<16>::size() == 16 && ctxpar::interleave<>{24}.size() == 24);

TEST_CASE("ownership is made from legal numbers only") {
    constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
    CHECK(ctxpar::make_ownership(3, 5) == ownership{3, 5});
    CHECK(ctxpar::make_ownership(1, largest) == ownership{1, largest});
    CHECK(ctxpar::make_ownership(2, largest / 2).unit() == largest - 1);
    CHECK(code_of([] { ctxpar::make_ownership(0, 1); }) == "ranks");
    CHECK(code_of([] { ctxpar::make_ownership(-4, 0); }) == "ranks");
    CHECK(code_of([] { ctxpar::make_ownership(4, 0); }) == "interleave");
    CHECK(code_of([] { ctxpar::make_ownership(4, -1); }) == "interleave");
    CHECK(code_of([] { ctxpar::make_ownership(2, largest / 2 + 1); }) == "interleave");
    CHECK(code_of([] { ctxpar::make_ownership(largest, 2); }) == "interleave");
    CHECK(code_of([] { ctxpar::check_length(-1); }) == "length");
    CHECK(code_of([] { ctxpar::check_length(0); }) == "");
    try {
        ctxpar::make_ownership(2, largest / 2 + 1);
    } catch (const ctxpar::config_error& problem) { // what() names the value and the largest legal one
        CHECK(std::string(problem.what()).find(std::to_string(largest / 2 + 1)) != std::string::npos);
        CHECK(std::string(problem.what()).find(std::to_string(largest / 2)) != std::string::npos);
    }
}
