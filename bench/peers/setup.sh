#!/bin/bash
# Gets what bench/peers/peers.py compares this library with, into build/peers and nowhere else: a Python environment
# with PyTorch, OpenVINO and ONNX Runtime, and the sources of ggml. Quick when repeated. Each that cannot be had is left
# out, and the reason is printed and kept in build/peers/missing.
#
#   bench/peers/setup.sh            PyTorch's package needs CUDA's libraries (2.5 GB) even for the CPU; they are fetched
#   bench/peers/setup.sh --small    without them: PyTorch only where they are there already
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=.cmake/setup.sh
source .cmake/setup.sh
root=build/peers
python=$root/venv/bin/python
small=false
[ "${1:-}" = --small ] && small=true
mkdir -p "$root/missing"

install() { # PIP-ARGUMENT...: installs into the environment
    "$python" -m pip install --disable-pip-version-check --quiet "$@" >"$root/log" 2>&1
}
reason() { # the last line of the log that says something
    grep -v '^[[:space:]]*$' "$root/log" | grep -iE 'error|cannot|not found' | tail -n 1 | cut -c 1-300
}
works() { # CODE: runs in the environment
    "$python" -c "$1" >"$root/log" 2>&1
}
had() { # NAME COMMAND...: notes whether the command succeeds
    local name=$1 why
    shift
    if "$@"; then
        rm -f "$root/missing/$name"
        echo "$name: there"
    else
        why=$(reason || true)
        echo "${why:-it cannot be installed}" >"$root/missing/$name"
        echo "$name: not had: $(cat "$root/missing/$name")"
    fi
}

get_torch() {
    local code='import torch; torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 8)] * 3)'
    works "$code" && return
    install --no-deps torch && install typing-extensions filelock sympy networkx jinja2 fsspec setuptools || return
    works "$code" && return
    if $small; then return 1; fi
    install torch && works "$code"
}
get_openvino() {
    local code='from openvino.op import _PagedAttentionExtension'
    works "$code" || { install openvino && works "$code"; }
}
get_onnxruntime() {
    local code='import onnx, onnxruntime'
    works "$code" || { install onnx onnxruntime && works "$code"; }
}
# ggml comes inside the source package of llama-cpp-python.
get_ggml() {
    [ -f "$root/ggml/CMakeLists.txt" ] && return
    local package
    package=$(mktemp -d)
    "$python" -m pip download --disable-pip-version-check --quiet --no-deps --no-binary llama-cpp-python \
        --dest "$package" llama-cpp-python >"$root/log" 2>&1 || return
    rm -rf "$root/ggml.part"
    mkdir "$root/ggml.part"
    tar -xf "$package"/*.tar.gz -C "$root/ggml.part" --strip-components=4 --wildcards '*/vendor/llama.cpp/ggml/*' \
        >"$root/log" 2>&1 || return
    rm -rf "$package"
    mv "$root/ggml.part" "$root/ggml"
}

packages=(g++ cmake ninja-build python3)
python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
ensure_packages "${packages[@]}"
[ -x "$python" ] || python3 -m venv "$root/venv"
if ! works 'import numpy'; then
    install numpy || {
        cat "$root/log" >&2
        echo "numpy cannot be installed, and the comparison needs it." >&2
        exit 1
    }
fi
had torch get_torch
had openvino get_openvino
had onnxruntime get_onnxruntime
had ggml get_ggml
