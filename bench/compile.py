#!/usr/bin/env python3
"""What nvcc takes to compile one decoder, phase by phase.

Usage: compile.py [--nvcc NVCC] [--architecture 90a] [--runs 3] [--cpu N] [--out FILE] [CASE ...]

A case is a file of bench/compile: nothing (the floor of the compiler itself), everything (cuda.cuh), headers (what the
decoders include), gqa and mla (a decoder each), gqa_operations and mla_operations (what a decoder that is left to a C++
file calls). The commands that nvcc would run for one architecture are run one by one.
Seconds are of processor time, the least of all runs, since unlike the time on the clock they do not count what else the
machine does; cases take turns. FILE gets them as JSON. Never fails for being slow.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CASES = ("nothing", "everything", "headers", "gqa", "mla", "gqa_operations", "mla_operations")
# By the program that does it, in the order of their columns.
PHASES = {"preprocess": "preprocess", "cudafe++": "split", "cicc": "device", "ptxas": "assemble", "fatbinary": "pack",
          "host": "host"}


def commands(arguments, case, folder):
    """The commands of one compilation, as (phase, command line, environment)."""
    run = subprocess.run(
        [arguments.nvcc, "-std=c++20", "-O2", "-gencode",
         f"arch=compute_{arguments.architecture},code=sm_{arguments.architecture}", "-I", HERE.parent / "include",
         "--keep", "--keep-dir", folder, "--dryrun", "-c", "-o", folder / "out.o", HERE / "compile" / f"{case}.cu"],
        stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    environment, found = dict(os.environ), []
    for line in run.stderr.splitlines():
        line = line.removeprefix("#$ ").strip()
        if setting := re.match(r"([A-Z_]+)=(.*)$", line):
            environment[setting[1]] = setting[2].strip()
            continue
        program = pathlib.Path(shlex.split(line)[0]).name
        if program in ("rm", "erase"):
            continue
        if program not in PHASES:  # a host compiler, of any name
            program = "preprocess" if " -E " in line else "host"
        found.append((program, line))
    return [(phase, line, environment) for phase, line in found]


def seconds(arguments, steps):
    """Processor time of each phase."""
    spent = dict.fromkeys(PHASES, 0.0)
    for phase, line, environment in steps:
        if arguments.cpu is not None:
            line = f"taskset -c {arguments.cpu} {line}"
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        if subprocess.run(["bash", "-c", line], env=environment).returncode != 0:
            sys.exit(f"this failed: {line}")
        spent[phase] += resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return spent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--architecture", default="90a")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(CASES):
        parser.error(f"there is no case {', '.join(sorted(unknown))}; the cases are {', '.join(CASES)}")
    if arguments.runs < 1:
        parser.error("there must be at least one run")
    cases = arguments.cases or CASES
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        steps = {case: commands(arguments, case, pathlib.Path(folder)) for case in cases}
        for _ in range(arguments.runs):
            for case in cases:
                spent = seconds(arguments, steps[case])
                known = best.setdefault(case, spent)
                best[case] = {phase: min(known[phase], value) for phase, value in spent.items()}
    print("seconds".ljust(12) + "all".rjust(8) + "".join(name.rjust(12) for name in PHASES.values()))
    for case, spent in best.items():
        print(case.ljust(12) + f"{sum(spent.values()):8.2f}" + "".join(f"{value:12.2f}" for value in spent.values()))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(
            {"architecture": arguments.architecture, "runs": arguments.runs,
             "seconds": {case: {PHASES[phase]: round(value, 2) for phase, value in spent.items()}
                         for case, spent in best.items()}}, indent=4) + "\n")


if __name__ == "__main__":
    main()
