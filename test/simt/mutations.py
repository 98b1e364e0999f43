#!/usr/bin/env python3
"""Plants faults in the device code, one at a time, and sees that the tests of the emulated device find each.

usage: mutations.py [name ...]      all, or those whose names contain one of the words

A fault is a text of a file under include/ctxpar that is replaced; the tests named beside it are compiled against the
changed headers and must fail, having passed against the headers as they are. Some faults change no result on the
emulated device and are races all the same: those tests run under the thread sanitizer. Exits with 1 where a fault was
not found.
"""
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TILES = "backend/cuda/attend_tiles.cuh"
ITEMS = "backend/cuda/attend_items.cuh"
COMBINE = "backend/cuda/combine.cuh"
ATTEND_TEST = "attend_tiles_test.cpp"
RACES = " under the thread sanitizer"

# name, file, text, text in its place, test file
FAULTS = [
    ("barrier before a tile is read", TILES, "sync_block(); // the tile is here, and the one before is done", "",
     ATTEND_TEST),
    ("barrier after 8-bit keys are widened", TILES, "widen(tile);\n            sync_block();", "widen(tile);",
     ATTEND_TEST),
    ("barrier before probabilities of other warps are read", TILES,
     "if constexpr (shape.columns > 1) {\n            sync_block();\n        } else {",
     "if constexpr (shape.columns > 1) {\n        } else {", ATTEND_TEST),
    ("meeting of a warp before its probabilities are read", TILES,
     "} else {\n            sync_warp();\n        }", "} else {\n        }", ATTEND_TEST + RACES),
    ("wait for copies", TILES, "        wait_for_tile();\n", "", ATTEND_TEST),
    ("wait for one tile less", TILES, "wait_copies<1>();", "wait_copies<2>();", ATTEND_TEST),
    ("matrices of keys swapped", TILES, "high, k.at[2], k.at[3]", "high, k.at[3], k.at[2]", ATTEND_TEST),
    ("column of a matrix of values", TILES, "lane_ * layout::value_pitch + column()",
     "(lane_ ^ 1) * layout::value_pitch + column()", ATTEND_TEST),
    ("a key past the last one", ITEMS, "key < some_hi)", "key <= some_hi)", ATTEND_TEST),
    ("a tile taken for full", ITEMS, "if (past > first_row.hi || past > first_row.tail) return false;",
     "if (past > first_row.hi + 1) return false;", ATTEND_TEST),
    ("prefix forgotten", ITEMS, "range.prefix_tiles = tiles_between(range.prefix_first,",
     "range.prefix_tiles = 0 * tiles_between(range.prefix_first,", ATTEND_TEST),
    ("base of the LSE", TILES, "logf(state.sum[half])", "log2_e * logf(state.sum[half])", ATTEND_TEST),
    ("a sum over half the lanes", TILES, "sum += from_lane_xor(sum, 2);", "", ATTEND_TEST),
    ("the smallest part of probabilities dropped", TILES, "for (int term = shape.p_terms - 1; term >= 0; --term)",
     "for (int term = shape.p_terms - 2; term >= 0; --term)", ATTEND_TEST),
    ("sums not rescaled", TILES, "state.out[n].at[e] * factor[e / 2]", "state.out[n].at[e]", ATTEND_TEST),
    ("places of keys overwritten too early", TILES, "tile % (stages_ + 1) * shape.keys", "tile % stages_ * shape.keys",
     ATTEND_TEST),
    ("masks overwritten too early", TILES, "tile % 2 * shape.rows() * mask_words", "tile % 1 * shape.rows() * mask_words",
     ATTEND_TEST),
    ("offset of 32 bits", TILES, "page = args_.cache.page_of(slot)", "page = static_cast<int>(args_.cache.page_of(slot))",
     ATTEND_TEST),
    ("a split dropped", "backend/cuda/attend_splits.cuh", "for (std::int64_t part = 0; part < splits; ++part) weights.add",
     "for (std::int64_t part = 1; part < splits; ++part) weights.add", ATTEND_TEST),
    ("payload of an empty part read", COMBINE, "if (!weights.has_weight(part, parts.empty(i, row))) continue;", "",
     "combine_test.cpp"),
    ("LSE written before other lanes have read it", COMBINE,
     "sync_warp(); // the LSE may take the place of a part's, which other lanes still read", "", "combine_test.cpp"),
    ("sinks forgotten", COMBINE, "if (parts.sinks != nullptr) weights.add_sink(sink);", "", "combine_test.cpp"),
    ("skipped rows written", "backend/cuda/cache.cuh", "if (slot < 0) continue;", "", "cache_test.cpp"),
    ("rows that are taken placed", "backend/cuda/move.cuh",
     "const std::int64_t to_row = args.move == row_move::take ? i : other;",
     "const std::int64_t to_row = args.move == row_move::take ? other : i;", "move_test.cpp"),
]


def compile_and_run(headers, test, folder):
    """The test's exit status with these headers; None where it does not compile."""
    simt = ROOT / "test" / "simt"
    races = test.endswith(RACES)
    test = test.removesuffix(RACES)
    support = [path for path in sorted(simt.glob("*.cpp"))
               if not path.name.endswith("_test.cpp") and "suite" not in path.name]
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-g1", "-w", "-I", str(simt / "include"), "-I",
                str(headers), "-I", str(ROOT / "test"), "-I", str(ROOT / "test" / "support")]
    if races:
        compiler.append("-DSIMT_RACES")
    objects = []
    # The emulator first: of functions that both have, the linker takes those that the sanitizer does not watch.
    for source in [*support, simt / test, ROOT / "test" / "support" / "main.cpp"]:
        objects.append(str(folder / (source.stem + ".o")))
        sanitizer = ["-fsanitize=thread"] if races and source.name == test else []
        command = [*compiler, *sanitizer, "-c", str(source), "-o", objects[-1]]
        if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            return None
    program = str(folder / "test")
    linker = [compiler[0], *objects, "-o", program, "-lpthread", *(["-fsanitize=thread"] if races else [])]
    subprocess.run(linker, check=True)
    run = ["setarch", "-R", program] if races else [program]
    settings = dict(os.environ, TSAN_OPTIONS="ignore_interceptors_accesses=1 halt_on_error=1")
    try:
        return subprocess.run(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600,
                              env=settings).returncode
    except subprocess.TimeoutExpired:
        return -1


def planted(fault):
    """What became of one fault: a word."""
    name, file, text, replacement, test = fault
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        shutil.copytree(ROOT / "include", folder / "include")
        changed = folder / "include" / "ctxpar" / file
        source = changed.read_text()
        if source.count(text) < 1:
            return "not planted: its text is not in " + file
        changed.write_text(source.replace(text, replacement, 1))
        status = compile_and_run(folder / "include", test, folder)
    if status is None:
        return "not planted: it does not compile"
    return "found" if status != 0 else "NOT FOUND"


def main():
    words = sys.argv[1:]
    chosen = [fault for fault in FAULTS if not words or any(word in fault[0] for word in words)]
    for test in sorted({fault[4] for fault in chosen}):
        with tempfile.TemporaryDirectory() as place:
            if compile_and_run(ROOT / "include", test, pathlib.Path(place)) != 0:
                sys.exit(f"{test} fails without a fault")
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for fault, outcome in zip(chosen, pool.map(planted, chosen)):
            print(f"{outcome:12} {fault[0]}", flush=True)
            missed += outcome != "found"
    print(f"{len(chosen) - missed} of {len(chosen)} faults were found")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
