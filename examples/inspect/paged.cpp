// slots and blocks: where tokens lie in the paged pools of the ranks.
#include <memory>

#include <fmt/format.h>

#include <ctxpar/layout/paged.hpp>

#include "arguments.hpp"

namespace inspect {
namespace {

struct options {
    std::int64_t ranks = 0, interleave = 0, block_size = 0;
    numbers table, positions, lengths;
    std::optional<std::int64_t> kernel_block, common_prefix;
    bool strict = false;
};

// The first rule broken is the one reported, so the order of these checks is part of the command.
numbers check_slots(const ctxpar::ownership& law, const options& given, const ctxpar::block_table& blocks) {
    if (given.strict) ctxpar::check_interleave_divides_block(law, given.block_size);
    const std::int64_t kernel_block = given.kernel_block.value_or(given.block_size);
    ctxpar::kernel_table({}, given.block_size, kernel_block);
    ctxpar::check_positions(law, blocks, 0, given.positions);
    check_readable({std::ssize(given.table), given.block_size / kernel_block});
    return ctxpar::kernel_table(given.table, given.block_size, kernel_block); // refuses a bad id of any block
}

answer run_slots(const options& given) {
    const ctxpar::ownership law = ctxpar::make_ownership(given.ranks, given.interleave);
    ctxpar::check_block_size(given.block_size);
    const ctxpar::block_table blocks =
        ctxpar::table_2d(given.table.data(), 1, std::ssize(given.table), given.block_size);
    const numbers kernel_table = check_slots(law, given, blocks);
    check_readable({law.ranks, std::ssize(given.positions) + 1});

    std::vector<numbers> slots;
    for (std::int64_t rank = 0; rank < law.ranks; ++rank) {
        slots.emplace_back(given.positions.size());
        ctxpar::map_slots({law.ranks, rank, law.interleave}, blocks, 0, given.positions, slots.back());
    }
    numbers owner;
    table rows(rank_header({"position", "owner"}, law.ranks));
    for (std::size_t i = 0; i < given.positions.size(); ++i) {
        owner.push_back(law.owner(given.positions[i]));
        std::vector<std::string> cells = {fmt::format("{}", given.positions[i]), fmt::format("{}", owner.back())};
        for (const numbers& of_rank : slots) {
            cells.push_back(of_rank[i] == -1 ? std::string("-") : fmt::format("{}", of_rank[i]));
        }
        rows.row(std::move(cells));
    }
    answer result{{{"slots", slots}, {"owner", owner}}, "slots; - is not on this rank\n" + rows.text()};
    if (given.kernel_block) {
        result.values["kernel_table"] = kernel_table;
        result.text +=
            fmt::format("table in kernel blocks of {} tokens: {}\n", *given.kernel_block, joined(kernel_table));
    }
    return result;
}

answer run_blocks(const options& given) {
    const ctxpar::ownership law = ctxpar::make_ownership(given.ranks, given.interleave);
    for (const std::int64_t length : given.lengths) ctxpar::check_length(length);
    if (given.common_prefix) ctxpar::check_length(*given.common_prefix);
    ctxpar::check_block_size(given.block_size);
    const std::int64_t virtual_block = ctxpar::virtual_block_size(law, given.block_size);
    const std::int64_t unit = ctxpar::prefix_unit(law, given.block_size);
    check_readable({law.ranks, std::ssize(given.lengths) + 1});

    json per_rank = json::array(), widths = json::array();
    table rows(rank_header({"length", "table width"}, law.ranks));
    for (const std::int64_t length : given.lengths) {
        const numbers blocks = ctxpar::blocks_per_rank(law, given.block_size, length);
        const std::int64_t width = ctxpar::table_width(law, given.block_size, length);
        std::vector<std::string> cells = {fmt::format("{}", length), fmt::format("{}", width)};
        for (const std::int64_t count : blocks) cells.push_back(fmt::format("{}", count));
        rows.row(std::move(cells));
        per_rank.push_back(blocks);
        widths.push_back(width);
    }
    answer result{{{"virtual_block_size", virtual_block},
                   {"prefix_unit", unit},
                   {"blocks_per_rank", std::move(per_rank)},
                   {"table_width", std::move(widths)}},
                  fmt::format("virtual block: {} tokens\nprefix unit: {} tokens\n", virtual_block, unit)};
    if (given.common_prefix) {
        const std::int64_t hit = ctxpar::prefix_hit(law, given.block_size, *given.common_prefix);
        result.values["prefix_hit"] = hit;
        result.text += fmt::format("of a common prefix of {} tokens, {} can be shared\n", *given.common_prefix, hit);
    }
    result.text += "blocks on each rank\n" + rows.text();
    return result;
}

std::shared_ptr<options> shared_options(CLI::App& app) {
    const auto given = std::make_shared<options>();
    number(app, need::required, "--ranks", given->ranks, "ranks that share the KV");
    number(app, need::required, "--interleave", given->interleave, "consecutive tokens on one rank");
    number(app, need::required, "--block-size", given->block_size, "tokens of one rank in a block");
    return given;
}

} // namespace

std::function<answer()> slots_command(CLI::App& app) {
    const auto given = shared_options(app);
    list(app, "--table", given->table, "block ids of the request");
    list(app, "--positions", given->positions, "token positions");
    number(app, "--kernel-block", given->kernel_block, "tokens of a kernel block; also show the table in those");
    flag(app, "--strict", given->strict, "refuse an interleave that does not divide the block size");
    return [given] { return run_slots(*given); };
}

std::function<answer()> blocks_command(CLI::App& app) {
    const auto given = shared_options(app);
    list(app, "--lengths", given->lengths, "sequence lengths in tokens");
    number(app, "--common-prefix", given->common_prefix, "tokens of a common prefix; also show what can be shared");
    return [given] { return run_blocks(*given); };
}

} // namespace inspect
