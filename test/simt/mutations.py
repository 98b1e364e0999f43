#!/usr/bin/env python3
"""Plants faults in the device code, one at a time, and sees that the tests of the emulated device find each.

usage: mutations.py [--jobs N] [name ...]      all, or those whose names contain one of the words

A fault is a text of a file under include/ctxpar that is replaced; the tests named beside it are compiled against the
changed headers and must fail, having passed against the headers as they are. Some faults change no result on the
emulated device and are races all the same: those tests run under the thread sanitizer. Exits with 1 where a fault was
not found.
"""
import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TILES = "backend/cuda/attend_tiles.cuh"
BLOCK = "backend/cuda/tile_block.cuh"
KEYS = "backend/cuda/tile_keys.cuh"
SCORES = "backend/cuda/tile_scores.cuh"
VALUES = "backend/cuda/tile_values.cuh"
RESULTS = "backend/cuda/tile_results.cuh"
ITEMS = "backend/cuda/attend_items.cuh"
COMBINE = "backend/cuda/combine.cuh"
LOCAL_CUDA = "comm/local_cuda.hpp"
NCCL = "comm/nccl.hpp"
ATTEND_TEST = "attend_tiles_test.cpp"
LOCAL_CUDA_TEST = "local_cuda_test.cpp"
RACES = " under the thread sanitizer"

