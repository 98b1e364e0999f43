#!/bin/bash
# Sets the machine up, builds the benchmarks of the CPU backend and runs them, several times, each time in a process of
# its own that measures what the machine can do at best. A run in which others used the machine is thrown away and
# repeated. Writes build/bench/results.json, and as a table build/bench/results.md: medians, and how far runs were apart.
# Needs Debian 12, Ubuntu 24.04 or newer.
#
#   bench/run.sh                    5 accepted runs of everything
#   bench/run.sh --runs N           another number of them
#   bench/run.sh --quick            one run of a short selection, a minute or two
#   bench/run.sh --filter REGEX     benchmarks whose names match
#   bench/run.sh --any-machine      keeps runs that are not accepted too, and says so
#
# Exit status: 0, 1 where a result was wrong, 2 for wrong usage, 3 where too few runs were accepted.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=.cmake/setup.sh
source .cmake/setup.sh

runs=5
filter=.
any_machine=()
quick=()
usage() {
    echo "usage: bench/run.sh [--runs N] [--quick] [--filter REGEX] [--any-machine]" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --runs)
        [ $# -ge 2 ] || usage
        runs=$2
        case $runs in '' | *[!0-9]* | 0) usage ;; esac
        shift
        ;;
    --quick)
        runs=1
        quick=(--benchmark_min_time=0.1)
        usual=batch:1/block:16/layout:nhd/interleave:16/ranks:1
        filter="decode/gqa/q_heads:64/kv_heads:8/tokens:262144/batch:1/block:(16|64)/.*/ranks:1/"
        filter+="|decode/mla/.*/tokens:65536/batch:1/block:16/.*/ranks:1/|merge/.*/parts:8/"
        filter+="|step/gqa/.*/tokens:65536/$usual|prefill/.*/context:8192/.*/path:local"
        filter+="|collective/.*/all_to_all/ranks:4"
        ;;
    --filter)
        [ $# -ge 2 ] || usage
        filter=$2
        shift
        ;;
    --any-machine) any_machine=(--any_machine) ;;
    *) usage ;;
    esac
    shift
done

ensure_packages g++ cmake ninja-build python3 libbenchmark-dev

out=build/bench
targets=(cpu_bench)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "Building the benchmarks"
if ! cmake --preset bench >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
if grep -q mpi_bench $out/build.ninja; then targets+=(mpi_bench); fi
if ! cmake --build --preset bench --parallel "$(build_jobs)" --target "${targets[@]}" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi

# Collectives of MPI processes, more of them than cores if need be, also for root.
run_mpi() { # RUN
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    export OMPI_MCA_btl_vader_single_copy_mechanism=none # which containers forbid
    local ranks
    for ranks in 2 4; do
        mpirun -n "$ranks" $out/bench/cpu/mpi_bench --benchmark_filter="$filter" \
            --benchmark_out="$out/run_$1_mpi_$ranks.json" || exit 1
    done
}

rm -f $out/run_*.json
kept=0
discarded=0
most=$((4 * runs))
while [ $kept -lt "$runs" ] && [ $((kept + discarded)) -lt $most ]; do
    echo
    echo "Run $((kept + 1)) of $runs, after $SECONDS s"
    status=0
    $out/bench/cpu/cpu_bench "${any_machine[@]}" "${quick[@]}" --benchmark_filter="$filter" \
        --benchmark_out="$out/run_$kept.json" || status=$?
    case $status in
    0) ;;
    3)
        if [ ${#any_machine[@]} -eq 0 ]; then
            discarded=$((discarded + 1))
            rm -f "$out/run_$kept.json"
            echo "This run is thrown away"
            sleep 5
            continue
        fi
        ;;
    *)
        echo "The benchmarks failed" >&2
        exit 1
        ;;
    esac
    if [ ${#targets[@]} -gt 1 ]; then run_mpi $kept; fi
    kept=$((kept + 1))
done

echo
if [ $kept -gt 0 ]; then
    python3 bench/table.py --wanted "$runs" --discarded $discarded --out $out $out/run_*.json
    cat $out/results.md
fi
echo "$kept of $runs runs, $discarded thrown away, $SECONDS s in all"
[ $kept -eq "$runs" ] || {
    echo "Too few runs were accepted: others use this machine" >&2
    exit 3
}
