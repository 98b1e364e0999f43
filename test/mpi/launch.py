#!/usr/bin/env python3
"""Runs a program as MPI processes.

usage: launch.py IMPLEMENTATION LAUNCHER RANKS PROGRAM [ARGUMENT ...]

IMPLEMENTATION is openmpi or mpich, whose options differ. Exits as the launcher does.
"""
import os
import sys


def command(implementation, launcher, ranks, program, keep_going=False, network="vader"):
    """The command that starts the processes: more of them than cores where need be, on this machine. keep_going: the
    launcher does not end the processes that are left when one of them ends."""
    if implementation == "openmpi":
        options = ["--oversubscribe", "--bind-to", "none", "--mca", "btl", network + ",self"]
        options += ["--enable-recovery"] if keep_going else []
    else:
        options = ["-disable-auto-cleanup"] if keep_going else []
    return [launcher, *options, "-n", str(ranks), *program]


def environment(folder=None):
    """Open MPI asks twice before it lets root run anything, and copies between processes in a way that containers
    forbid where it is not told otherwise. In `folder` it puts what processes that are killed leave, the memory that
    they share included."""
    own = {"OMPI_MCA_orte_tmpdir_base": str(folder), "OMPI_MCA_btl_vader_backing_directory": str(folder)}
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none", **(own if folder else {})}


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    words = command(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    os.execvpe(words[0], words, environment())
