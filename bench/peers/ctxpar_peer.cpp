// Decode by this library: the public decoder in a group of one rank, over shuffled pages of 64 tokens. A step appends
// the newest token, which lies in the cache already, and decodes; the plan is made once, as for all layers of a model.
#include <ctxpar/ctxpar.hpp>

#include "problem.hpp"

namespace {

using namespace ctxpar;

constexpr std::int64_t page = 64;

// Pages of one cache, [block][2][head][token][width]. Block b of a request is page (b * odd) mod blocks: neighbours in
// a context are far from each other in memory.
template <class Element>
class pages {
public:
    explicit pages(const peers::options& given)
        : columns_((given.tokens + page - 1) / page), ids_(static_cast<std::size_t>(given.batch * columns_)) {
        const std::int64_t blocks = given.batch * columns_;
        std::int64_t stride = blocks * 5 / 8 | 1;
        while (std::gcd(stride, blocks) != 1) stride += 2;
        for (std::int64_t i = 0; i < blocks; ++i)
            ids_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * stride % blocks);
        for (std::int64_t i = 0; i < given.caches; ++i)
            pools_.emplace_back(blocks * 2 * peers::kv_heads * page * peers::width);
    }

    std::int64_t blocks() const { return static_cast<std::int64_t>(ids_.size()); }
    block_table table(std::int64_t batch) const { return table_2d(ids_.data(), batch, columns_, page); }
    kv_view<Element> view(std::int64_t cache) const {
        return joint_kv(pools_[static_cast<std::size_t>(cache)].data(), blocks(), page, peers::kv_heads, peers::width,
                        peers::width, page_order::hnd);
    }

    // All tokens, the newest among them.
    void fill(const peers::problem<Element>& from) {
        for (std::int64_t cache = 0; cache < from.given().caches; ++cache) {
            const kv_view<Element> to = view(cache);
            for (std::int64_t request = 0; request < from.given().batch; ++request) {
                for (std::int64_t head = 0; head < peers::kv_heads; ++head) {
                    for (std::int64_t token = 0; token < from.given().tokens; ++token) {
                        const std::int64_t id = ids_[static_cast<std::size_t>(request * columns_ + token / page)];
                        from.copy_token(cache, request, token, head, to.k.at(id, token % page, head),
                                        to.v.at(id, token % page, head));
                    }
                }
            }
        }
    }

private:
    std::int64_t columns_;
    std::vector<std::int32_t> ids_;
    std::vector<peers::memory<Element>> pools_;
};

template <class Element>
void measure(const peers::options& given) {
    using chosen = policy<gqa<Element, peers::width>, interleave<16>, merge::a2a>;
    const peers::problem<Element> inputs(given, [](float number) { return Element(number); });
    pages<Element> caches(given);
    caches.fill(inputs);
    std::vector<Element> queries(inputs.queries().begin(), inputs.queries().end());
    std::vector<float> out(queries.size());

    decode_shape shape{.q_heads = peers::query_heads, .kv_heads = peers::kv_heads};
    shape.max_requests = shape.max_rows = given.batch;
    shape.longest = given.tokens;
    shape.pool_blocks = caches.blocks();
    shape.output = scalar_type::f32;
    decoder<chosen, cpu_backend, local_communicator> decoder{{}, shape, {}, cpu_backend({.threads = given.threads})};
    host_workspace memory{decoder.workspace_bytes()};

    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(given.batch), given.tokens);
    const decode_batch batch{
        .requests = given.batch, .lengths = index_of(lengths.data()), .table = caches.table(given.batch)};
    auto step = decoder.plan(batch, memory, {});
    const auto rows = [&](const Element* base, std::int64_t heads) {
        return dense_view<const Element>(base, given.batch, heads, peers::width);
    };
    peers::run(
        given, "ctxpar",
        [&](std::int64_t cache) {
            decoder.append(step, rows(inputs.newest_key(), peers::kv_heads),
                           rows(inputs.newest_value(), peers::kv_heads), caches.view(cache), {});
            decoder.decode(step, rows(queries.data(), peers::query_heads), caches.view(cache),
                           dense_view(out.data(), given.batch, peers::query_heads, peers::width), {}, {});
        },
        [&] { return out.data(); });
}

} // namespace

int main(int argc, char** argv) {
    try {
        const peers::options given = peers::parse(argc, argv);
        if (given.type == "bf16") {
            measure<bf16>(given);
        } else if (given.type == "f16") {
            measure<f16>(given);
        } else {
            throw std::invalid_argument("--type is bf16 or f16");
        }
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "%s\n", problem.what());
        return 1;
    }
}
