#!/bin/bash
# Sets the machine up, builds the tests and runs them. Needs Debian 12, Ubuntu 24.04 or newer.
#
#   test/run.sh           the tests, a random tenth of the long ones, and the tests under the sanitizers
#   test/run.sh --quick   without the sanitizers
#   test/run.sh --long    all of the long tests
#
# CTXPAR_SEED=number chooses the same tenth again.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=.cmake/setup.sh
source .cmake/setup.sh

sanitizers=(asan tsan)
long_share=10
for argument in "$@"; do
    case $argument in
    --quick) sanitizers=() ;;
    --long) long_share=1 ;;
    *)
        echo "usage: test/run.sh [--quick] [--long]" >&2
        exit 2
        ;;
    esac
done

ensure_packages g++ cmake ninja-build python3 doctest-dev libcli11-dev nlohmann-json3-dev libfmt-dev libeigen3-dev libbenchmark-dev \
    clang clang-format libopenmpi-dev openmpi-bin libmpich-dev mpich iproute2
export CTXPAR_SEED=${CTXPAR_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}

# The thread sanitizer of some compilers does not start where the kernel spreads addresses widely.
fixed_addresses=(setarch "$(uname -m)" -R)
"${fixed_addresses[@]}" true 2>/dev/null || fixed_addresses=()

# Where there is a ccache, what one clone compiled serves another.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

# build PRESET [SETTING...]
build() {
    echo "--- build $1, after $SECONDS s"
    cmake --preset "$@"
    "${fixed_addresses[@]}" cmake --build --preset "$1" --parallel "$(build_jobs)"
}

# The numbers of one in long_share of the long tests, at least one, chosen by the seed, as `ctest -I` wants them.
choose_long_tests() {
    ctest --test-dir build/test -N -L '^long$' | python3 -c '
import random, re, sys
numbers = re.findall(r"Test +#(\d+):", sys.stdin.read())
chosen = random.Random(int(sys.argv[1])).sample(numbers, -(-len(numbers) // int(sys.argv[2])))
print(",".join(["0,0,0", *sorted(chosen, key=int)]) if chosen else "")' "$CTXPAR_SEED" "$long_share"
}

# What the address sanitizer runs on the emulated device need not run without it too.
device_suites=ON
[ ${#sanitizers[@]} -eq 0 ] || device_suites=OFF
build test -DCTXPAR_TEST_DEVICE_SUITES=$device_suites

for preset in "${sanitizers[@]}"; do
    build "$preset"
    echo "--- $preset, after $SECONDS s"
    "${fixed_addresses[@]}" ctest --preset "$preset" --parallel "$(nproc)"
done

echo "--- long tests, one in $long_share, CTXPAR_SEED=$CTXPAR_SEED, after $SECONDS s"
long_tests=$(choose_long_tests)
if [ -n "$long_tests" ]; then
    ctest --test-dir build/test -I "$long_tests" --output-on-failure --parallel "$(nproc)"
else
    echo "there are none"
fi

echo "--- tests, after $SECONDS s"
ctest --preset test --parallel "$(nproc)"
