// A small world of ranks that are threads, one batch of plain numbers, and the answer worked out without ranks: for
// tests that need many prefills, each over in a moment. Numbers are hashes of their places, in fp32.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ctxpar/ctxpar.hpp>

namespace small_world {

using namespace ctxpar;

struct request {
    std::int64_t computed = 0;
    std::int64_t tokens = 0;
    bool decodes = false;
};

// What all ranks agree on.
struct setting {
    topology sizes;
    std::int64_t q_heads = 4;
    std::int64_t kv_heads = 1;
    std::int64_t interleave = 1;
    std::int64_t block_size = 4;
    std::int64_t context_rows = 0; // 0: three rounds of ownership
    merge_kind merge = merge_kind::a2a;
    zigzag_split split = zigzag_split::balanced;
    prefill_path prefill_rows = prefill_path::automatic;
    prefill_path decode_rows = prefill_path::automatic;
    mask_rule mask;
    std::vector<request> requests;
    check_level checks = check_level::collective;

    std::int64_t world() const { return sizes.tp * sizes.pcp; }
    std::int64_t num_requests() const { return static_cast<std::int64_t>(requests.size()); }
    std::int64_t longest() const {
        std::int64_t most = 1;
        for (const request& each : requests) most = std::max(most, each.computed + each.tokens);
        return most;
    }
    std::int64_t batch_rows() const {
        std::int64_t sum = 0;
        for (const request& each : requests) sum += each.tokens;
        return sum;
    }
};

inline constexpr std::int64_t key_width = 8;
inline constexpr std::int64_t value_width = 6;
using policy_type = policy<gqa<float, key_width, value_width>, interleave<>, merge::dynamic>;

inline policy_type policy_of(const setting& s) {
    policy_type chosen;
    chosen.interleaving.tokens = s.interleave;
    chosen.merging.kind = s.merge;
    return chosen;
}

enum class what : std::uint64_t { query = 1, key = 2, value = 3 };

// A number in [-1, 1), queries in [-3, 3).
inline float number(what kind, std::int64_t request, std::int64_t position, std::int64_t head, std::int64_t d) {
    std::uint64_t place = static_cast<std::uint64_t>(kind);
    for (const std::int64_t part : {request, position, head, d}) {
        place = (place + static_cast<std::uint64_t>(part) + 1) * 0x9e3779b97f4a7c15ULL;
        place = (place ^ (place >> 29)) * 0xbf58476d1ce4e5b9ULL;
    }
    const float unit = static_cast<float>(static_cast<std::int64_t>(place >> 40) - (1 << 23)) / (1 << 23);
    return kind == what::query ? 3.0F * unit : unit;
}

inline prefill_shape shape_of(const setting& s, std::int64_t rank) {
    prefill_shape shape;
    shape.sizes = s.sizes;
    shape.q_heads = s.q_heads;
    shape.kv_heads = s.kv_heads;
    shape.rank = rank;
    shape.max_requests = std::max<std::int64_t>(1, s.num_requests());
    shape.max_rows = std::max<std::int64_t>(1, s.batch_rows() + 2 * s.sizes.pcp * s.num_requests());
    shape.max_decode_rows = std::max<std::int64_t>(1, s.batch_rows());
    shape.longest = s.longest();
    shape.split = s.split;
    shape.prefill_rows = s.prefill_rows;
    shape.decode_rows = s.decode_rows;
    shape.context_rows = s.context_rows > 0 ? s.context_rows : 3 * s.sizes.dcp * s.interleave;
    shape.output = scalar_type::f32;
    shape.merged_lse = true;
    shape.hidden_bytes = 16;
    return shape;
}

// One call as a communicator saw it.
struct seen_call {
    std::string what;
    collective_op op = collective_op::all_gather;
    std::int64_t size = 0;
    std::uint64_t bytes = 0; // to each other rank

    friend bool operator==(const seen_call&, const seen_call&) = default;
};

// Moves bytes as a local communicator does, and writes down what it was asked. It has no shortcuts through its peers'
// memory, so every part of a merge is a call.
template <class Stream>
class basic_noting_communicator {
public:
    using stream_type = Stream;
    explicit basic_noting_communicator(local_communicator of) : of_(std::move(of)) {}

