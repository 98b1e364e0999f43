#!/usr/bin/env python3
"""How many lines of the device code the tests of the emulated device run.

usage: coverage.py BUILD_FOLDER [--suites]

Builds the tests in BUILD_FOLDER with gcov's counters, without the exactness suites unless asked for, runs them, and prints for each
file of include/ctxpar/backend/cuda how many of the lines that have code were run, and which were not. Exits with 1
below 95 %.
"""
import collections
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICE_CODE = ROOT / "include" / "ctxpar" / "backend" / "cuda"
LEAST = 0.95


def build_and_run(folder, suites):
    settings = {"CTXPAR_TEST_LAYERS": "simt", "CTXPAR_TEST_DEVICE_SUITES": "ON" if suites else "OFF",
                "CTXPAR_BUILD_EXAMPLES": "OFF", "CTXPAR_TEST_PACKAGE": "OFF", "CTXPAR_TEST_MPI": "OFF",
                "CMAKE_BUILD_TYPE": "Debug", "CMAKE_CXX_FLAGS_DEBUG": "-Og -g1 --coverage -fprofile-update=atomic"}
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja"] + [f"-D{k}={v}" for k, v in settings.items()],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", folder, "--parallel", str(os.cpu_count())], check=True)
    for counters in folder.rglob("*.gcda"):
        counters.unlink()
    subprocess.run(["ctest", "--test-dir", folder, "--output-on-failure", "-j", str(os.cpu_count())], check=True,
                   stdout=subprocess.DEVNULL)


def lines_of(folder):
    """{file: {line: how often}} of the device code, over all translation units."""
    counts = collections.defaultdict(lambda: collections.defaultdict(int))
    for counters in folder.rglob("*.gcda"):
        run = subprocess.run(["gcov", "--json-format", "--stdout", counters], cwd=counters.parent, check=True,
                             capture_output=True, text=True)
        for text in run.stdout.splitlines():
            for file in json.loads(text)["files"]:
                path = (folder / file["file"]).resolve()
                if path.parent != DEVICE_CODE:
                    continue
                for line in file["lines"]:
                    counts[path.name][line["line_number"]] += line["count"]
    return counts


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]).resolve()
    build_and_run(folder, "--suites" in sys.argv)
    total = run = 0
    for name, lines in sorted(lines_of(folder).items()):
        # A line that only names a template's parameters or closes a scope counts as the compiler counts it.
        missed = [number for number, count in sorted(lines.items()) if count == 0]
        total += len(lines)
        run += len(lines) - len(missed)
        where = ", ".join(map(str, missed))
        print(f"{name}: {len(lines) - len(missed)} of {len(lines)} lines" + (f", not {where}" if where else ""))
    share = run / max(total, 1)
    print(f"device code: {run} of {total} lines were run, {100 * share:.1f} %")
    return share < LEAST


if __name__ == "__main__":
    sys.exit(main())
