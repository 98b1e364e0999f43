#!/usr/bin/env python3
"""Decode by this library and by other CPU attention kernels, side by side in one run.

Every program solves the same problem (problem.py) with the same threads, and is compared with the exact answer before
its time counts. A round runs all programs one after the other, each round in another order, between two readings of
what this machine can read; a round in which all threads read less than 1.8 times what one does is thrown away, since
something else was running. Ratios are made within a round; their medians over rounds are shown."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np

import problem
import report

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "peers"
PROGRAMS = "ctxpar:bf16,ctxpar:f16,torch:bf16,openvino:bf16,ggml:f16,onnxruntime:f16"
SHAPES = "1x4096,1x32768,1x131072,8x4096,8x32768,8x131072"
# What is allowed: the relative L2 distance of all outputs of a cache to the exact answer, by the type of the cache, to
# which probabilities and outputs may be rounded. ggml sums up values in f16, which loses more in longer contexts. An
# answer that lacks one token, the newest, is at least ten times as far.
BOUNDS = {"bf16": 5e-3, "f16": 1e-3, "f32": 1e-4}
BOUNDS_OF = {"ggml": 3e-2}
QUIET = 1.8


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", default=PROGRAMS, help="NAME:TYPE,... (%(default)s)")
    parser.add_argument("--shapes", default=SHAPES, help="REQUESTSxTOKENS,... (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="quiet rounds of each shape (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of timed steps of a program in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpus", default="0,1", help="that all programs are confined to (%(default)s)")
    parser.add_argument("--keep-noisy", action="store_true", help="count rounds that were not quiet, and say so")
    parser.add_argument("--build", type=pathlib.Path, default=BUILD, help="what setup.sh and run.sh made")
    parser.add_argument("--out", type=pathlib.Path, help="for peers.json and peers.md; default: --build")
    return parser.parse_args()


def last_level_cache():
    """Bytes that the processor reports, or half a GiB where it does not say."""
    try:
        text = pathlib.Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]
    except (OSError, KeyError, ValueError):
        return 1 << 29


def free_memory():
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def command(build, name):
    if name in ("ctxpar", "ggml"):
        return [str(build / "programs" / f"{name}_peer")]
    return [str(build / "venv" / "bin" / "python"), "-B", str(HERE / f"{name}_peer.py")]


def missing(build, names):
    """The peers that are not there, and why: setup.sh left a file for each."""
    reasons = {}
    for name in names:
        note = build / "missing" / name
        if note.exists():
            reasons[name] = note.read_text().strip()
        elif not pathlib.Path(command(build, name)[0]).exists():
            reasons[name] = "its program was not built"
    return reasons


def bound_of(name, kind):
    return BOUNDS_OF.get(name, BOUNDS[kind])


class Failed(Exception):
    pass


def answer_of(arguments, given):
    """Runs a program and reads the JSON on its last line."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(given.threads))
    try:
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        raise Failed("took more than 15 minutes") from None
    if done.returncode != 0:
        raise Failed((done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])


def ceiling(given, size):
    return answer_of([str(given.build / "programs" / "peers_ceiling"), str(size), str(given.threads)], given)