    int rank() const { return of_.rank(); }
    int size() const { return of_.size(); }
    void all_gather(const void* send, void* recv, std::size_t bytes, Stream, collective_note note = {}) {
        calls.push_back({note.what, collective_op::all_gather, size(), bytes});
        of_.all_gather(send, recv, bytes, {}, note);
    }
    void all_to_all(const void* send, void* recv, std::size_t bytes, Stream, collective_note note = {}) {
        calls.push_back({note.what, collective_op::all_to_all, size(), bytes});
        of_.all_to_all(send, recv, bytes, {}, note);
    }
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* recv,
                    std::span<const std::size_t> recv_bytes, Stream, collective_note note = {}) {
        calls.push_back({note.what, collective_op::all_to_all, size(), 0});
        of_.all_to_all(send, send_bytes, recv, recv_bytes, {}, note);
    }
    void agree(std::uint64_t digest, const char* name, Stream) { of_.agree(digest, name, {}); }
    void check() { of_.check(); }
    void wait(Stream) { of_.wait({}); }
    std::uint64_t bytes_sent() const { return of_.bytes_sent(); }
    check_level checks() const { return of_.checks(); }

    std::vector<seen_call> calls;

private:
    local_communicator of_;
};

using noting_communicator = basic_noting_communicator<host_stream>;

static_assert(communicator<noting_communicator> && !peer_communicator<noting_communicator>);

// The communicators of all ranks for one kind of group.
template <class Stream>
class group_set {
public:
    using communicator_type = basic_noting_communicator<Stream>;

    template <class Member>
    group_set(const setting& s, const Member& member) {
        const mesh ranks(s.sizes, {attention_kind::gqa, s.q_heads, s.kv_heads});
        std::map<std::int64_t, local_world*> by_color;
        for (std::int64_t rank = 0; rank < s.world(); ++rank) {
            const rank_group group = member(ranks.groups_of(rank));
            if (by_color.count(group.color) == 0) {
                local_options options;
                options.checks = s.checks;
                worlds_.push_back(std::make_unique<local_world>(static_cast<int>(group.members.size()), options));
                by_color[group.color] = worlds_.back().get();
            }
            of_rank_.push_back(
                std::make_unique<communicator_type>(by_color[group.color]->rank(static_cast<int>(group.rank))));
        }
    }
    communicator_type* of(std::int64_t rank) const { return of_rank_[static_cast<std::size_t>(rank)].get(); }

private:
    std::vector<std::unique_ptr<local_world>> worlds_;
    std::vector<std::unique_ptr<communicator_type>> of_rank_;
};

template <class Stream>
struct basic_all_groups {
    explicit basic_all_groups(const setting& s)
        : kv(s, [](const decode_groups& g) { return g.kv; }), query(s, [](const decode_groups& g) { return g.query; }),
          heads(s, [](const decode_groups& g) { return g.heads; }),
          rows(s, [](const decode_groups& g) { return g.rows; }) {}
    groups<basic_noting_communicator<Stream>> of(std::int64_t rank) const {
        return {kv.of(rank), query.of(rank), heads.of(rank), rows.of(rank)};
    }
    group_set<Stream> kv, query, heads, rows;
};

using all_groups = basic_all_groups<host_stream>;

// A row of a rank: the token it is, or nothing.
struct owned_row {
    std::int64_t request = -1;
    std::int64_t position = 0;
};

// One rank with its pool, whose context is written by plain code.
template <class Backend = cpu_backend>
class one_rank {
public:
    using stream_type = typename Backend::stream_type;
    using prefiller_type = prefiller<policy_type, Backend, basic_noting_communicator<stream_type>>;

    one_rank(const setting& s, const basic_all_groups<stream_type>& world, std::int64_t rank,
             Backend backend = Backend{})
        : s_(s), mesh_(s.sizes, {attention_kind::gqa, s.q_heads, s.kv_heads}), rank_(rank),
          used_(world.of(rank), shape_of(s, rank), policy_of(s), std::move(backend)), memory_(used_.workspace_bytes()),
          columns_(blocks_for(ownership{s.sizes.dcp, s.interleave}.local_bound(s.longest()), s.block_size)),
          part_{s.sizes.dcp, world.kv.of(rank)->rank(), s.interleave} {
        for (const request& each : s.requests) {
            computed_.push_back(each.computed);
            tokens_.push_back(each.tokens);
            kinds_.push_back(each.decodes ? 1 : 0);
        }
        const std::int64_t blocks = std::max<std::int64_t>(1, s.num_requests() * columns_);
        for (std::int64_t b = 0; b < blocks; ++b) table_.push_back(blocks - 1 - b);
        const auto states = static_cast<std::size_t>(blocks * s.block_size * mesh_.kv_heads_per_rank());
        keys_.assign(states * key_width, std::nanf(""));
        values_.assign(states * value_width, std::nanf(""));
        fill();
    }

