#!/usr/bin/env python3
"""Charts of build/bench/results.json as SVG: shares of the ceilings over the context, the cost of more ranks on the same
cores, and the time of a step over tokens. Needs matplotlib (Debian: python3-matplotlib).

    bench/plot.py FOLDER [--results build/bench/results.json]
"""

import argparse
import json
import os
import re
import sys

try:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("bench/plot.py needs matplotlib: apt-get install python3-matplotlib")

matplotlib.rcParams.update({
    "svg.hashsalt": "ctxpar",  # the same file for the same numbers
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
})


def fields(name):
    """The parts of a benchmark's name, numbers as numbers."""
    parts = name.split("/")
    found = {"family": parts[0], "kind": parts[1]}
    for part in parts[2:]:
        key, _, value = part.partition(":")
        found[key] = int(value) if re.fullmatch(r"\d+", value) else value
    return found


def load(path):
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    for row in result["rows"]:
        row.update(fields(row["name"]))
    return result


def chosen(rows, **wanted):
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def most_threads(rows):
    """Of the rows with as many threads as any has."""
    most = max((row.get("threads", 0) for row in rows), default=0)
    return [row for row in rows if row.get("threads", 0) == most]


def tokens_text(tokens):
    if tokens >= 1 << 20:
        return f"{tokens >> 20}M"
    return f"{tokens >> 10}K" if tokens >= 1024 else str(tokens)


def line(axes, rows, x, y, label):
    """A line through the medians, with bars from the smallest to the largest run."""
    rows = sorted((row for row in rows if y in row), key=lambda row: row[x])
    if not rows:
        return
    middle = [row[y]["median"] for row in rows]
    bars = [[m - row[y]["least"] for m, row in zip(middle, rows)], [row[y]["most"] - m for m, row in zip(middle, rows)]]
    axes.errorbar([row[x] for row in rows], middle, yerr=bars, marker="o", markersize=4, capsize=2, label=label)


def finish(figure, axes, result, folder, name):
    if not axes.has_data():
        print(f"no results for {name}.svg: left out")
        plt.close(figure)
        return
    if not result["accepted"]:
        axes.text(0.5, 0.5, "not accepted", transform=axes.transAxes, ha="center", va="center", size=28, alpha=0.2)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    path = os.path.join(folder, name + ".svg")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path)


def over_tokens(axes, rows):
    tokens = sorted({row["tokens"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(tokens, [tokens_text(each) for each in tokens])
    axes.set_xlabel("tokens of context")


def plot_context(result, folder):
    figure, axes = plt.subplots(figsize=(7, 4.2))
    decode = [row for row in chosen(result["rows"], family="decode", ranks=1, batch=1)]
    gqa = most_threads(chosen(decode, kind="gqa", q_heads=64, kv_heads=8))
    mla = most_threads(chosen(decode, kind="mla", q_heads=128, block=16))
    for layout in ("nhd", "hnd"):
        for block in (16, 64):
            line(axes, chosen(gqa, layout=layout, block=block), "tokens", "of_read",
                 f"GQA 64/8, {layout.upper()}, blocks of {block}: of read bandwidth")
    line(axes, mla, "tokens", "of_compute", f"MLA 128 heads: of {result['compute_ceiling']}")
    over_tokens(axes, gqa + mla)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("share of the ceiling")
    axes.set_title("Decode, one rank, all cores")
    finish(figure, axes, result, folder, "context")


def plot_ranks(result, folder):
    figure, axes = plt.subplots(figsize=(7, 4.2))
    decode = chosen(result["rows"], family="decode", batch=1, block=16, interleave=16)
    series = [
        (chosen(decode, kind="gqa", q_heads=64, kv_heads=8, layout="nhd"), "GQA 64/8"),
        (chosen(decode, kind="mla", q_heads=128), "MLA 128 heads"),
    ]
    for all_rows, label in series:
        for tokens in sorted({row["tokens"] for row in all_rows if row["ranks"] > 1}):
            rows = chosen(all_rows, tokens=tokens)
            single = most_threads(chosen(rows, ranks=1))
            if not single:
                continue
            base = single[0]["time_us"]["median"]
            rows = single + [row for row in rows if row["ranks"] > 1]
            if len(rows) < 3:
                continue
            scaled = [{"ranks": row["ranks"],
                       "cost": {key: row["time_us"][key] / base for key in ("median", "least", "most")}} for row in rows]
            line(axes, scaled, "ranks", "cost", f"{label}, {tokens_text(tokens)} tokens")
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ranks, on the same cores")
    axes.set_ylabel("time of a decode, one rank = 1")
    axes.set_title("What sharding costs")
    finish(figure, axes, result, folder, "ranks")


def plot_step(result, folder):
    figure, axes = plt.subplots(figsize=(7, 4.2))
    steps = chosen(result["rows"], family="step", kind="gqa")
    for ranks in sorted({row["ranks"] for row in steps}):
        rows = chosen(steps, ranks=ranks)
        line(axes, rows, "tokens", "time_us", f"GQA 64/8, {ranks} rank{'s' if ranks > 1 else ''}")
        longest = max(rows, key=lambda row: row["tokens"])
        if ranks == 1:
            ends = [min(row["tokens"] for row in rows), longest["tokens"]]
            slope = longest["time_us"]["median"] / longest["tokens"]
            axes.plot(ends, [slope * end for end in ends], "--", color="grey",
                      label=f"straight through 0 and {tokens_text(longest['tokens'])}")
    if steps:
        over_tokens(axes, steps)
        axes.set_yscale("log")
    axes.set_ylabel("µs a step and layer")
    axes.set_title("A decode step: plan, append, attend, merge")
    finish(figure, axes, result, folder, "step")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--results", default="build/bench/results.json")
    given = parser.parse_args()
    os.makedirs(given.folder, exist_ok=True)
    result = load(given.results)
    plot_context(result, given.folder)
    plot_ranks(result, given.folder)
    plot_step(result, given.folder)


if __name__ == "__main__":
    main()
