// A long-lived decoder over MPI ranks: random steps of an engine's scheduler, exact on a sample, in memory that does
// not grow.
//
//   soak STEPS
//
// Requests come with a prompt, decode with up to three drafts a step of which some are refused and written again, and
// leave; their blocks are taken by others. Every rank draws the same batches, and keeps tables and a pool of its own.
// Says each rank's resident memory after a tenth of the steps and at the end, and fails where it grew between.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <vector>

#include <ctxpar/comm/mpi.hpp>
#include <ctxpar/ctxpar.hpp>

#include "../support/deployment.hpp"
#include "../support/reference.hpp"

using namespace ctxpar;
using namespace ctxpar_test;

namespace {

constexpr std::int64_t width = 32;
constexpr std::int64_t interleaving = 4;
constexpr std::int64_t block_size = 8;
constexpr std::int64_t most_requests = 8;
constexpr std::int64_t most_drafts = 4; // rows of a request
constexpr std::int64_t longest = 320;
constexpr std::int64_t heads_of_rank = 2;
constexpr std::int64_t sample = 5;        // one request in so many steps is compared
constexpr double grown_at_most = 1 << 20; // bytes of a rank, after the first tenth
constexpr double error_at_most = 5e-6;    // of an output or an LSE; fp32 sums, outputs are below 1

// The x-th number that belongs to a stamp: a multiple of 1/8 in [-1, 1], which bf16 holds exactly.
float number_of(std::uint64_t stamp, std::int64_t x) {
    std::uint64_t z = stamp + static_cast<std::uint64_t>(x + 1) * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    return static_cast<float>(static_cast<int>(z >> 40) % 17 - 8) / 8.0F;
}
bf16 stored(float value) {
    return bf16::from_bits(static_cast<std::uint16_t>(bits_of(format_bf16, value)));
}

std::size_t resident_bytes() {
    std::size_t total = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> total >> resident;
    return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// A place in the batch, taken by one request after another.
struct place {
    std::int64_t length = 0;           // of what is cached; 0: nobody has it
    std::int64_t rows = 0;             // of this step
    std::vector<std::uint64_t> stamps; // [token] what its key and value are made of
    std::vector<std::int32_t> blocks;  // on this rank
};

class soak {
public:
    explicit soak(mpi_communicator& comm)
        : ranks_(comm.size()), rank_(comm.rank()), pool_blocks_(most_requests * blocks_of(longest)),
          decoder_({&comm}, shape(comm.size())), memory_(decoder_.workspace_bytes()), own_(1000 + rank_),
          pool_(static_cast<std::size_t>(2 * pool_blocks_ * block_size * width)) {
        for (std::int32_t block = 0; block < pool_blocks_; ++block) free_.push_back(block);
        for (const std::int32_t block : free_) forget(block);
        for (place& each : places_) {
            each.stamps.reserve(longest);
            each.blocks.reserve(static_cast<std::size_t>(blocks_of(longest)));
        }
    }

    void step() {
        come_and_go();
        rows_.clear(), lengths_.clear(), table_.clear(), new_kv_.clear(), q_.clear();
        for (place& each : places_) prepare(each);
        const auto requests = static_cast<std::int64_t>(rows_.size());
        const decode_batch batch{.requests = requests,
                                 .lengths = index_of(lengths_.data()),
                                 .query_rows = index_of(rows_.data()),
                                 .table = table_2d(table_.data(), requests, blocks_of(longest), block_size)};
        const decode_step planned = decoder_.plan(batch, memory_, {});
        out_.assign(static_cast<std::size_t>(planned.rows * heads_of_rank * width), 7.0F);
        lse_.assign(static_cast<std::size_t>(planned.rows * heads_of_rank), {});
        append(planned);
        layer_options<lse_base::natural> options;
        options.lse_out = dense_view(lse_.data(), planned.rows, heads_of_rank, 1);
        const auto q = dense_view<const bf16>(q_.data(), planned.rows, heads_of_rank, width);
        decoder_.decode(planned, q, cache(), dense_view(out_.data(), planned.rows, heads_of_rank, width), options, {});
        if (steps_ % sample == 0) compare();
        for (place& each : places_) accept(each);
        rows_so_far_ += planned.rows;
        ++steps_;
    }

    std::int64_t rows() const { return rows_so_far_; }
    std::int64_t compared() const { return compared_; }
    std::int64_t requests() const { return requests_; }
    double worst() const { return worst_; }

private:
    using policies = policy<gqa<bf16, width>, interleave<interleaving>, merge::a2a>;

    static decode_shape shape(std::int64_t ranks) {
        decode_shape result{.sizes = {.tp = ranks, .dcp = ranks}, .q_heads = heads_of_rank * ranks, .kv_heads = 1};
        result.max_requests = most_requests;
        result.max_rows = most_requests * most_drafts;
        result.longest = longest;
        result.output = scalar_type::f32;
        result.merged_lse = true;
        return result;
    }

    // Blocks that a rank needs for a request: its own tokens are counted one by one.
    std::int64_t blocks_of(std::int64_t length) const {
        std::int64_t tokens = 0;
        for (std::int64_t token = 0; token < length; ++token) tokens += token / interleaving % ranks_ == rank_ ? 1 : 0;
        return (tokens + block_size - 1) / block_size;
    }

    // No rank may read what it has not written: NaN.
    void forget(std::int32_t block) {
        for (const std::int64_t plane : {std::int64_t{0}, pool_blocks_}) {
            bf16* const from = pool_.data() + (plane + block) * block_size * width;
            std::fill(from, from + block_size * width, bf16::from_bits(0xffff));
        }
    }
    kv_view<bf16> cache() { return stacked_kv(pool_.data(), pool_blocks_, block_size, 1, width, width); }

    // --- Requests, the same on every rank ----------------------------------------------------------------------------

    void come_and_go() {
        bool is_any = false;
        for (place& each : places_) {
            const bool is_full = each.length + most_drafts > longest;
            if (each.length > 0 && (is_full || drawn_.below(60) == 0)) leave(each);
            if (each.length == 0 && drawn_.below(8) == 0) come(each);
            is_any = is_any || each.length > 0;
        }
        if (!is_any) come(places_[0]);
    }
    void leave(place& of) {
        for (const std::int32_t block : of.blocks) {
            forget(block);
            free_.push_back(block);
        }
        of.blocks.clear();
        of.stamps.clear();
        of.length = 0;
    }
    void come(place& at) {
        ++requests_;
        grow(at, 1 + drawn_.below(drawn_.below(3) == 0 ? 250 : 40));
        // The prompt is written at slots that this rank maps.
        const auto count = static_cast<std::int64_t>(at.stamps.size());
        std::vector<std::int64_t> positions, slots(at.stamps.size());
        for (std::int64_t token = 0; token < count; ++token) positions.push_back(token);
        const auto columns = static_cast<std::int64_t>(at.blocks.size());
        map_slots(shard{ranks_, rank_, interleaving}, table_2d(at.blocks.data(), 1, columns, block_size), 0, positions,
                  std::span<std::int64_t>(slots));
        new_kv_.clear();
        for (const std::uint64_t stamp : at.stamps) add_kv(stamp);
        decoder_.append(index_of(slots.data()), new_part(0, count), new_part(width, count), cache(), {});
        at.length = count;
    }
    void grow(place& each, std::int64_t tokens) {
        for (std::int64_t i = 0; i < tokens; ++i) each.stamps.push_back(drawn_.next());
        const std::int64_t needed = blocks_of(static_cast<std::int64_t>(each.stamps.size()));
        while (static_cast<std::int64_t>(each.blocks.size()) < needed) {
            std::swap(free_[static_cast<std::size_t>(own_.below(static_cast<std::int64_t>(free_.size())))],
                      free_.back());
            each.blocks.push_back(free_.back());
            free_.pop_back();
        }
    }
    // Drafts that are refused are written again, over what they left.
    void accept(place& each) {
        if (each.rows == 0) return;
        each.length += 1 + drawn_.below(each.rows);
        each.stamps.resize(static_cast<std::size_t>(each.length));
        each.rows = 0;
    }

    // --- A step ------------------------------------------------------------------------------------------------------

    // Places that nobody has are padding, or are left out.
    void prepare(place& each) {
        if (each.length == 0 && drawn_.below(2) == 0) return;
        const std::int64_t old = each.length;
        each.rows = old == 0 ? 0 : 1 + drawn_.below(most_drafts);
        grow(each, each.rows);
        for (std::int64_t row = 0; row < each.rows; ++row) {
            const std::uint64_t stamp = each.stamps[static_cast<std::size_t>(old + row)];
            add_kv(stamp);
            for (std::int64_t x = 0; x < heads_of_rank * width; ++x)
                q_.push_back(stored(query(stamp, rank_ * heads_of_rank * width + x)));
        }
        rows_.push_back(static_cast<std::int32_t>(each.rows));
        lengths_.push_back(old + each.rows);
        table_.insert(table_.end(), each.blocks.begin(), each.blocks.end());
        table_.resize(rows_.size() * static_cast<std::size_t>(blocks_of(longest)), -1);
    }
    static float query(std::uint64_t stamp, std::int64_t x) { return 4.0F * number_of(~stamp, x); }
    void add_kv(std::uint64_t stamp) {
        for (std::int64_t x = 0; x < 2 * width; ++x) new_kv_.push_back(stored(number_of(stamp, x)));
    }
    head_view<const bf16> new_part(std::int64_t at, std::int64_t rows) const {
        auto view = dense_view<const bf16>(new_kv_.data(), rows, 1, 2 * width);
        view.base += at;
        view.width = width;
        return view;
    }
    void append(const decode_step& planned) {
        decoder_.append(planned, new_part(0, planned.rows), new_part(width, planned.rows), cache(), {});
    }

    // --- The sample --------------------------------------------------------------------------------------------------

    void compare() {
        std::int64_t first_row = 0;
        const std::int64_t chosen = own_.below(most_requests);
        for (std::int64_t i = 0; i < chosen; ++i) first_row += places_[static_cast<std::size_t>(i)].rows;
        const place& each = places_[static_cast<std::size_t>(chosen)];
        if (each.rows == 0) return;
        std::vector<float> q, k, v;
        for (const std::uint64_t stamp : each.stamps)
            for (std::int64_t x = 0; x < 2 * width; ++x) (x < width ? k : v).push_back(number_of(stamp, x));
        for (std::int64_t row = 0; row < each.rows; ++row)
            for (std::int64_t x = 0; x < heads_of_rank * width; ++x)
                q.push_back(
                    query(each.stamps[static_cast<std::size_t>(each.length + row)], rank_ * heads_of_rank * width + x));
        attention_problem ask;
        ask.length = each.length + each.rows;
        ask.rows = each.rows;
        ask.q_heads = heads_of_rank;
        ask.key_width = ask.value_width = width;
        ask.q = q.data(), ask.k = k.data(), ask.v = v.data();
        ask.scale = 1.0 / std::sqrt(static_cast<double>(width));
        const attention_result wanted = attend(ask);
        for (std::size_t i = 0; i < wanted.out.size(); ++i)
            note(out_[static_cast<std::size_t>(first_row * heads_of_rank * width) + i], wanted.out[i]);
        for (std::size_t i = 0; i < wanted.lse.size(); ++i)
            note(lse_[static_cast<std::size_t>(first_row * heads_of_rank) + i].value, wanted.lse[i]);
        ++compared_;
    }
    void note(float value, double wanted) {
        const double error = std::fabs(static_cast<double>(value) - wanted);
        if (!(error <= worst_) && !std::isnan(worst_)) worst_ = error; // NaN is kept
    }

    std::int64_t ranks_;
    std::int64_t rank_;
    std::int64_t pool_blocks_;
    decoder<policies, cpu_backend, mpi_communicator> decoder_;
    host_workspace memory_;
    random_numbers drawn_{17}; // of all ranks
    random_numbers own_;
    std::vector<bf16> pool_; // [keys, values][block][token][width]
    std::vector<std::int32_t> free_;
    std::array<place, most_requests> places_;
    std::vector<std::int32_t> rows_, table_;
    std::vector<std::int64_t> lengths_;
    std::vector<bf16> new_kv_, q_; // [row][key, value], [row][heads of the rank][width]
    std::vector<float> out_;
    std::vector<natural_lse> lse_;
    std::int64_t steps_ = 0, rows_so_far_ = 0, compared_ = 0, requests_ = 0;
    double worst_ = 0.0;
};

// Whether all is well on all ranks; rank 0 prints a line for each.
bool report(const std::vector<double>& of_rank, int rank, int ranks) {
    std::vector<double> all(of_rank.size() * static_cast<std::size_t>(ranks));
    const int count = static_cast<int>(of_rank.size());
    MPI_Allgather(of_rank.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE, MPI_COMM_WORLD);
    bool is_well = true;
    for (int r = 0; r < ranks; ++r) {
        const double* const its = all.data() + static_cast<std::size_t>(r) * of_rank.size();
        const bool is_flat = its[1] - its[0] <= grown_at_most, is_exact = its[2] <= error_at_most && its[3] > 0;
        is_well = is_well && is_flat && is_exact;
        if (rank == 0)
            std::printf("rank %d: resident %.2f MiB after a tenth, %.2f MiB at the end%s; off by %.2g at most in %.0f "
                        "requests that were compared%s\n",
                        r, its[0] / (1 << 20), its[1] / (1 << 20), is_flat ? "" : ": IT GREW", its[2], its[3],
                        is_exact ? "" : ": WRONG");
    }
    return is_well;
}

} // namespace

int main(int argc, char** argv) {
    const int steps = argc == 2 ? std::atoi(argv[1]) : 0;
    if (steps < 10) return 2;
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    bool is_well = false;
    try {
        mpi_communicator comm(MPI_COMM_WORLD, {.timeout = std::chrono::seconds(60), .checks = check_level::collective});
        soak running(comm);
        std::vector<double> figures;
        for (int i = 0; i < steps; ++i) {
            if (i == steps / 10) figures.push_back(static_cast<double>(resident_bytes()));
            running.step();
        }
        figures.push_back(static_cast<double>(resident_bytes()));
        figures.insert(figures.end(), {running.worst(), static_cast<double>(running.compared())});
        is_well = report(figures, comm.rank(), comm.size());
        if (comm.rank() == 0)
            std::printf("%d steps over %d ranks: %lld requests, %lld rows, %llu bytes sent by a rank\n", steps,
                        comm.size(), static_cast<long long>(running.requests()), static_cast<long long>(running.rows()),
                        static_cast<unsigned long long>(comm.bytes_sent()));
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "%s\n", problem.what());
        std::_Exit(1);
    }
    MPI_Finalize();
    return is_well ? 0 : 1;
}
