#!/bin/bash
# Sets the machine up, builds the examples, and decodes over a KV cache of 1,048,576 tokens on 8 ranks: GQA and MLA,
# each with all three merges, compared with a double-precision reference. Then, smaller, it serves a batch of prefills
# and decodes, prefills the end of a prompt, and serves a trace of requests with a number of ranks for each. Where there is a GPU, with nvcc and NCCL, decode_1m and prefill_zigzag
# run there, all ranks on the GPUs that there are. Needs Debian 12, Ubuntu 24.04 or newer.
#
#   examples/run.sh                  takes fewer tokens where memory does not suffice
#   examples/run.sh --tokens 65536   options go to decode_1m; decode_1m --help lists them
#   examples/run.sh --mpi            decodes on 8 MPI processes instead, and tells what memory each took; options may follow
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=.cmake/setup.sh
source .cmake/setup.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/json"
times=""
backend=()
start=() # before the program
packages=(g++ cmake ninja-build libcli11-dev nlohmann-json3-dev libfmt-dev libeigen3-dev)
status=0

with_mpi=false
if [ "${1:-}" = --mpi ]; then
    with_mpi=true
    packages+=(libopenmpi-dev openmpi-bin)
    shift
fi

# timed NAME COMMAND...: runs a command and notes the seconds it took.
timed() {
    local name=$1 began=$SECONDS
    shift
    "$@"
    times+=", $name $((SECONDS - began)) s"
}

build() {
    echo "Building the examples"
    if ! { cmake --preset demo && cmake --build --preset demo --parallel "$(build_jobs)"; } >"$work/log" 2>&1; then
        cat "$work/log" >&2
        exit 1
    fi
}

# Whether decode_1m can work on a GPU: its exit status is 2 where it was built without CUDA or finds no GPU.
find_gpu() {
    local answer found=0
    answer=$(build/demo/examples/decode_1m/decode_1m --backend cuda --tokens 1024 --ranks 1 2>&1) || found=$?
    if [ "$found" -eq 2 ]; then
        echo "On the CPU: ${answer##*: }"
    else
        backend=(--backend cuda)
        echo "On the GPU"
    fi
}

# A command that starts a program as so many MPI processes, more than cores if need be, also for root.
mpirun_of() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
    export OMPI_MCA_btl_vader_single_copy_mechanism=none # which containers forbid
    start=(mpirun.openmpi --oversubscribe --bind-to none -n "$1")
}

# decode ARGUMENT...: one run of decode_1m. Its JSON lines are kept for the summary, all others shown.
decode() {
    echo
    "${start[@]}" build/demo/examples/decode_1m/decode_1m "${backend[@]}" --merge a2a,ag_rs,ag_ar --fit --json "$@" |
        awk -v json="$work/json" '/^\{/ { print >> json; next } { print; fflush() }' || status=${PIPESTATUS[0]}
}

# These compare with a reference too, and take seconds; each has a README with its long form.
prefill() {
    echo
    build/demo/examples/mixed_batch/mixed_batch || status=$?
    echo
    build/demo/examples/prefill_zigzag/prefill_zigzag "${backend[@]}" --tokens 8192 --chunk 1024 || status=$?
}
serve() {
    echo
    build/demo/examples/serve/serve --requests 16 --shortest 64 --longest 4096 --outputs 32 --simulated-requests 200 || status=$?
}

# One line for each JSON line of decode_1m.
summary() {
    awk '
        function field(name,    rest) {
            if (!match($0, "\"" name "\":")) return ""
            rest = substr($0, RSTART + RLENGTH)
            sub(/[,}].*/, "", rest)
            gsub(/"/, "", rest)
            return rest
        }
        {
            printf "  %-4s %-6s %8d tokens over %d ranks  %7.0f ms a step  %5.1f GB/s  %6.1f GFLOP/s  error %.1e  %s\n",
                field("attention"), field("merge"), field("tokens"), field("ranks"), field("ms_per_step"),
                field("read_gb_per_s"), field("gflop_per_s"), field("relative_l2_error"),
                field("pass") == "true" ? "pass" : "FAIL"
        }' "$work/json"
}

timed "set up" ensure_packages "${packages[@]}"
timed build build
if $with_mpi; then
    mpirun_of 8
    backend=(--comm mpi)
else
    find_gpu
fi
case " $* " in
*" --attention"*) timed decode decode "$@" ;;
*)
    timed GQA decode --attention gqa "$@"
    timed MLA decode --attention mla "$@"
    ;;
esac
$with_mpi || timed prefill prefill
$with_mpi || timed serve serve

echo
echo "Summary: $SECONDS s in all${times/,/:}"
summary
exit "$status"
