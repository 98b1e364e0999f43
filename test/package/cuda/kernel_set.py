#!/usr/bin/env python3
"""Which kernels a decoder brings into a program. Usage: kernel_set.py NVCC OPTION... kernel_set.cu

Compiles the file once for a single decoder and again with more of them. Other merges, communicators and interleaves
must add no kernel. Other head sizes and element types may; what they add is printed.
"""

import re
import subprocess
import sys

import kernel_report


def kernels(command, more):
    """The symbols of all kernels in the PTX."""
    run = subprocess.run([*command, "-std=c++20", "-ptx", "-o", "-", f"-DMORE={more}"], stdout=subprocess.PIPE,
                         text=True)
    if run.returncode != 0:
        sys.exit(f"this failed: {' '.join(command)} -DMORE={more}")
    found = re.findall(r"\.entry +(\w+)", run.stdout)
    if not found:
        sys.exit("there are no kernels in the PTX")
    return set(found)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    first = kernels(sys.argv[1:], 0)
    names = kernel_report.short_names(first)
    print(f"one decoder: {len(first)} kernels", *sorted(names.values()), sep="\n    ")
    grows = False
    for more, what, may_add in ((1, "other merges, communicators and interleaves", False),
                                (2, "other head sizes", True), (3, "other types of partials and outputs", True)):
        added = kernels(sys.argv[1:], more) - first
        print(f"{what} add {len(added)} kernels", *sorted(kernel_report.short_names(added).values()), sep="\n    ")
        grows = grows or (bool(added) and not may_add)
    sys.exit("a kernel depends on more than element types, sizes and tiles" if grows else 0)


if __name__ == "__main__":
    main()
