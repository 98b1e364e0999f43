"""Proves that the README shows what is compiled.

    readme_snippets.py REPOSITORY

A code block of README.md that follows a line `<!-- from PATH -->` must be made of lines of that file: the block's lines,
leading white space apart, stand in the file one after another. At least one such block must be there. Every `ctest`
and script that the README names must exist.
"""

import pathlib
import re
import sys


def blocks(text):
    """(path, lines) of every marked block."""
    for mark in re.finditer(r"<!-- from (\S+) -->\n+```\w*\n(.*?)```", text, re.S):
        yield mark.group(1), [line.strip() for line in mark.group(2).splitlines() if line.strip()]


def stands_in(lines, source):
    have = [line.strip() for line in source.splitlines() if line.strip()]
    return any(have[at : at + len(lines)] == lines for at in range(len(have) - len(lines) + 1))


def main():
    repository = pathlib.Path(sys.argv[1])
    text = (repository / "README.md").read_text(encoding="utf-8")
    problems = []
    found = list(blocks(text))
    if not found:
        problems.append("README.md shows no marked code block")
    for path, lines in found:
        source = repository / path
        if not source.is_file():
            problems.append(f"README.md shows {path}, which does not exist")
        elif not lines or not stands_in(lines, source.read_text(encoding="utf-8")):
            problems.append(f"the code block of README.md marked {path} is not the text of that file")
    for script in set(re.findall(r"\./((?:examples|test)/[\w./-]+\.sh)", text)):
        if not (repository / script).is_file():
            problems.append(f"README.md names ./{script}, which does not exist")
    for problem in problems:
        print(problem)
    print(f"{len(found)} code blocks of README.md compared")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