    prefill_batch batch() const {
        prefill_batch b;
        b.requests = s_.num_requests();
        b.computed = index_of(computed_.data());
        b.tokens = index_of(tokens_.data());
        b.kinds = index_of(kinds_.data());
        b.table = table_2d(table_.data(), b.requests, columns_, s_.block_size);
        b.mask = s_.mask;
        return b;
    }
    prefill_step plan() { return used_.plan(batch(), memory_, {}); }
    prefiller_type& used() { return used_; }
    kv_view<float> cache() {
        return nhd_kv(keys_.data(), values_.data(), static_cast<std::int64_t>(table_.size()), s_.block_size,
                      mesh_.kv_heads_per_rank(), key_width, value_width);
    }

    // append and attend of the step; the relative L2 error of the rank's rows and the largest one of an LSE.
    struct errors {
        double out = 0;
        double lse = 0;
        bool filling_is_empty = true;
    };
    errors run(const prefill_step& step) {
        rows_of(step);
        const std::int64_t heads = mesh_.heads_per_rank(), kv_heads = mesh_.kv_heads_per_rank();
        const std::vector<float> q = row_data(what::query, mesh_.q_heads(rank_), key_width);
        const std::vector<float> k = row_data(what::key, mesh_.kv_heads(rank_), key_width);
        const std::vector<float> v = row_data(what::value, mesh_.kv_heads(rank_), value_width);
        std::vector<float> out(static_cast<std::size_t>(step.rows() * heads * value_width), std::nanf(""));
        std::vector<natural_lse> lses(static_cast<std::size_t>(step.rows() * heads), natural_lse{std::nanf("")});
        used_.append(step, dense_view(k.data(), step.rows(), kv_heads, key_width),
                     dense_view(v.data(), step.rows(), kv_heads, value_width), cache(), {});
        layer_options<> options;
        options.lse_out = dense_view(lses.data(), step.rows(), heads, 1);
        used_.attend(step, dense_view(q.data(), step.rows(), heads, key_width), kv_view<const float>(cache()),
                     dense_view(out.data(), step.rows(), heads, value_width), options, {});
        return compare(out, lses);
    }

    // The hidden value of every batch row is its number; scattered, restored, and the last of each request restored.
    bool restores(const prefill_step& step) {
        const auto count = static_cast<std::size_t>(s_.batch_rows());
        std::vector<std::int32_t> all(count), own(static_cast<std::size_t>(step.rows()), -1), back(count, -2);
        std::vector<std::int32_t> last(s_.requests.size(), -3), due(s_.requests.size(), -3);
        for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<std::int32_t>(i);
        const auto view = [](auto& list) { return dense_view(list.data(), std::ssize(list), 1, 1); };
        const auto read = [](const auto& list) { return dense_view(list.data(), std::ssize(list), 1, 1); };
        used_.scatter(step, read(std::as_const(all)), view(own), {});
        used_.restore(step, read(std::as_const(own)), view(back), {});
        used_.restore_last(step, read(std::as_const(own)), view(last), {});
        std::int32_t end = 0;
        for (std::size_t r = 0; r < due.size(); ++r) {
            end += static_cast<std::int32_t>(s_.requests[r].tokens);
            if (s_.requests[r].tokens > 0) due[r] = end - 1;
        }
        return back == all && last == due;
    }

private:
    void fill() {
        const kv_view<float> pool = cache();
        const block_table table = batch().table;
        const head_range heads = mesh_.kv_heads(rank_);
        for (std::int64_t r = 0; r < s_.num_requests(); ++r)
            for (std::int64_t p = 0; p < computed_[static_cast<std::size_t>(r)]; ++p) {
                const std::int64_t slot = slot_of(part_, table, r, p);
                for (std::int64_t h = 0; slot >= 0 && h < heads.count(); ++h) {
                    for (std::int64_t d = 0; d < key_width; ++d)
                        pool.key(slot, h)[d] = number(what::key, r, p, heads.first + h, d);
                    for (std::int64_t d = 0; d < value_width; ++d)
                        pool.value(slot, h)[d] = number(what::value, r, p, heads.first + h, d);
                }
            }
    }