# name, file, text, text in its place, test file
FAULTS = [
    ("barrier before a tile is read", TILES, "sync_block(); // the tile is here, and the one before is done", "",
     ATTEND_TEST),
    ("barrier after 8-bit keys are widened", TILES, "widen(b, tile);\n        sync_block();", "widen(b, tile);",
     ATTEND_TEST),
    ("barrier before probabilities of other warps are read", TILES,
     "if constexpr (Block::shape.columns > 1) {\n        sync_block();\n    } else {",
     "if constexpr (Block::shape.columns > 1) {\n    } else {", ATTEND_TEST),
    ("meeting of a warp before its probabilities are read", TILES, "} else {\n        sync_warp();\n    }",
     "} else {\n    }", ATTEND_TEST + RACES),
    ("wait for copies", TILES, "    wait_for_tile(b.stages);\n", "", ATTEND_TEST),
    ("wait for one tile less", KEYS, "wait_copies<1>();", "wait_copies<2>();", ATTEND_TEST),
    ("matrices of keys swapped", SCORES, "high, k.at[2], k.at[3]", "high, k.at[3], k.at[2]", ATTEND_TEST),
    ("column of a matrix of values", VALUES, "(b.lane * layout::value_pitch + b.column()",
     "((b.lane ^ 1) * layout::value_pitch + b.column()", ATTEND_TEST),
    ("a key past the last one", ITEMS, "key < some_hi)", "key <= some_hi)", ATTEND_TEST),
    ("a tile taken for full", ITEMS, "if (past > first_row.hi || past > first_row.tail) return false;",
     "if (past > first_row.hi + 1) return false;", ATTEND_TEST),
    ("prefix forgotten", ITEMS, "range.prefix_tiles = tiles_between(range.prefix_first,",
     "range.prefix_tiles = 0 * tiles_between(range.prefix_first,", ATTEND_TEST),
    ("base of the LSE", RESULTS, "max + logf(sum)", "max + log2_e * logf(sum)", ATTEND_TEST),
    ("a sum over half the lanes", RESULTS, "sum += from_lane_xor(sum, 2);", "", ATTEND_TEST),
    ("the smallest part of probabilities dropped", VALUES, "for (int term = p_terms - 1; term >= 0; --term)",
     "for (int term = p_terms - 2; term >= 0; --term)", ATTEND_TEST),
    ("sums not rescaled", VALUES, "state.out[n].at[e] * factor[e / 2]", "state.out[n].at[e]", ATTEND_TEST),
    ("scales of keys overwritten too early", BLOCK, "tile % (stages + 1) * 2 * shape.keys",
     "tile % stages * 2 * shape.keys", ATTEND_TEST),
    ("masks overwritten too early", BLOCK, "tile % 2 * shape.rows() * mask_words",
     "tile % 1 * shape.rows() * mask_words", ATTEND_TEST),
    ("offset of 32 bits", KEYS, "page = cache.page_of(slot)", "page = static_cast<int>(cache.page_of(slot))",
     ATTEND_TEST),
    ("a split dropped", "backend/cuda/attend_splits.cuh",
     "for (std::int64_t part = 0; part < splits; ++part) weights.add",
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
    ("event of a rank not recorded", LOCAL_CUDA,
     "settle(cudaEventRecord(event_of(own(), num_meetings_), stream), call);", "(void)stream;", LOCAL_CUDA_TEST),
    ("event missing before a peer's memory is copied", LOCAL_CUDA,
     "if (peer != own()) settle(cudaStreamWaitEvent(stream, event_of(peer, num_meetings_ - 1), 0), call);\n"
     "        if (part.at == to) return;", "(void)peer;\n        if (part.at == to) return;", LOCAL_CUDA_TEST),
    ("event missing after a peer has copied", LOCAL_CUDA,
     "wait_for_peers(call, stream);\n    }\n\n    // Where in the own",
     "}\n\n    // Where in the own", LOCAL_CUDA_TEST),
    ("event missing before published memory is read", LOCAL_CUDA,
     "wait_for_peers(call, stream);\n        bytes_sent_ += ", "bytes_sent_ += ", LOCAL_CUDA_TEST),
    ("event missing after published memory was read", LOCAL_CUDA,
     "wait_for_peers(call, stream);\n    }\n\n    // The communicator of",
     "}\n\n    // The communicator of", LOCAL_CUDA_TEST),
    ("event recorded again while peers wait for it", LOCAL_CUDA, "->at[meeting_number % 2]", "->at[meeting_number * 0]",
     LOCAL_CUDA_TEST),
    ("event of one peer only waited for", LOCAL_CUDA,
     "for (std::size_t peer = 0; peer < pointers_.size(); ++peer)\n            if (peer != own()) settle",
     "for (std::size_t peer = 0; peer < 1; ++peer)\n            if (peer != own()) settle", LOCAL_CUDA_TEST),
    ("event missing in a wait for NCCL", NCCL, "settle(cudaEventRecord(own_->event, stream), last_);", "(void)stream;",
     "nccl_communicator_test.cpp"),
    ("no deadline where ranks agree", NCCL, "wait_for(stream);\n        // On an idle stream", "// On an idle",
     "nccl_communicator_faults_test.cpp"),
]


class Builder:
    """Compiles tests against some headers; the emulator, which depends on none that faults are planted in, once."""

    def __init__(self, folder):
        self.folder = folder
        self.objects = {}

    @staticmethod
    def compiler(races):
        simt = ROOT / "test" / "simt"
        return [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-g1", "-w", "-I", str(simt / "include"),
                *(["-DSIMT_RACES"] if races else [])]

    def emulator(self, races):
        """Its objects, without the sanitizer also where the test has it."""
        if races not in self.objects:
            simt = ROOT / "test" / "simt"
            sources = [path for path in sorted(simt.glob("*.cpp"))
                       if not path.name.endswith("_test.cpp") and "suite" not in path.name]
            objects = []
            for source in [*sources, ROOT / "test" / "support" / "main.cpp"]:
                objects.append(str(self.folder / f"{source.stem}{'_races' if races else ''}.o"))
                subprocess.run([*self.compiler(races), "-I", str(ROOT / "include"), "-c", str(source), "-o",
                                objects[-1]], check=True)
            self.objects[races] = objects
        return self.objects[races]

    def compile_and_run(self, headers, test, folder):
        """The test's exit status with these headers; None where it does not compile."""
        races = test.endswith(RACES)
        test = test.removesuffix(RACES)
        sanitizer = ["-fsanitize=thread"] if races else []
        one, program = str(folder / "test.o"), str(folder / "test")
        command = [*self.compiler(races), *sanitizer, "-I", str(headers), "-I", str(ROOT / "test"), "-I",
                   str(ROOT / "test" / "support"), "-c", str(ROOT / "test" / "simt" / test), "-o", one]
        if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            return None
        # The emulator first: of functions that both have, the linker takes those that the sanitizer does not watch.
        subprocess.run([command[0], *self.emulator(races), one, "-o", program, "-lpthread", *sanitizer], check=True)
        run = ["setarch", "-R", program] if races else [program]
        settings = dict(os.environ, TSAN_OPTIONS="ignore_interceptors_accesses=1 halt_on_error=1")
        try:
            return subprocess.run(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=200,
                                  env=settings).returncode
        except subprocess.TimeoutExpired:
            return -1


def planted(builder, fault):
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
        status = builder.compile_and_run(folder / "include", test, folder)
    if status is None:
        return "not planted: it does not compile"
    return "found" if status != 0 else "NOT FOUND"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time")
    parser.add_argument("words", nargs="*", help="parts of the names of faults")
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS if not options.words or any(word in fault[0] for word in options.words)]
    missed = 0
    with tempfile.TemporaryDirectory() as shared:
        builder = Builder(pathlib.Path(shared))
        for test in sorted({fault[4] for fault in chosen}):
            with tempfile.TemporaryDirectory() as place:
                if builder.compile_and_run(ROOT / "include", test, pathlib.Path(place)) != 0:
                    sys.exit(f"{test} fails without a fault")
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            outcomes = pool.map(lambda fault: planted(builder, fault), chosen)
            for fault, outcome in zip(chosen, outcomes):
                print(f"{outcome:12} {fault[0]}", flush=True)
                missed += outcome != "found"
    print(f"{len(chosen) - missed} of {len(chosen)} faults were found")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
