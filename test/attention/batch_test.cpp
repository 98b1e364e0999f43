// The metadata of a step against asking every token, for good batches and for bad ones.
#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <attention/plain_batch.hpp>

#include <ctxpar/attention/batch.hpp>

using namespace ctxpar;
using plain::numbers;

namespace {

// Requests one after another, then the padding: how a backend fills the arrays.
void write_step(const metadata_args& args) {
    step_status status;
    std::int64_t row = 0;
    for (std::int64_t request = 0; request < args.batch.requests; ++request) {
        const entry_fault fault = write_request(args, request, row);
        if (fault != entry_fault::none && status.bad_entries++ == 0) status = {1, request, fault};
        row += args.out.segments[request].rows;
    }
    write_padding(args, row);
    *args.out.status = status;
}

std::string wrong(const plain::batch& given, const shard& part) {
    return plain::batch_check(given, part).run(write_step);
}

template <class Body>
void for_each_shard(Body body) {
    for (std::int64_t ranks = 1; ranks <= 4; ++ranks)
        for (const std::int64_t interleave : {1, 3, 4, 16})
            for (std::int64_t rank = 0; rank < ranks; ++rank) body(shard{ranks, rank, interleave});
}

std::int64_t at_most(std::mt19937_64& random, std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
}

// Requests of any length and number of rows, some of them padding, with blocks in any order.
plain::batch random_batch(std::mt19937_64& random, std::int64_t requests, bool trees) {
    plain::batch given;
    given.columns = 40;
    given.block_size = 1 + at_most(random, 5);
    for (std::int64_t r = 0; r < requests; ++r) {
        given.query_rows.push_back(at_most(random, 4));
        const bool before = at_most(random, 4) == 0; // rows before the sequence starts
        given.lengths.push_back(before ? at_most(random, 3) : given.query_rows.back() + at_most(random, 35));
        for (std::int64_t b = 0; b < given.columns; ++b) given.blocks.push_back(at_most(random, 999));
    }
    const std::int64_t used = std::accumulate(given.query_rows.begin(), given.query_rows.end(), std::int64_t{0});
    given.rows = used + at_most(random, 3);
    for (std::int64_t i = 0; trees && i < given.rows; ++i) given.tree_bits.push_back(random() % 16);
    if (at_most(random, 2) == 0) given.mask.window = 1 + at_most(random, 20);
    if (at_most(random, 3) == 0) given.mask.chunk = 1 + at_most(random, 10);
    if (at_most(random, 2) == 0) given.mask.prefix = at_most(random, 9);
    given.pool_blocks = 1000;
    return given;
}

// Three requests of 9, 14 and 6 tokens with 1, 3 and 2 rows and one row of padding, all sound.
plain::batch sound_batch() {
    plain::batch given;
    given.lengths = {9, 14, 6};
    given.query_rows = {1, 3, 2};
    given.rows = 7;
    given.columns = 4;
    given.block_size = 4;
    given.blocks = {3, 1, 4, 5, 9, 2, 6, 8, 7, 0, 10, 11};
    given.pool_blocks = 12;
    given.longest = 20;
    return given;
}

struct fault_case {
    const char* name;
    entry_fault fault;
    void (*spoil)(plain::batch&);
};

// Each spoils the second request.
const fault_case faults[] = {
    {"a negative length", entry_fault::length, [](plain::batch& b) { b.lengths[1] = -1; }},
    {"a length past the bound", entry_fault::length, [](plain::batch& b) { b.lengths[1] = 21; }},
    {"a huge length", entry_fault::length, [](plain::batch& b) { b.lengths[1] = INT64_MAX; }},
    {"negative rows", entry_fault::query_rows, [](plain::batch& b) { b.query_rows[1] = -2; }},
    {"more rows than there are", entry_fault::query_rows, [](plain::batch& b) { b.query_rows[1] = 7; }},
    {"a huge number of rows", entry_fault::query_rows, [](plain::batch& b) { b.query_rows[1] = INT64_MAX; }},
    {"a negative block", entry_fault::table, [](plain::batch& b) { b.blocks[4] = -1; }},
    {"a block past the pool", entry_fault::table, [](plain::batch& b) { b.blocks[4] = 12; }},
    {"a table that is too short", entry_fault::table,
     [](plain::batch& b) {
         b.lengths[1] = 19;
         b.block_size = 1;
     }},
};

} // namespace

TEST_CASE("The metadata of any batch is what asking every token gives") {
    std::mt19937_64 random(6);
    for_each_shard([&](const shard& part) {
        for (int round = 0; round < 12; ++round) {
            const plain::batch given = random_batch(random, at_most(random, 5), false);
            CHECK(wrong(given, part) == "");
        }
    });
}

