#!/usr/bin/env python3
"""Has one of several MPI processes fail in every way of faults.cpp, and sees what the others learn of it.

usage: faults.py IMPLEMENTATION LAUNCHER PROGRAM [SCENARIO ...]

The launcher's own clean-up is off, so that it is the library that notices. In every scenario each rank that survives
must end with the expected error, in time, and no process may be left. Ranks report through files, because a launcher
that has lost a process may no longer pass on what the others print. Prints a line for each and a count at the end.
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import launch

RANKS = 3
VICTIM = 1
TIMEOUT_MS = 1500
SLACK_MS = 2000  # until a busy machine lets a process look at its clock

LATE = {"timeout"}                 # the victim says nothing: the others wait for it, once
TOLD = {"peer_error"}              # it tells the others, which need not wait
FOUND = {"mismatch"}               # all see that calls differ
DIFFER = {"digest"}
FOUND_OR_TOLD = {"mismatch", "peer_error"}  # found by the ranks concerned, told to the others

# scenario: codes that the others may report, and the victim; None where it reports nothing
EXPECTED = {
    "killed_before_any": (LATE, None),
    "killed_between": (LATE, None),
    "killed_inside": (LATE, None),
    "killed_while_it_sends": (LATE | TOLD, None),
    "stopped": (LATE, None),
    "exits": (LATE, None),
    "comes_when_others_have_left": (LATE | TOLD, LATE | TOLD),  # MPICH loses what ranks said last when they end
    "leaves_early": (LATE, None),
    "never_comes": (LATE, None),
    "killed_before_construction": (LATE, None),
    "constructs_when_others_have_left": (LATE, LATE),
    "throws": (TOLD, {"thrown"}),
    "refused": (TOLD, {"thrown"}),
    "decode_is_refused": (TOLD, {"thrown"}),
    "calls_another_operation": (FOUND, FOUND),
    "calls_with_more_bytes": (FOUND, FOUND),
    "calls_with_fewer_bytes": (FOUND_OR_TOLD, FOUND_OR_TOLD),
    "calls_with_another_type": (FOUND, FOUND),
    "calls_for_another_plan": (DIFFER, DIFFER),
    "sends_other_sizes": (FOUND_OR_TOLD, FOUND_OR_TOLD),
    "sends_other_sizes_of_large_data": (FOUND_OR_TOLD, FOUND_OR_TOLD),
    "decodes_with_another_interleave": (DIFFER, DIFFER),
    "decodes_with_another_merge": (DIFFER, DIFFER),
    "decodes_with_other_heads": (DIFFER, DIFFER),
}


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def read_files(folder, name):
    return {int(path.suffix[1:]): path.read_text() for path in folder.glob(name + ".[0-9]*")
            if path.suffix != ".part"}


def run(implementation, launcher, program, scenario):
    """What went wrong, as sentences, and what the ranks reported."""
    with tempfile.TemporaryDirectory() as name:
        return run_in(pathlib.Path(name), implementation, launcher, program, scenario)


def run_in(folder, implementation, launcher, program, scenario):
    words = launch.command(implementation, launcher, RANKS, [program, scenario, str(TIMEOUT_MS), str(folder)],
                           keep_going=True)
    output = folder / "output"
    with open(output, "w") as file:
        process = subprocess.Popen(words, env=launch.environment(folder), stdout=file, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
    others, victim = EXPECTED[scenario]
    awaited = RANKS - (victim is None)
    deadline = time.monotonic() + 30 + 3 * TIMEOUT_MS / 1000
    pids = {}
    while len(read_files(folder, "report")) < awaited and time.monotonic() < deadline:
        pids = {rank: int(text) for rank, text in read_files(folder, "process").items()}
        if len(pids) == RANKS and not any(map(is_alive, pids.values())):
            break
        time.sleep(0.02)
    if scenario == "stopped" and VICTIM in pids:
        os.kill(pids[VICTIM], signal.SIGKILL)  # it would stop for ever
    ended = time.monotonic() + 15
    while any(map(is_alive, pids.values())) and time.monotonic() < ended:
        time.sleep(0.02)
    left = [rank for rank, pid in pids.items() if is_alive(pid)]
    reports = {}
    for rank, text in read_files(folder, "report").items():
        code, waited, words = text.split(" ", 2)
        reports[rank] = (code, int(waited), words)
    for pid in left:
        os.kill(pids[pid], signal.SIGKILL)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()

    problems = [f"process of rank {rank} was left" for rank in left]
    for rank in range(RANKS):
        allowed = victim if rank == VICTIM else others
        code, waited, text = reports.get(rank, (None, 0, ""))
        if allowed is None:
            continue
        if code is None and implementation == "mpich" and scenario.startswith("killed"):
            continue  # its launcher loses a process by ending all, whatever it is told; nobody waits and none is left
        if code not in allowed:
            problems.append(f"rank {rank} reported {code}, not {' or '.join(sorted(allowed))}: {text}")
            continue
        if rank != VICTIM and f"rank {VICTIM}" not in text:
            problems.append(f"rank {rank} does not name rank {VICTIM}: {text}")
        limit = TIMEOUT_MS + (SLACK_MS if LATE <= allowed else 0)
        if waited > limit and code != "thrown":
            problems.append(f"rank {rank} waited {waited} ms, more than {limit}")
    if problems:
        problems += ["output:"] + output.read_text().splitlines()
    return problems, reports


def main():
    implementation, launcher, program = sys.argv[1:4]
    scenarios = sys.argv[4:] or subprocess.run([program, "list"], capture_output=True, text=True,
                                               check=True).stdout.split()
    missing = set(EXPECTED) - set(scenarios) if not sys.argv[4:] else set()
    if missing or set(scenarios) - set(EXPECTED):
        sys.exit(f"faults.py and the program do not know the same scenarios: {missing or set(scenarios) - set(EXPECTED)}")
    survived = 0
    for scenario in scenarios:
        problems, reports = run(implementation, launcher, program, scenario)
        survived += not problems
        told = "; ".join(f"rank {rank} {code} after {waited} ms" for rank, (code, waited, _) in sorted(reports.items()))
        print(f"{'ok    ' if not problems else 'FAILED'} {scenario}: {told}", flush=True)
        for line in problems:
            print("       " + line, flush=True)
    print(f"{implementation}: {len(scenarios)} faults tried, {survived} survived")
    return survived != len(scenarios)


if __name__ == "__main__":
    sys.exit(main())
