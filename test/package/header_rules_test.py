#!/usr/bin/env python3
"""Seeds every fault that header_rules.py looks for, one at a time, and checks that it finds exactly that one."""

import pathlib
import tempfile
import unittest

import header_rules

SOUND = {
    "version.hpp": "#define CTXPAR_VERSION_MAJOR 3\n#define CTXPAR_VERSION_MINOR 14\n",
    "core/error.hpp": "namespace ctxpar::inline v3_14 { inline void raise() { throw 1; } }\n",
    "layout/interleave.hpp": "#include <cstdint>\n#include <ctxpar/core/error.hpp>\n// may throw\n"
                             "namespace ctxpar::inline v3_14::detail { const char* text = \"throw\"; }\n",
    "attention/rows.hpp": "#include <ctxpar/layout/interleave.hpp>\nlong million = 1'000'000; // it's not thrown\n",
    "comm/local.hpp": "#include <ctxpar/attention/rows.hpp>\nint throwing = 0;\n",
    "comm/mpi.hpp": "#include <mpi.h>\n",
    "comm/nccl.hpp": "#include <nccl.h>\n#include <cuda_runtime_api.h>\n",
    "backend/cpu.hpp": "#include <ctxpar/core/error.hpp>\n#include <memory>\n",
    "backend/cuda.hpp": "#include <cuda_runtime_api.h>\n",
    "backend/cuda/decode.cuh": "#include <cub/block/block_scan.cuh>\n#include <ctxpar/backend/cuda.hpp>\n",
    "merge/a2a.hpp": "#include <ctxpar/comm/local.hpp>\n#include <ctxpar/backend/cpu.hpp>\n",
    "decode/step.hpp": "#include <ctxpar/merge/a2a.hpp>\n",
    "decode.hpp": "#include <ctxpar/merge/a2a.hpp>\n#include <ctxpar/decode/step.hpp>\n",
    "prefill.hpp": "#include <ctxpar/decode.hpp>\n",
    "plan/cost.hpp": "#include <ctxpar/prefill.hpp>\n",
    "ctxpar.hpp": "#include <ctxpar/plan/cost.hpp>\n#include <ctxpar/version.hpp>\n",
    "cuda.cuh": "#include <ctxpar/ctxpar.hpp>\n#include <ctxpar/backend/cuda/decode.cuh>\n",
}

# What is appended to a sound file, and a part of the one sentence that must come of it.
FAULTS = [
    ("core/error.hpp", "#include <ctxpar/layout/interleave.hpp>", "layout is not below core"),
    ("layout/interleave.hpp", "#include <ctxpar/attention/rows.hpp>", "attention is not below layout"),
    ("attention/rows.hpp", "#include <ctxpar/comm/local.hpp>", "comm is not below attention"),
    ("comm/local.hpp", "#include <ctxpar/backend/cpu.hpp>", "backend is not below comm"),
    ("backend/cpu.hpp", "  #  include <ctxpar/comm/local.hpp>", "comm is not below backend"),
    ("merge/a2a.hpp", "#include <ctxpar/decode.hpp>", "composers is not below merge"),
    ("decode.hpp", "#include <ctxpar/plan/cost.hpp>", "plan is not below composers"),
    ("merge/a2a.hpp", "#include <ctxpar/decode/step.hpp>", "composers is not below merge"),
    ("plan/cost.hpp", "#include <ctxpar/ctxpar.hpp>", "umbrellas is not below plan"),
    ("version.hpp", "#include <ctxpar/decode.hpp>", "composers is not below core"),
    ("ctxpar.hpp", "#include <ctxpar/backend/cuda/decode.cuh>", "needs a CUDA compiler"),
    ("ctxpar.hpp", "#include <ctxpar/comm/mpi.hpp>", "a library that not every program has"),
    ("merge/a2a.hpp", "#include <cuda_runtime.h>", "<cuda_runtime.h> of CUDA"),
    ("backend/cpu.hpp", "#include <thrust/device_vector.h>", "of CUDA"),
    ("backend/cuda/decode.cuh", "#include <nccl.h>", "<nccl.h> of NCCL"),
    ("comm/nccl.hpp", "#include <mpi.h>", "<mpi.h> of MPI"),
    ("comm/local.hpp", "#include <mpi/mpi.h>", "of MPI"),
    ("comm/local.hpp", '#include "local_detail.hpp"', "included as <ctxpar/...>"),
    ("comm/local.hpp", "#include <ctxpar/comm/gone.hpp>", "does not exist"),
    ("merge/a2a.hpp", "void f() { throw; }", "the keyword throw"),
    ("merge/a2a.hpp", "const char* a = \"//\"; void f() { throw 1; }", "the keyword throw"),
    ("merge/a2a.hpp", "namespace ctxpar { }", "ctxpar::inline v3_14"),
    ("merge/a2a.hpp", "namespace ctxpar::v3_14 { }", "ctxpar::inline v3_14"),
    ("merge/a2a.hpp", "namespace ctxpar::inline v3_1 { }", "ctxpar::inline v3_14"),
    ("backend/cuda/decode.cuh", "namespace ctxpar::inline v3_15 { }", "ctxpar::inline v3_14"),
    ("extra/new.hpp", "", "belongs to no layer"),
    ("new.hpp", "", "belongs to no layer"),
]


def faults_of(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return header_rules.faults_of(root)[0]


class HeaderRules(unittest.TestCase):
    def test_a_sound_tree_has_no_faults(self):
        self.assertEqual(faults_of(SOUND), [])

    def test_every_seeded_fault_is_found_where_it_is(self):
        for name, line, sentence in FAULTS:
            with self.subTest(name=name, line=line):
                before = SOUND.get(name, "")
                faults = faults_of({**SOUND, name: before + line + "\n"})
                self.assertEqual(len(faults), 1, faults)
                self.assertIn(sentence, faults[0])
                self.assertTrue(faults[0].startswith(f"ctxpar/{name}:{before.count(chr(10)) + 1}: "), faults[0])


if __name__ == "__main__":
    unittest.main()