class Case:
    """One shape: its inputs in a folder, its exact answers, and the rounds so far."""

    def __init__(self, given, batch, tokens, least_bytes, folder):
        self.given, self.batch, self.tokens, self.folder = given, batch, tokens, folder
        self.cache_bytes = batch * tokens * problem.BYTES_PER_TOKEN
        self.caches = max(1, -(-least_bytes // self.cache_bytes))
        problem.write(folder, batch, tokens)
        inputs = problem.Inputs(folder, batch, tokens)
        pairs = [inputs.answers(cache) for cache in range(self.caches)]
        self.exact = np.stack([whole for whole, _ in pairs])
        self.without_newest = min(self.distance(whole, without) for whole, without in pairs)

    @staticmethod
    def distance(exact, found):
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    def solve(self, name, kind):
        """One run of a program: what it measured, and the distance of its worst cache to the exact answer."""
        out = f"{name}.{kind}.f32"
        arguments = command(self.given.build, name)
        facts = {"folder": self.folder, "out": out, "type": kind, "batch": self.batch, "tokens": self.tokens}
        facts |= {"caches": self.caches, "threads": self.given.threads, "seconds": self.given.seconds}
        for key, value in facts.items():
            arguments += ["--" + key, str(value)]
        measured = answer_of(arguments, self.given)
        found = np.fromfile(f"{self.folder}/{out}", np.float32)
        os.remove(f"{self.folder}/{out}")
        if found.size != self.exact.size:
            raise Failed(f"wrote {found.size} numbers of {self.exact.size}")
        found = found.reshape(self.exact.shape).astype(np.float64)
        worst = max(map(self.distance, self.exact, found))
        heads = np.linalg.norm(found - self.exact, axis=-1) / np.linalg.norm(self.exact, axis=-1)
        bound = bound_of(name, kind)
        assert self.without_newest >= 10 * bound, "the inputs cannot tell a wrong answer"
        if not worst <= bound:
            raise Failed(f"wrong: the relative L2 distance to the exact answer is {worst:.1e}, the bound {bound:.0e}")
        return measured | {"error": worst, "worst_head": float(heads.max())}

    def round(self, programs, failures):
        """All programs once, between two readings of the ceiling."""
        before = ceiling(self.given, self.caches * self.cache_bytes)
        results = {}
        for name, kind in programs:
            if (name, kind) in failures:
                continue
            try:
                results[f"{name}:{kind}"] = self.solve(name, kind)
            except Failed as problem_found:
                failures[name, kind] = str(problem_found)
                print(f"  {name} {kind} FAILED: {problem_found}", flush=True)
        after = ceiling(self.given, self.caches * self.cache_bytes)
        scaling = min(reading["all_threads"] / reading["one_thread"] for reading in (before, after))
        best = {key: max(before[key], after[key]) for key in ("one_thread", "all_threads")}
        return best | {"scaling": scaling, "results": results}


def measure(case, programs, given):
    """Rounds until enough were quiet, at most three times as many."""
    rounds, noisy, failures = [], [], {}
    for attempt in range(3 * given.rounds):
        turn = attempt % len(programs)
        done = case.round(programs[turn:] + programs[:turn], failures)
        quiet = given.threads == 1 or done["scaling"] >= QUIET
        (rounds if quiet else noisy).append(done)
        note = "" if quiet else f", not quiet: {given.threads} threads read {done['scaling']:.2f} times what one reads"
        print(f"  round {attempt + 1}: {done['all_threads'] / 1e9:.1f} GB/s can be read{note}", flush=True)
        if len(rounds) + given.keep_noisy * len(noisy) >= given.rounds:
            break
    counted = rounds + noisy if given.keep_noisy else rounds
    return {
        "batch": case.batch,
        "tokens": case.tokens,
        "caches": case.caches,
        "bytes_a_step": case.cache_bytes,
        "bytes_in_turn": case.caches * case.cache_bytes,
        "without_newest": case.without_newest,
        "rounds": counted,
        "noisy_rounds": len(noisy),
        "failures": {f"{name}:{kind}": reason for (name, kind), reason in failures.items()},
        "summary": summary(counted, case.cache_bytes),
    }


def summary(rounds, two_byte_size):
    """Medians over rounds of each program's time and of its ratios, which are made within a round."""
    lines = {}
    for key in sorted({key for one in rounds for key in one["results"]}):
        kind = key.split(":")[1]
        ours = "ctxpar:" + ("f16" if kind == "f32" else kind)
        size = two_byte_size * (2 if kind == "f32" else 1)
        with_it = [one for one in rounds if key in one["results"]]
        seconds = lambda one, of: one["results"][of]["seconds"]
        compared = [one for one in with_it if ours in one["results"]]
        lines[key] = {
            "name": with_it[0]["results"][key]["name"],
            "type": kind,
            "bytes_a_step": size,
            "seconds": statistics.median(seconds(one, key) for one in with_it),
            "of_ceiling": statistics.median(size / seconds(one, key) / one["all_threads"] for one in with_it),
            "error": max(one["results"][key]["error"] for one in with_it),
            "worst_head": max(one["results"][key]["worst_head"] for one in with_it),
        }
        if compared:
            lines[key]["ctxpar_is_faster"] = statistics.median(
                seconds(one, key) / seconds(one, ours) for one in compared
            )
    return lines


def main():
    given = options()
    os.sched_setaffinity(0, {int(cpu) for cpu in given.cpus.split(",")})
    wanted = [tuple(one.split(":")) for one in given.programs.split(",")]
    absent = missing(given.build, dict(wanted))
    programs = [one for one in wanted if one[0] not in absent]
    least = max(1 << 30, 4 * last_level_cache())
    result = {
        "threads": given.threads,
        "cpus": given.cpus,
        "last_level_cache": last_level_cache(),
        "bounds": {f"{name}:{kind}": bound_of(name, kind) for name, kind in programs},
        "absent": absent,
        "skipped": {},
        "cases": [],
    }
    for shape in given.shapes.split(","):
        batch, tokens = map(int, shape.split("x"))
        print(f"{batch} requests of {tokens} tokens", flush=True)
        needed = 2 * max(least, batch * tokens * problem.BYTES_PER_TOKEN) + (1 << 30)
        if free_memory() < needed:
            result["skipped"][shape] = f"needs {needed >> 20} MiB of memory, {free_memory() >> 20} are free"
            continue
        with tempfile.TemporaryDirectory() as folder:
            result["cases"].append(measure(Case(given, batch, tokens, least, folder), programs, given))
    out = given.out or given.build
    out.mkdir(parents=True, exist_ok=True)
    (out / "peers.json").write_text(json.dumps(result, indent=1) + "\n")
    text = report.markdown(result)
    (out / "peers.md").write_text(text)
    print("\n" + text)
    failed = any(case["failures"] or not case["rounds"] for case in result["cases"])
    return 1 if failed or not result["cases"] else 0


if __name__ == "__main__":
    sys.exit(main())
