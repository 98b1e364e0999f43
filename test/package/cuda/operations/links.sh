#!/bin/bash
# links.sh OUT_DIR INCLUDE_DIR CUDA_INCLUDE_DIR NVCC COMPILER: builds operations.cu, and with the C++ compiler the program
# whose decoders call what it holds. Unoptimised: whether it links is asked, not how fast it is.
set -e
out=$1 include=$2 cuda_include=$3 nvcc=$4 compiler=$5
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
"$nvcc" -std=c++20 -Werror all-warnings -arch=sm_90a -Xcicc -O0 -Xptxas -O0 -I "$include" -c -o "$out/operations.o" \
    "$here/operations.cu"
"$compiler" -std=c++20 -Wall -Wextra -Werror -I "$include" -isystem "$cuda_include" -c -o "$out/decoders.o" \
    "$here/decoders.cpp"
"$nvcc" -o "$out/decoders" "$out/decoders.o" "$out/operations.o"
"$out/decoders"
