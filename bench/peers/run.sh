#!/bin/bash
# Sets up and builds the programs of the comparison, and runs it: this library against PyTorch, OpenVINO, ggml and ONNX
# Runtime. Takes about half an hour, and two idle cores; results are in build/peers/peers.md and peers.json.
#
#   bench/peers/run.sh                          options go to peers.py; peers.py --help lists them
#   bench/peers/run.sh --shapes 1x32768 --rounds 1
set -euo pipefail
cd "$(dirname "$0")/../.."
root=build/peers
bench/peers/setup.sh
# shellcheck source=.cmake/setup.sh
source .cmake/setup.sh

build() { # CMAKE-ARGUMENT...: configures and builds
    cmake -S bench/peers -B "$root/programs" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_DISABLE_FIND_PACKAGE_ctxpar=ON "$@" >"$root/log" 2>&1 &&
        cmake --build "$root/programs" --parallel "$(build_jobs)" >>"$root/log" 2>&1
}

echo "Building the programs"
if ! [ -f "$root/ggml/CMakeLists.txt" ] || ! build -DPEERS_GGML="$PWD/$root/ggml"; then
    if [ -f "$root/ggml/CMakeLists.txt" ]; then
        { grep -iE 'error' "$root/log" || echo "it does not build"; } | head -n 1 >"$root/missing/ggml"
        echo "ggml: not had: $(cat "$root/missing/ggml")"
    fi
    build -DPEERS_GGML= || {
        tail -n 40 "$root/log" >&2
        exit 1
    }
fi
exec "$root/venv/bin/python" -B bench/peers/peers.py "$@"
