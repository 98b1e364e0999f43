#!/bin/bash
# Does the cost model choose well on this machine? Builds plan_grid and runs it over two ranks that are threads and, where
# there is MPI, over two processes: about 40 seconds each, on two cores that nobody else uses.
#
#   bench/plan/run.sh             exit status 1 where choices are not good enough, a result is wrong, or others wanted
#                                 the cores, which is said
#   bench/plan/run.sh --record    renews bench/plan/grid.txt
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=.cmake/setup.sh
source .cmake/setup.sh

record=false
case "${*:-}" in
'') ;;
--record) record=true ;;
*)
    echo "usage: bench/plan/run.sh [--record]" >&2
    exit 2
    ;;
esac
ensure_packages g++ cmake ninja-build libcli11-dev libfmt-dev nlohmann-json3-dev libeigen3-dev

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! { cmake --preset demo -B build/plan -DCTXPAR_BUILD_BENCH=ON -DCTXPAR_BUILD_CUDA=OFF &&
    cmake --build build/plan --target plan_grid; } >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
grid=build/plan/bench/plan/plan_grid
status=0
{
    echo "bench/plan/run.sh on $(sed -n '/^model name/{s/.*: //p;q}' /proc/cpuinfo), $(nproc) CPUs"
    echo
    $grid || status=1
    if command -v mpirun >/dev/null; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
        export OMPI_MCA_btl=vader,self OMPI_MCA_btl_vader_single_copy_mechanism=none # which containers forbid
        echo
        mpirun --oversubscribe --bind-to none -n 2 $grid --transport mpi || status=1
    fi
    echo $status >"$work/status"
} | tee "$work/grid.txt"
status=$(cat "$work/status")
if $record && [ "$status" -eq 0 ]; then cp "$work/grid.txt" bench/plan/grid.txt; fi
exit "$status"