TEST_CASE("The metadata of draft trees is what asking every token gives") {
    std::mt19937_64 random(7);
    for_each_shard([&](const shard& part) {
        for (int round = 0; round < 8; ++round) {
            const plain::batch given = random_batch(random, 1 + at_most(random, 4), true);
            CHECK(wrong(given, part) == "");
        }
    });
}

TEST_CASE("A batch without a list of query rows has one a request") {
    plain::batch given = sound_batch();
    given.query_rows.clear();
    for_each_shard([&](const shard& part) { CHECK(wrong(given, part) == ""); });
}

TEST_CASE("No requests and no rows are a legal step") {
    plain::batch given;
    for (const std::int64_t rows : {0, 3}) {
        given.rows = rows;
        CHECK(wrong(given, {2, 1, 4}) == "");
    }
}

TEST_CASE("A bad entry becomes empty rows, is counted, and leaves the other requests alone") {
    for (const fault_case& one : faults) {
        CAPTURE(one.name);
        plain::batch given = sound_batch();
        one.spoil(given);
        plain::batch_check check(given, {1, 0, 1});
        CHECK(check.run(write_step) == "");
        CHECK(check.memory().status.bad_entries >= 1);
        CHECK(check.memory().status.first_fault == one.fault);
        CHECK(check.memory().local_lengths[1] == 0);
        CHECK(check.memory().local_lengths[0] == (given.block_size == 1 ? 0 : 9));
        CHECK(std::string(name_of(one.fault)) != name_of(entry_fault::none));
    }
}

TEST_CASE("Several bad entries are all counted, and the first is named") {
    plain::batch given = sound_batch();
    given.lengths = {-3, 14, 99};
    plain::batch_check check(given, {2, 0, 1});
    CHECK(check.run(write_step) == "");
    CHECK(check.memory().status.bad_entries == 2);
    CHECK(check.memory().status.first_request == 0);
}

TEST_CASE("A draft tree of more than 64 rows is a fault") {
    plain::batch given = sound_batch();
    given.columns = 50;
    given.blocks.assign(150, 1);
    given.lengths[1] = given.query_rows[1] = 65;
    given.rows = 70;
    given.longest = 100;
    given.tree_bits.assign(70, 1);
    plain::batch_check check(given, {1, 0, 1});
    CHECK(check.run(write_step) == "");
    CHECK(check.memory().status.first_fault == entry_fault::tree_rows);
    CHECK(check.memory().status.first_request == 1);
}

TEST_CASE("Blocks that slid out of the window may be gone") {
    plain::batch given = sound_batch();
    given.mask.window = 4; // of request 1 the rows see positions 8 to 13 and nothing before
    given.blocks[4] = given.blocks[5] = -1;
    plain::batch_check check(given, {1, 0, 1});
    CHECK(check.run(write_step) == "");
    CHECK(check.memory().status.bad_entries == 0);
    given.mask.prefix = 1; // now the first token is needed
    plain::batch_check with_prefix(given, {1, 0, 1});
    CHECK(with_prefix.run(write_step) == "");
    CHECK(with_prefix.memory().status.first_fault == entry_fault::table);
}

TEST_CASE("A request without rows needs no blocks") {
    plain::batch given = sound_batch();
    given.query_rows[1] = 0;
    given.blocks[4] = -1;
    plain::batch_check check(given, {1, 0, 1});
    CHECK(check.run(write_step) == "");
    CHECK(check.memory().status.bad_entries == 0);
}

TEST_CASE("A pool of unknown size takes any block id, and slots are 64-bit") {
    plain::batch given = sound_batch();
    given.pool_blocks = -1;
    given.blocks[7] = std::int64_t{1} << 40;
    plain::batch_check check(given, {1, 0, 1});
    CHECK(check.run(write_step) == "");
    CHECK(check.memory().slots[3] == (std::int64_t{1} << 42) + 1);
}

TEST_CASE("A block that another rank misses is no fault of this one, whose rows stay live") {
    plain::batch given = sound_batch();
    given.lengths[1] = 9; // rank 1 of 2 holds positions 4..7, in its block 0; rank 0 needs blocks 0 and 1
    given.query_rows[1] = 1;
    given.blocks[5] = -1;
    plain::batch_check first(given, {2, 0, 4});
    CHECK(first.run(write_step) == "");
    CHECK(first.memory().status.first_fault == entry_fault::table);
    plain::batch_check second(given, {2, 1, 4});
    CHECK(second.run(write_step) == "");
    CHECK(second.memory().status.bad_entries == 0);
    CHECK(second.memory().live[1] == 1);
}
