#!/usr/bin/env python3
"""No macro of the build changes what a header of ctxpar says. Usage: same_text.py COMPILER INCLUDE_DIR HEADER

Preprocesses the header under different settings and compares the lines that come from INCLUDE_DIR/ctxpar. Where they
differed, two objects built differently would give one inline function two bodies, and the linker would silently keep
either.
"""

import difflib
import platform
import re
import subprocess
import sys

SETTINGS = [["-O3", "-DNDEBUG"], ["-O1", "-g", "-DDEBUG", "-D_DEBUG", "-D_GLIBCXX_ASSERTIONS"], ["-ffast-math"],
            ["-fPIC", "-fopenmp"], ["-fno-rtti"]]
if platform.machine() == "x86_64":
    SETTINGS += [["-mavx2", "-mfma"], ["-mavx512f", "-mavx512bw", "-mavx512vl"]]


def own_lines(compiler, include, header, setting):
    """The preprocessed lines of our headers, without blank ones, each with its file and line number."""
    command = [compiler, "-std=c++20", *setting, "-I", include, "-E", "-x", "c++", "-include", header, "/dev/null"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"this failed: {' '.join(command)}")
    name, number, lines = "", 0, []
    for line in result.stdout.splitlines():
        marker = re.match(r'# (\d+) "([^"]*)"', line)
        if marker:
            number, name = int(marker.group(1)), marker.group(2)
            continue
        if line.strip() and name.startswith(f"{include}/ctxpar/"):
            lines.append(f"{name.removeprefix(include + '/')}:{number}: {' '.join(line.split())}")
        number += 1
    return lines


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    compiler, include, header = sys.argv[1:]
    plain = own_lines(compiler, include, header, ["-O0"])
    if not plain:
        sys.exit(f"{header} has no lines from {include}/ctxpar")
    failed = False
    for setting in SETTINGS:
        changed = list(difflib.unified_diff(plain, own_lines(compiler, include, header, setting), lineterm="", n=0))
        if changed:
            failed = True
            print(f"{' '.join(setting)} changes the headers:", *changed[2:], sep="\n")
    print(f"{len(plain)} lines under {len(SETTINGS) + 1} settings")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
