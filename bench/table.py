#!/usr/bin/env python3
"""Medians of several runs of the CPU benchmarks: results.json, and results.md for a person.

    bench/table.py --out FOLDER RUN.json...    as bench/run.sh calls it
"""

import argparse
import json
import os
import re
import statistics

# Counters that are reported, by the name of their column. Google Benchmark writes counters beside its own fields.
COUNTERS = {
    "read_GB_per_s": "read GB/s",
    "of_read": "of the read ceiling",
    "copy_GB_per_s": "read + written GB/s",
    "of_copy": "of the copy ceiling",
    "GFLOP_per_s": "GFLOP/s",
    "of_compute": "of the compute ceiling",
    "plan_us": "plan µs",
    "append_us": "append µs",
    "attend_us": "attend µs",
    "merge_us": "merge µs",
    "exchange_us": "exchange and waiting µs",
}
SHARES = {"of_read", "of_copy", "of_compute"}
TITLES = {
    "decode": "Decode",
    "step": "A decode step in its parts, of rank 0",
    "prefill": "Prefill",
    "merge": "Merge",
    "collective": "Collectives",
}


def short(name):
    """The name as it was registered, without what Google Benchmark adds."""
    return re.sub(r"/(iterations:\d+|real_time|manual_time|min_time:[\d.]+)", "", name)


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except ValueError:
        return None  # no benchmark matched the filter


def summary(values):
    """Median and spread; the spread is the difference of largest and smallest over the median."""
    middle = statistics.median(values)
    return {
        "median": middle,
        "least": min(values),
        "most": max(values),
        "spread": (max(values) - min(values)) / middle if middle else 0.0,
    }


def gather(files):
    rows = {}
    for file in files:
        for each in file.get("benchmarks", []):
            if each.get("run_type", "iteration") != "iteration":
                continue
            row = rows.setdefault(short(each["name"]), {"values": {}, "label": each.get("label", "")})
            row["cpus"] = int(each.get("cpus", 0))
            row["error"] = max(row.get("error", 0.0), each.get("error", 0.0))
            to_us = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}[each["time_unit"]]
            row["values"].setdefault("time_us", []).append(each["real_time"] * to_us)
            for name in COUNTERS:
                if name in each:
                    row["values"].setdefault(name, []).append(each[name])
    return [
        {
            "name": name,
            "instructions": row["label"],
            "cpus": row["cpus"],
            "error": row["error"],
            **{key: summary(values) for key, values in row["values"].items()},
        }
        for name, row in rows.items()
    ]


def number(value):
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cell(row, key):
    if key not in row:
        return ""
    value = row[key]["median"]
    return f"{value:.2f}" if key in SHARES else number(value)


def table(rows):
    used = [key for key in COUNTERS if any(key in row for row in rows)]
    lines = [
        "| benchmark | µs | spread | " + " | ".join(COUNTERS[key] for key in used) + " | CPUs | instructions |",
        "| --- | ---: | ---: |" + " ---: |" * len(used) + " ---: | --- |",
    ]
    for row in rows:
        time = row["time_us"]
        cells = [row["name"].split("/", 1)[1].replace("/", " "), number(time["median"]), f"{100 * time['spread']:.0f}%"]
        cells += [cell(row, key) for key in used]
        cells += [str(row["cpus"] or ""), row["instructions"]]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def ceilings_of(context):
    found = {}
    for key, value in context.items():
        match = re.fullmatch(r"ceiling_best_(\d+)_(\w+)", key)
        if match:
            found.setdefault(match[1], {})[match[2]] = float(value)
    return found


def text_of(result):
    lines = ["# Benchmarks of the CPU backend", ""]
    lines.append(f"{result['runs']} of {result['wanted']} runs, {result['discarded']} thrown away; medians, and as spread "
                 "the difference of the slowest and the fastest run.")
    if not result["accepted"]:
        reasons = sorted({why for why in result["not_accepted_because"] if why})
        lines += ["", "**Not accepted: " + ("; ".join(reasons) or "too few runs") + ".** These figures mean little."]
    lines += ["", "| threads | read GB/s | copy GB/s | " + result["compute_ceiling"] + " GFLOP/s |", "| ---: " * 4 + "|"]
    for threads in sorted(result["ceilings"], key=int):
        each = result["ceilings"][threads]
        keys = ("read_GB_per_s", "copy_GB_per_s", "GFLOP_per_s")
        lines.append(f"| {threads} | " + " | ".join(number(each[key]["median"]) for key in keys) + " |")
    for family, title in TITLES.items():
        rows = [row for row in result["rows"] if row["name"].split("/")[0] == family]
        if rows:
            lines += ["", f"## {title}", "", *table(rows)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder of results.json and results.md")
    parser.add_argument("--wanted", type=int, default=0, help="runs that were wanted; all that are given")
    parser.add_argument("--discarded", type=int, default=0, help="runs that were thrown away")
    parser.add_argument("runs", nargs="+")
    given = parser.parse_args()

    files = [file for file in map(load, given.runs) if file]
    contexts = [file["context"] for file in files if "accepted" in file["context"]]
    wanted = given.wanted or len(contexts)
    measured = [ceilings_of(context) for context in contexts]
    threads = {key for each in measured for key in each}
    result = {
        "runs": len(contexts),
        "wanted": wanted,
        "discarded": given.discarded,
        "accepted": len(contexts) >= wanted and all(context["accepted"] == "true" for context in contexts),
        "not_accepted_because": [context["not_accepted_because"] for context in contexts],
        "compute_ceiling": contexts[0]["compute_ceiling"] if contexts else "",
        "ceilings": {
            count: {
                key: summary([each[count][key] for each in measured if count in each])
                for key in ("read_GB_per_s", "copy_GB_per_s", "GFLOP_per_s")
            }
            for count in threads
        },
        "rows": gather(files),
    }
    with open(os.path.join(given.out, "results.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    with open(os.path.join(given.out, "results.md"), "w", encoding="utf-8") as file:
        file.write(text_of(result))


if __name__ == "__main__":
    main()
