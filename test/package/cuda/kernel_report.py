#!/usr/bin/env python3
"""Compiles kernels and tells what the compilers made of them.

Usage: kernel_report.py OUT_DIR ARCHITECTURE[,...] NVCC OPTION... SOURCE.cu

Compiles SOURCE for every architecture (80, 90a, ...) into OUT_DIR/kernels.o, a warning being an error, and prints a row
for each kernel: registers, stack, spilled bytes, and which of the instructions below its PTX holds. Exit status 1 where
a kernel spills, has local memory, or breaks a rule of RULES.
"""

import collections
import pathlib
import re
import shutil
import subprocess
import sys
import time

# What makes a kernel fast or slow, as it stands in PTX.
INSTRUCTIONS = {
    "cp.async": r"cp\.async\.cg\.shared",
    "ldmatrix": r"ldmatrix\.",
    "mma": r"mma\.sync\.",
    "load16": r"ld\.global(?:\.nc)?(?:\.L\w+)*(?:\.v4\.[bufs]32|\.v2\.[bufs]64)",
    "store16": r"st\.global(?:\.\w+)?(?:\.v4\.[bufs]32|\.v2\.[bufs]64)",
    "local": r"(?:ld|st)\.local\.",
}
# Kernels by the beginning of their name, and what they must hold. Every name must be that of some kernel.
RULES = {
    "attend_tiles_kernel": {"cp.async", "ldmatrix", "mma", "load16"},
    "attend_plain_kernel": {"load16"},
    "combine_splits_kernel": {"load16", "store16"},
    "merge_kernel": {"load16", "store16"},
    "scale_kernel": {"load16", "store16"},
    "sum_parts_kernel": {"load16", "store16"},
    "accumulate_kernel": {"load16", "store16"},
    "finish_kernel": {"load16", "store16"},
    "convert_kernel": {"load16", "store16"},
    "pack_kernel": {"load16", "store16"},
    "append_kernel": {"load16"},
    "copy_kv_kernel": {"load16", "store16"},
    "move_rows_kernel<16>": {"load16", "store16"},
}
MUST_NOT_HOLD = {"local"}

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")

Kernel = collections.namedtuple("Kernel", "symbol architecture registers stack spilled")


def kernels_in_log(log):
    """What ptxas -v said of every kernel."""
    found, symbol, architecture, frame = [], None, None, None
    for line in log.splitlines():
        if match := ENTRY.search(line):
            symbol, architecture, frame = match.group(1), match.group(2), None
        elif match := FRAME.search(line):
            frame = frame or tuple(map(int, match.groups()))
        elif (match := REGISTERS.search(line)) and symbol:
            stack, stores, loads = frame or (0, 0, 0)
            found.append(Kernel(symbol, architecture, int(match.group(1)), stack, stores + loads))
            symbol = None
    return found


def instructions_in_ptx(ptx):
    """The names of INSTRUCTIONS that each kernel holds, by symbol."""
    held = {}
    for entry in re.split(r"\.entry +", ptx)[1:]:
        symbol = re.match(r"\w+", entry).group(0)
        held[symbol] = {name for name, pattern in INSTRUCTIONS.items() if re.search(pattern, entry)}
    return held


def short_names(symbols):
    """Kernel names as a person writes them, by symbol."""
    symbols, tool = sorted(symbols), shutil.which("c++filt")
    if not tool or not symbols:
        return {symbol: symbol for symbol in symbols}
    text = subprocess.run([tool], input="\n".join(symbols), stdout=subprocess.PIPE, text=True, check=True).stdout
    return {symbol: short_name(long) for symbol, long in zip(symbols, text.splitlines())}


