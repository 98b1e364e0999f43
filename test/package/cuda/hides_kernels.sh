#!/bin/bash
# hides_kernels.sh NM LIBRARY FUNCTION: the shared library exports the function and none of the kernels it has.
exported=$("$1" -D --defined-only "$2") || exit 1
inside=$("$1" "$2" | grep -c '_kernel[^_a-z]') # all symbols, unless the library was stripped
kernels=$(grep '_kernel[^_a-z]' <<<"$exported")
printf '%s symbols are exported, %s names of kernels are inside\n' "$(wc -l <<<"$exported")" "$inside"
[ -z "$kernels" ] || printf 'exported: %s\n' "$kernels"
grep -q " T $3$" <<<"$exported" && [ -z "$kernels" ] && [ "$inside" -gt 0 ]