    void rows_of(const prefill_step& step) {
        std::vector<owned_row> batch;
        for (std::int64_t r = 0; r < s_.num_requests(); ++r) {
            const request& each = s_.requests[static_cast<std::size_t>(r)];
            for (std::int64_t t = 0; t < each.tokens; ++t) batch.push_back({r, each.computed + t});
        }
        rows_.assign(static_cast<std::size_t>(step.rows()), {});
        for (std::size_t i = 0; i < rows_.size(); ++i)
            if (step.arrays.batch_rows[i] >= 0) rows_[i] = batch[static_cast<std::size_t>(step.arrays.batch_rows[i])];
    }

    // [rows][heads][width]; filling is NaN, which must reach nothing.
    std::vector<float> row_data(what kind, const head_range& heads, std::int64_t width) const {
        std::vector<float> data;
        for (const owned_row& row : rows_)
            for (std::int64_t h = heads.first; h < heads.last; ++h)
                for (std::int64_t d = 0; d < width; ++d)
                    data.push_back(row.request < 0 ? std::nanf("") : number(kind, row.request, row.position, h, d));
        return data;
    }

    // Whether a row at `position` sees `key`, by the definition of the mask.
    bool sees(std::int64_t position, std::int64_t key) const {
        if (key > position) return false;
        if (key < s_.mask.prefix) return true;
        if (s_.mask.window > 0 && key <= position - s_.mask.window) return false;
        return s_.mask.chunk == 0 || key / s_.mask.chunk == position / s_.mask.chunk;
    }

    errors compare(const std::vector<float>& out, const std::vector<natural_lse>& lses) const {
        errors sum;
        double wrong = 0, all = 0;
        const head_range heads = mesh_.q_heads(rank_);
        const std::int64_t per_kv = s_.q_heads / s_.kv_heads;
        std::size_t at = 0;
        for (const owned_row& row : rows_)
            for (std::int64_t h = heads.first; h < heads.last; ++h, ++at) {
                if (row.request < 0) {
                    for (std::int64_t d = 0; d < value_width; ++d)
                        sum.filling_is_empty = sum.filling_is_empty && out[at * value_width + d] == 0.0F;
                    sum.filling_is_empty = sum.filling_is_empty && is_minus_infinity(lses[at].value);
                    continue;
                }
                double weights = 0, outputs[value_width] = {};
                for (std::int64_t key = 0; key <= row.position; ++key) {
                    if (!sees(row.position, key)) continue;
                    double score = 0;
                    for (std::int64_t d = 0; d < key_width; ++d)
                        score += double{number(what::query, row.request, row.position, h, d)} *
                                 double{number(what::key, row.request, key, h / per_kv, d)};
                    const double weight = std::exp(score / std::sqrt(double{key_width}));
                    weights += weight;
                    for (std::int64_t d = 0; d < value_width; ++d)
                        outputs[d] += weight * double{number(what::value, row.request, key, h / per_kv, d)};
                }
                sum.lse = std::max(sum.lse, std::fabs(std::log(weights) - double{lses[at].value}));
                for (std::int64_t d = 0; d < value_width; ++d) {
                    const double due = outputs[d] / weights;
                    const double error = due - double{out[at * value_width + static_cast<std::size_t>(d)]};
                    wrong += error * error;
                    all += due * due;
                }
            }
        sum.out = all > 0 ? std::sqrt(wrong / all) : std::sqrt(wrong);
        return sum;
    }

    const setting& s_;
    mesh mesh_;
    std::int64_t rank_;
    prefiller_type used_;
    host_workspace memory_;
    std::int64_t columns_;
    shard part_;
    std::vector<std::int64_t> computed_, tokens_, kinds_, table_;
    std::vector<float> keys_, values_;
    std::vector<owned_row> rows_;
};

// Runs fn(rank) on a thread for every rank.
template <class Fn>
void on_all_ranks(const setting& s, const Fn& fn) {
    run_local_ranks(static_cast<int>(s.world()), {}, [&](local_communicator& world) { fn(world.rank()); });
}

} // namespace small_world
