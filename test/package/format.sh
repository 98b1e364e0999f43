#!/bin/bash
# format.sh ROOT [CLANG_FORMAT]: every source is laid out as .clang-format says. Other versions of clang-format read the
# same settings differently, so only version 14 judges; exit status 77 means that the check was skipped.
root=$1
tool=$2
if ! [ -x "$tool" ]; then
    echo "skipped: clang-format is not installed"
    exit 77
fi
if ! "$tool" --version | grep -q 'version 14[.]'; then
    echo "skipped: the layout is that of clang-format 14, this is $("$tool" --version)"
    exit 77
fi
cd "$root" || exit 1

# Compares the text, because --dry-run also warns of replacements by the same text.
count=0
failed=0
while read -r file; do
    count=$((count + 1))
    "$tool" "$file" | diff -u --label "$file" --label "$file as clang-format lays it out" "$file" - || failed=1
done < <(find include test examples bench \( -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort)
echo "$count files"
[ "$count" -gt 0 ] && exit $failed
