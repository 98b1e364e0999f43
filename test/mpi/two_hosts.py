#!/usr/bin/env python3
"""Runs MPI ranks on two hosts: two network namespaces of this machine, joined by a pair of virtual links.

usage: two_hosts.py IMPLEMENTATION LAUNCHER SUITES FAULTS [ARGUMENT-OF-SUITES ...]

IMPLEMENTATION is openmpi or mpich, whose options differ. SUITES, the exactness suites, must pass with ranks on both hosts. Then FAULTS takes steps on
both, and the link that carries their data is taken down in the middle: every rank must end with an error that names
ranks of the other host, in time, and no process may be left. The launcher's own traffic has a second link, so that it
is the library that notices.

Exits with 77, and prints the reason, where the kernel or the user's rights do not allow namespaces.
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import faults
import launch

SKIPPED = 77
RANKS_OF_HOST = 2
RANKS = 2 * RANKS_OF_HOST
TIMEOUT_MS = 1500
SLACK_MS = 3000  # until a busy machine lets a process look at its clock
SCENARIOS = ["link_is_lost_in_decode", "link_is_lost_in_large_calls"]

# The launcher's remote shell: the first argument is an address, the others are a command line for a shell.
AGENT = """#!/bin/sh
host=$1
shift
exec {enter} "$host" sh -c "$*"
"""

# Its program: enters the namespace of an address, under a host name of its own.
ENTER = """#!/bin/sh
number=${{1##*.}}
shift
exec ip netns exec {name}$number unshare --uts sh -c 'hostname "$0" && exec "$@"' {name}$number "$@"
"""


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class TwoHosts:
    """The namespaces, whose names begin with the number of this process, for as long as the block lasts. Host 1 and 2
    are 10.213.LINK.1 and 10.213.LINK.2 on the links `control` (0) and `data` (1)."""

    LINKS = ("control", "data")

    def __init__(self, folder):
        self.name = f"ctxpar{os.getpid()}h"
        self.folder = folder
        self.enter = folder / "enter"
        self.agent = folder / "agent"
        self.hosts = folder / "hosts"

    def __enter__(self):
        for tool in ("ip", "unshare", "hostname"):
            if shutil.which(tool) is None:
                raise OSError(f"there is no program {tool}")
        try:
            self.make()
        except OSError:
            self.__exit__()
            raise
        return self

    def make(self):
        for host in (1, 2):
            ip("netns", "add", self.of(host))
            ip("-n", self.of(host), "link", "set", "lo", "up")
        for number, link in enumerate(self.LINKS):
            ip("-n", self.of(1), "link", "add", link, "type", "veth", "peer", "name", link, "netns", self.of(2))
            for host in (1, 2):
                ip("-n", self.of(host), "address", "add", f"10.213.{number}.{host}/24", "dev", link)
                ip("-n", self.of(host), "link", "set", link, "up")
        for file, text in ((self.enter, ENTER.format(name=self.name)), (self.agent, AGENT.format(enter=self.enter))):
            file.write_text(text)
            file.chmod(0o700)
        for host in (1, 2):  # some MPIs look once, at their start, for links that are up
            for link in self.LINKS:
                if not wait_until(lambda: "LOWER_UP" in ip("-n", self.of(host), "link", "show", link)
                                  and "state UP" in ip("-n", self.of(host), "link", "show", link), 10):
                    raise OSError(f"the link {link} does not come up")
        self.hosts.write_text("".join(f"10.213.0.{host} slots={RANKS_OF_HOST}\n" for host in (1, 2)))
        # What a kernel does not allow shows here and not in the launcher.
        done = subprocess.run([self.enter, "10.213.0.1", "hostname"], capture_output=True, text=True)
        if done.stdout.strip() != self.of(1):
            raise OSError(f"a command in a namespace says: {done.stdout} {done.stderr}".strip())

    def of(self, host):
        return self.name + str(host)

    def end_processes(self, host):
        for pid in ip("netns", "pids", self.of(host)).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def __exit__(self, *_):
        made = [line.split()[0] for line in ip("netns", "list").splitlines()]
        for host in (1, 2):
            if self.of(host) in made:
                self.end_processes(host)
                ip("netns", "del", self.of(host))

    def set_data_link(self, state):
        ip("-n", self.of(2), "link", "set", "data", state)

    def data_bytes(self):
        """What has crossed the data link."""
        return int(ip("netns", "exec", self.of(2), "cat", "/sys/class/net/data/statistics/rx_bytes"))

    def command(self, implementation, launcher, program, keep_going=False):
        """Starts two ranks a host: ranks of one host share memory, those of different hosts the data link. keep_going:
        the launcher does not end the processes that are left when one of them ends."""
        if implementation == "mpich":
            words = [self.enter, "10.213.0.1", launcher, "-launcher", "rsh", "-launcher-exec", self.agent, "-hosts",
                     ",".join(f"10.213.0.{host}:{RANKS_OF_HOST}" for host in (1, 2)), "-iface", "control",
                     "-n", RANKS] + ["-disable-auto-cleanup"] * keep_going
            return [str(word) for word in words + program]
        options = {"plm": "rsh", "plm_rsh_agent": self.agent, "btl": "vader,tcp,self", "pml": "ob1",
                   "btl_tcp_if_include": "data", "oob_tcp_if_include": "control"}
        words = [self.enter, "10.213.0.1", launcher, "--hostfile", self.hosts, "--bind-to", "none", "--map-by", "slot",
                 "-n", RANKS] + ["--enable-recovery"] * keep_going
        for name, value in options.items():
            words += ["--mca", name, value]
        return [str(word) for word in words + program]


    def environment(self):
        """MPICH's ranks look for each other by UCX, which would find memory that the hosts of one machine share."""
        return {**launch.environment(self.folder), "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "data"}


def run_suites(hosts, implementation, launcher, program):
    start = time.monotonic()
    done = subprocess.run(hosts.command(implementation, launcher, program), env=hosts.environment(),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    crossed = hosts.data_bytes()
    passed = done.returncode == 0 and crossed > 1e6
    print(f"{'ok    ' if passed else 'FAILED'} suites over two hosts: {time.monotonic() - start:.0f} s, "
          f"{crossed / 1e6:.1f} MB received over the link")
    said = [line for line in done.stdout.splitlines() if not passed or "deployments over" in line]
    print("".join(f"       {line}\n" for line in said), end="", flush=True)
    return passed


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def lose_link(hosts, implementation, launcher, program, scenario, folder):
    """What went wrong, as sentences, and what each rank reported."""
    folder.mkdir()
    with open(folder / "output", "w") as output:
        process = subprocess.Popen(
            hosts.command(implementation, launcher, [program, scenario, str(TIMEOUT_MS), str(folder)],
                          keep_going=True),
            env=hosts.environment(), stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def reports():
        return faults.read_files(folder, "report")

    problems = []
    if not wait_until(lambda: len(faults.read_files(folder, "process")) == RANKS, 60):
        problems.append("the ranks did not start")
    time.sleep(1)
    if reports():
        problems.append(f"there is a report before the link is taken down: {reports()}")
    hosts.set_data_link("down")
    start = time.monotonic()
    wait_until(lambda: len(reports()) == RANKS, (TIMEOUT_MS + SLACK_MS) / 1000)
    waited = time.monotonic() - start
    pids = [int(text) for text in faults.read_files(folder, "process").values()]
    if not wait_until(lambda: not any(map(faults.is_alive, pids)), 10):
        problems.append("a process was left")
    told = {rank: text.split(" ", 2) for rank, text in reports().items()}
    for rank in range(RANKS):
        code, _, text = told.get(rank, ("nothing", "", ""))
        others = [r for r in range(RANKS) if r // RANKS_OF_HOST != rank // RANKS_OF_HOST]
        if code not in ("timeout", "peer_error"):
            problems.append(f"rank {rank} reported {code} within {TIMEOUT_MS + SLACK_MS} ms: {text}")
        elif not set(others) & named_ranks(text):
            problems.append(f"rank {rank} names no rank of the other host: {text}")
    if "timeout" not in [code for code, *_ in told.values()]:
        problems.append("no rank reported a timeout")
    for host in (1, 2):
        hosts.end_processes(host)
    process.wait()
    hosts.set_data_link("up")
    if problems:
        problems += ["output:"] + (folder / "output").read_text().splitlines()
    return problems, waited, told


def named_ranks(text):
    """Those that had not come: `rank 2 had not arrived`, `ranks 1, 3-5 had arrived, but not ...`."""
    ranks = set()
    for names in re.findall(r"ranks? ([-0-9, ]+) had (?:not )?arrived", text):
        for name in names.split(", "):
            first, _, last = name.partition("-")
            ranks.update(range(int(first), int(last or first) + 1))
    return ranks


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    implementation, launcher, suites, fault_program, *arguments = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # in order, so that nothing is left
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            hosts = stack.enter_context(TwoHosts(folder))
        except OSError as problem:
            print(f"skipped: no two hosts can be made here: {problem}")
            return SKIPPED
        failed = not run_suites(hosts, implementation, launcher, [suites, *arguments])
        for scenario in SCENARIOS:
            problems, waited, told = lose_link(hosts, implementation, launcher, fault_program, scenario,
                                               folder / scenario)
            failed = failed or bool(problems)
            print(f"{'FAILED' if problems else 'ok    '} {scenario}: {len(told)} of {RANKS} ranks had reported "
                  f"{waited:.1f} s later")
            for rank, (code, _, text) in sorted(told.items()):
                print(f"       rank {rank} {code}: {text}")
            print("".join(f"       {line}\n" for line in problems), end="", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
