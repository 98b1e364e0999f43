#!/bin/bash
# arm.sh ROOT: the kernels of the CPU backend are right on 64-bit ARM too, built by a cross compiler and run by an emulator
# of the processor (Debian: g++-aarch64-linux-gnu and qemu-user). Exit status 77 means that these are not installed.
root=$1
for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: $tool is not installed"
        exit 77
    fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
set -e
for test in lanes tiles streaming combine item isa; do
    # doctest is a header for any processor; the compiler's own headers come first.
    aarch64-linux-gnu-g++ -std=c++20 -O1 -Wall -Wextra -Wpedantic -Werror -I"$root/include" -I"$root/test" \
        -idirafter /usr/include -DDOCTEST_CONFIG_IMPLEMENT_WITH_MAIN -static -pthread \
        "$root/test/backend/${test}_test.cpp" -o "$work/$test"
    qemu-aarch64 "$work/$test"
done