def short_name(name):
    types = {r"small_float<unsigned short, 8, 7, true, false>": "bf16",
             r"small_float<unsigned short, 5, 10, true, false>": "f16",
             r"small_float<unsigned char, 4, 3, false, true>": "e4m3",
             r"small_float<unsigned char, 5, 2, true, false>": "e5m2"}
    name = re.sub(r"\((?:ctxpar::(?:v\w+::)?)?lse_base\)(\d)", lambda m: ("natural", "binary")[int(m.group(1))], name)
    name = re.sub(r"\b(?:ctxpar|v\d+_\d+|cuda)::", "", name)
    for long, short in types.items():
        name = name.replace(long, short)
    name = re.sub(r"\((?:int|bool|long)\)| (?=>)", "", name.removeprefix("void "))
    depth = 0
    for at, letter in enumerate(name):  # the arguments begin at the first ( outside <>
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def faults_of(kernels, held, names):
    """What breaks the rules, as sentences; held is by (architecture, symbol)."""
    faults = []
    for kernel in kernels:
        name = f"{names[kernel.symbol]} for sm_{kernel.architecture}"
        has = held.get((kernel.architecture, kernel.symbol))
        if has is None:
            faults.append(f"{name} is not in the PTX")
            continue
        if kernel.stack or kernel.spilled:
            faults.append(f"{name} spills {kernel.spilled} bytes and has a stack of {kernel.stack} bytes")
        faults += [f"{name} holds {unwanted} instructions" for unwanted in sorted(has & MUST_NOT_HOLD)]
        for start, wanted in RULES.items():
            if names[kernel.symbol].startswith(start):
                faults += [f"{name} holds no {missing} instructions" for missing in sorted(wanted - has)]
    faults += [f"there is no kernel {start}" for start in RULES
               if not any(names[kernel.symbol].startswith(start) for kernel in kernels)]
    return faults


def print_table(kernels, held, names):
    architectures = sorted({kernel.architecture for kernel in kernels}, key=lambda name: int(name.rstrip("abf")))
    by_name = collections.defaultdict(dict)
    for kernel in kernels:
        by_name[names[kernel.symbol]][kernel.architecture] = kernel
    print("registers".ljust(12) + "".join(f"sm_{name}".ljust(9) for name in architectures) + "kernel: instructions")
    for name in sorted(by_name):
        one = by_name[name]
        print("".ljust(12) + "".join((str(one[a].registers) if a in one else "-").ljust(9) for a in architectures) +
              name + ": " + " ".join(sorted(set().union(*(held.get((a, one[a].symbol), set()) for a in one)))))


def compile_kernels(out, architectures, command):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    codes = [option for each in architectures for option in ("-gencode", f"arch=compute_{each},code=sm_{each}")]
    began = time.monotonic()
    run = subprocess.run([command[0], "-std=c++20", *codes, "-Werror", "all-warnings", "-Xptxas", "-v", "-keep",
                          "-keep-dir", out, *command[1:], "-c", "-o", out / "kernels.o"],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if run.returncode != 0:
        sys.exit(re.sub(r"^ptxas info.*\n|^ +\d+ bytes stack.*\n", "", run.stdout, flags=re.MULTILINE))
    print(f"compiled for {len(architectures)} architectures in {time.monotonic() - began:.0f} s")
    texts = {}
    for each in architectures:
        files = list(out.glob(f"*compute_{each}.ptx" if len(architectures) > 1 else "*.ptx"))
        texts[each] = files[0].read_text()
    for path in out.iterdir():  # what was kept takes much room
        if path.name != "kernels.o":
            path.unlink()
    return run.stdout, texts


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    architectures = sys.argv[2].split(",")
    log, texts = compile_kernels(pathlib.Path(sys.argv[1]), architectures, sys.argv[3:])
    kernels = kernels_in_log(log)
    held = {(each, symbol): has for each, ptx in texts.items() for symbol, has in instructions_in_ptx(ptx).items()}
    names = short_names({kernel.symbol for kernel in kernels})
    print_table(kernels, held, names)
    faults = faults_of(kernels, held, names)
    if missing := set(architectures) - {kernel.architecture for kernel in kernels}:
        faults.append(f"the assembler said nothing of {', '.join(sorted(missing))}")
    print(*faults, f"{len(kernels)} kernels, {len(faults)} faults", sep="\n")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
