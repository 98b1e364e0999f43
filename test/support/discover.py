#!/usr/bin/env python3
"""Makes each test case of a doctest executable a ctest entry. 

usage: discover.py EXECUTABLE PREFIX FILE [--no-long] [NAME=VALUE ...]      the latter: environment of the tests

Writes FILE, which ctest reads. An entry is called after its source file and its case, since two files may have cases
of one name. A case with [long] in its name or in the name of its suite gets the label `long`, or
is left out. The discovery that comes
with doctest loses the cases that stand in its list behind a half-open interval such as [a, b).
"""

import pathlib
import subprocess
import sys
import xml.etree.ElementTree

TIMEOUT_SECONDS = 300


def quoted(text):
    """A CMake argument that is taken literally."""
    return f"[===[{text}]===]"


def entry(executable, prefix, environment, case):
    name, suite, source = case.get("name"), case.get("testsuite") or "", pathlib.Path(case.get("filename"))
    chosen = name.replace("\\", "\\\\").replace(",", "\\,")
    test = quoted(f"{prefix}{source.stem.removesuffix('_test')}/{name}")
    # A name that doctest does not find again runs nothing, which must not count as a pass.
    properties = f"TIMEOUT {TIMEOUT_SECONDS} FAIL_REGULAR_EXPRESSION \"test cases: +0 [|]\""
    if "[long]" in name or "[long]" in suite:
        properties += " LABELS long"
    if environment:
        properties += f" ENVIRONMENT {quoted(';'.join(environment))}"
    arguments = [executable, f"--source-file=*/{source.name}", f"--test-case={chosen}"]
    return (f"add_test({test} {' '.join(map(quoted, arguments))})\n"
            f"set_tests_properties({test} PROPERTIES {properties})\n")


def main():
    executable, prefix, file, *options = sys.argv[1:]
    environment = [option for option in options if not option.startswith("--")]
    listing = subprocess.run([executable, "--list-test-cases", "--reporters=xml"], check=True, capture_output=True)
    cases = xml.etree.ElementTree.fromstring(listing.stdout).findall("TestCase")
    if "--no-long" in options:
        cases = [case for case in cases if "[long]" not in case.get("name") + (case.get("testsuite") or "")]
    if not cases:
        sys.exit(f"{executable} has no test cases")
    names = [(case.get("filename"), case.get("name")) for case in cases]
    for name in {name for name in names if names.count(name) > 1}:
        sys.exit(f"two test cases of {name[0]} are called: {name[1]}")
    pathlib.Path(file).write_text("".join(entry(executable, prefix, environment, case) for case in cases))


if __name__ == "__main__":
    main()
