#!/bin/bash
# Counts the instructions of one decode step (plan, append, decode; GQA, 2,048 tokens) for each path of the CPU kernels
# that valgrind runs, and compares them with bench/instructions.json: counts tell what a loaded machine's clock can not.
# The step's result is compared with a reference first. Counts are those of one compiler and are compared only where it
# is the same.
#
#   bench/instructions.sh             exit status 1 where a count grew by more than 5 percent, or the wrong path ran
#   bench/instructions.sh --record    renews the file
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=.cmake/setup.sh
source .cmake/setup.sh

record=false
case "${*:-}" in
'') ;;
--record) record=true ;;
*)
    echo "usage: bench/instructions.sh [--record]" >&2
    exit 2
    ;;
esac
ensure_packages g++ cmake ninja-build python3 libbenchmark-dev valgrind

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! { cmake --preset bench && cmake --build --preset bench --target instructions_bench; } >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
compiler=$(sed -n 's/^set(CMAKE_CXX_COMPILER_\(ID\|VERSION\) "\(.*\)")$/\2/p' build/bench/CMakeFiles/*/CMakeCXXCompiler.cmake |
    paste -sd ' ')

for path in portable avx2; do
    if [ $path = avx2 ] && ! grep -qw avx2 /proc/cpuinfo; then
        echo "This processor has no AVX2: that path is left out"
        continue
    fi
    valgrind --tool=callgrind --toggle-collect=counted_step --callgrind-out-file="$work/calls" \
        build/bench/bench/cpu/instructions_bench $path >"$work/out" 2>"$work/log" || {
        cat "$work/out" "$work/log" >&2
        echo "The step of path $path failed" >&2
        exit 1
    }
    grep -q "^path $path," "$work/out" || {
        echo "Path $path was asked for, and this ran: $(cat "$work/out")" >&2
        exit 1
    }
    echo "$path $(sed -n 's/.*Collected : //p' "$work/log")" >>"$work/counts"
done

python3 - "$record" "$compiler" "$work/counts" <<'END'
import json
import sys

record, compiler, counts_file = sys.argv[1:]
most_growth = 0.05
with open(counts_file, encoding="utf-8") as file:
    counts = {path: int(count) for path, count in (line.split() for line in file)}
print(json.dumps({"compiler": compiler, "counts": counts}))

# Whatever the backend says of itself, eight lanes need far fewer instructions than plain code.
if "avx2" in counts and counts["avx2"] > 0.75 * counts["portable"]:
    sys.exit("avx2 took nearly as many instructions as portable: it is not the path that ran")

name = "bench/instructions.json"
if record == "true":
    with open(name, "w", encoding="utf-8") as file:
        json.dump({"compiler": compiler, "counts": counts}, file, indent=4)
        file.write("\n")
    print(f"recorded in {name}")
    sys.exit()
with open(name, encoding="utf-8") as file:
    recorded = json.load(file)
if recorded["compiler"] != compiler:
    print(f"not compared: {name} has the counts of {recorded['compiler']}")
    sys.exit()
grown = False
for path, count in counts.items():
    before = recorded["counts"][path]
    change = count / before - 1
    print(f"{path}: {count:,} instructions, {100 * change:+.1f}% of {before:,}")
    if change > most_growth:
        grown = True
        print(f"{path} grew by more than {100 * most_growth:.0f}%", file=sys.stderr)
    elif change < -most_growth:
        print(f"{path} shrank: bench/instructions.sh --record renews the file")
sys.exit(1 if grown else 0)
END
