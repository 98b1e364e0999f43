#!/bin/bash
# Builds the benchmark of the CUDA backend, compares every operation with a double-precision reference, once under
# compute-sanitizer, and times decode, prefill and merges against what the device can do. Needs nvcc and g++; takes some
# minutes. Where there is no GPU it builds and says so.
#
#   bench/device/run.sh [--seconds N]    N: of the timed part at most, 240
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/bench_device
seconds=240
if [ $# -eq 2 ] && [ "$1" = --seconds ]; then
    seconds=$2
elif [ $# -ne 0 ]; then
    echo "usage: bench/device/run.sh [--seconds N]" >&2
    exit 2
fi

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if ! [ -x "$nvcc" ]; then
    echo "There is no nvcc here, so that nothing can be built." >&2
    exit 77
fi
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")

# The architecture of the GPU that is here: hopper's own instructions are in 90a.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '.' || true)
case $capability in
'' | *[!0-9]*) architecture=90a ;;
90) architecture=90a ;;
*) architecture=$capability ;;
esac

mkdir -p "$out"
echo "Building for sm_$architecture"
built=$SECONDS
# shellcheck source=.cmake/setup.sh
source .cmake/setup.sh
compile() { # SOURCE
    "$nvcc" -std=c++20 -O2 -lineinfo -gencode "arch=compute_$architecture,code=sm_$architecture" -I include -c \
        -o "$out/$(basename "$1" .cu).o" "$1"
}
export -f compile
export nvcc architecture out
rm -f "$out"/*.o
printf '%s\0' bench/device/*.cu | xargs -0 -n 1 -P "$(build_jobs)" bash -c 'compile "$0"' || {
    echo "The benchmark does not compile." >&2
    exit 1
}
"$nvcc" -std=c++20 -O2 -I include -o "$out/device_bench" bench/device/main.cpp "$out"/*.o
echo "Built in $((SECONDS - built)) s"

# Small cases under the sanitizer: whatever it finds fails.
"$out/device_bench" --small || exit $?
sanitizer=$(command -v compute-sanitizer || echo "$toolkit/bin/compute-sanitizer")
for tool in memcheck racecheck; do
    if ! [ -x "$sanitizer" ]; then
        echo "There is no compute-sanitizer here: $tool is left out"
        continue
    fi
    echo "compute-sanitizer $tool"
    timeout 120 "$sanitizer" --tool "$tool" --error-exitcode 3 "$out/device_bench" --small | tail -n 3
done

"$out/device_bench" --seconds "$seconds"
echo "In all $SECONDS s"
