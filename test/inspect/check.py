#!/usr/bin/env python3
"""Asks ctxpar-inspect every question of the given files and compares what it says.

    check.py PROGRAM CASES...

CASES has one JSON object a line, with
    name, args    what is asked; stdin, a text, where the command reads one
    exit          the exit status that is due, 0 or 2
    stdout        for exit 0 with --json: the JSON object that is due. Keys beyond these may be there.
    tolerance     relative tolerance for all numbers of stdout; numbers with a fraction have 1e-5 anyway
    error_code    for exit 2: the code of the error
    contains      without --json: texts that standard output (exit 0) or the sentence on standard error must contain

An error leaves standard output empty. Integers, texts, booleans and lengths of lists must be equal.
Ends with "N passed, M failed"; the exit status is 1 where some failed. Needs only the standard library.
"""
import json
import pathlib
import subprocess
import sys

SECONDS = 20
RELATIVE = 1e-5
ABSOLUTE = 1e-6


class Mismatch(Exception):
    pass


def refuse_constant(name):
    raise ValueError(name + " is not JSON")


def parse(text, what):
    """The JSON object that is the only line of `text`."""
    lines = text.strip().split("\n")
    if len(lines) != 1:
        raise Mismatch("%s has %d lines instead of one" % (what, len(lines)))
    try:
        value = json.loads(lines[0], parse_constant=refuse_constant)
    except ValueError as problem:
        raise Mismatch("%s is not JSON: %s: %r" % (what, problem, text[:200]))
    if not isinstance(value, dict):
        raise Mismatch("%s is not an object: %r" % (what, text[:200]))
    return value


def kind(value):
    if isinstance(value, bool):
        return "boolean"
    return {int: "number", float: "number", str: "text", list: "list", dict: "object"}.get(type(value), "null")


def close(due, said, tolerance):
    if tolerance is None and isinstance(due, int):
        return isinstance(said, int) and due == said
    relative = RELATIVE if tolerance is None else tolerance
    return abs(due - said) <= relative * abs(due) + ABSOLUTE


def compare(due, said, tolerance, where):
    """Raises Mismatch at the first place where `said` is not what is due."""
    if kind(due) != kind(said):
        raise Mismatch("%s: %r is due, %r was said" % (where, due, said))
    if kind(due) == "object":
        for key, value in due.items():
            if key not in said:
                raise Mismatch("%s.%s is missing" % (where, key))
            compare(value, said[key], tolerance, where + "." + key)
    elif kind(due) == "list":
        if len(due) != len(said):
            raise Mismatch("%s: %d entries are due, %d were said" % (where, len(due), len(said)))
        for index, value in enumerate(due):
            compare(value, said[index], tolerance, "%s[%d]" % (where, index))
    elif not (close(due, said, tolerance) if kind(due) == "number" else due == said):
        raise Mismatch("%s: %r is due, %r was said" % (where, due, said))


def check_error(case, stderr, as_json):
    if not as_json:
        if len(stderr.strip().split("\n")) != 1 or not stderr.strip():
            raise Mismatch("standard error is not one sentence: %r" % stderr)
        return
    error = parse(stderr, "standard error").get("error")
    compare({"code": case["error_code"]}, error, None, "error")
    if kind(error.get("message")) != "text" or not error["message"].strip():
        raise Mismatch("the error has no message: %r" % error)
    if kind(error.get("legal")) != "list":
        raise Mismatch("the error has no list of legal values: %r" % error)


def ask(program, case):
    done = subprocess.run([program] + case["args"], input=case.get("stdin", "").encode(), capture_output=True,
                          timeout=SECONDS)
    stdout, stderr = done.stdout.decode(), done.stderr.decode()
    as_json = "--json" in case["args"]
    if done.returncode != case["exit"]:
        raise Mismatch("exit status %d is due, it was %d: %s" % (case["exit"], done.returncode, stderr.strip()))
    if case["exit"] != 0:
        if stdout:
            raise Mismatch("an error came with standard output: %r" % stdout[:200])
        check_error(case, stderr, as_json)
    elif as_json:
        compare(case["stdout"], parse(stdout, "standard output"), case.get("tolerance"), "stdout")
    for text in case.get("contains", []):
        if text not in (stdout if case["exit"] == 0 else stderr):
            raise Mismatch("%r is not in %r" % (text, stdout or stderr))


def main(program, *files):
    counts = {True: 0, False: 0}
    for path in files:
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            if not line.strip():
                continue
            case = json.loads(line)
            try:
                ask(program, case)
            except (Mismatch, subprocess.TimeoutExpired) as problem:
                counts[False] += 1
                print("%s\n    %s" % (case["name"], problem))
            else:
                counts[True] += 1
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return 1 if counts[False] or not counts[True] else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
