#!/usr/bin/env python3
"""Rules of the headers that no compiler checks. Usage: header_rules.py include/ctxpar

    layers      core <- layout <- attention <- comm, backend <- merge <- decode, prefill, migrate <- plan <- umbrellas:
                a header includes its own layer and lower ones; comm and backend do not know each other
    extensions  a .hpp includes no .cuh
    libraries   CUDA, NCCL and MPI headers only where the component that needs them lives, and no other .hpp includes
                such a header of ours
    throwing    the keyword throw stands in core/error.hpp only
    namespace   every namespace ctxpar is opened as ctxpar::inline v<major>_<minor>, the version of version.hpp

Prints every violation as file:line: sentence; exit status 1 if there is one.
"""

import pathlib
import re
import sys

LEVELS = {"core": 0, "layout": 1, "attention": 2, "comm": 3, "backend": 3, "merge": 4, "composers": 5, "plan": 6,
          "umbrellas": 7}
# A header at the top, or a folder of that name, that is no layer of its own.
PARTS = {"version": "core", "decode": "composers", "prefill": "composers", "migrate": "composers",
         "ctxpar": "umbrellas", "cuda": "umbrellas"}

LIBRARIES = {
    "CUDA": re.compile(r"(cuda|cub/|thrust/|cooperative_groups|nv/|nvtx|mma\.h)"),
    "NCCL": re.compile(r"nccl"),
    "MPI": re.compile(r"mpi"),
}
LIBRARIES_OF = {"comm/nccl.hpp": {"NCCL", "CUDA"}, "comm/mpi.hpp": {"MPI"}, "comm/mpi_link.hpp": {"MPI"},
                "comm/mpi_mail.hpp": {"MPI"}, "comm/local_cuda.hpp": {"CUDA"}, "backend/cuda.hpp": {"CUDA"}}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
NAMESPACE = re.compile(r"\bnamespace\s+ctxpar\b([^{;=]*)\{")
NOT_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|R"\((.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)


def layer_of(name):
    """The layer of a header, from its path below include/ctxpar; None where it has none."""
    folder, slash, _ = name.partition("/")
    if slash and folder in LEVELS:
        return folder
    return PARTS.get(folder if slash else name.partition(".")[0])


def code_of(text):
    """The text without comments, strings and character constants, with its lines kept."""
    digit_separators = re.compile(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])")
    return NOT_CODE.sub(lambda match: "\n" * match.group(0).count("\n"), digit_separators.sub("", text))


def version_namespace(root):
    text = (root / "version.hpp").read_text()
    number = {part: re.search(rf"#define CTXPAR_VERSION_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR")}
    return f"v{number['MAJOR']}_{number['MINOR']}"


def own_include_faults(name, included, names):
    """What is wrong with `name` including our header `included`; both are paths below include/ctxpar."""
    if included not in names:
        return [f"includes ctxpar/{included}, which does not exist"]
    faults = []
    if name.endswith(".hpp") and included.endswith(".cuh"):
        faults.append(f"a .hpp includes ctxpar/{included}, which needs a CUDA compiler")
    if name.endswith(".hpp") and included in LIBRARIES_OF and name not in LIBRARIES_OF:
        faults.append(f"includes ctxpar/{included}, which needs a library that not every program has")
    layer, other = layer_of(name), layer_of(included)
    if layer and other and layer != other and LEVELS[other] >= LEVELS[layer]:
        faults.append(f"{layer} includes ctxpar/{included}, but {other} is not below {layer}")
    return faults


def library_include_faults(name, included):
    """What is wrong with `name` including `included`, which is not ours."""
    allowed = LIBRARIES_OF.get(name, set()) if name.endswith(".hpp") else {"CUDA"}
    return [f"includes <{included}> of {library}, which only its own component may" for library, pattern in
            LIBRARIES.items() if pattern.match(included) and library not in allowed]


def include_faults(name, text, names):
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, included = match.groups()
        if included.startswith("ctxpar/"):
            faults = own_include_faults(name, included.removeprefix("ctxpar/"), names)
        elif quote == '"':
            faults = [f'includes "{included}"; our own headers are included as <ctxpar/...>']
        else:
            faults = library_include_faults(name, included)
        yield from ((number, fault) for fault in faults)


def code_faults(name, text, namespace):
    code = code_of(text)
    line_of = lambda match: code.count("\n", 0, match.start()) + 1
    if name != "core/error.hpp":
        yield from ((line_of(match), "the keyword throw; errors are raised by raise() and require()")
                    for match in re.finditer(r"\bthrow\b", code))
    for match in NAMESPACE.finditer(code):
        opened = "".join(match.group(1).split())
        if not re.fullmatch(rf"::inline{namespace}(::\w+)*", opened):
            yield line_of(match), f"namespace ctxpar must be opened as `ctxpar::inline {namespace}`"


def faults_of(root):
    """Every violation below root, as sentences."""
    files = sorted(path for path in root.rglob("*") if path.suffix in (".hpp", ".cuh"))
    names = {path.relative_to(root).as_posix() for path in files}
    namespace = version_namespace(root)
    faults = []
    for name in sorted(names):
        text = (root / name).read_text()
        found = [*include_faults(name, text, names), *code_faults(name, text, namespace)]
        if layer_of(name) is None:
            found.insert(0, (1, f"belongs to no layer; the layers are {', '.join(LEVELS)}"))
        faults += [f"ctxpar/{name}:{line}: {fault}" for line, fault in found]
    return faults, len(names)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    faults, count = faults_of(pathlib.Path(sys.argv[1]))
    for fault in faults:
        print(fault)
    if count == 0:
        sys.exit(f"no headers in {sys.argv[1]}")
    print(f"{count} headers, {len(faults)} violations")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
