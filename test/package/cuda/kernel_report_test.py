#!/usr/bin/env python3
"""kernel_report.py finds what it says it finds, in made-up output of the compilers."""

import unittest

import kernel_report

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{symbol}' for 'sm_90a'
ptxas info    : Function properties for {symbol}
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Function properties for helper
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 38 registers, used 0 barriers
"""
SYMBOL = "_ZN6ctxpar4v0_14cuda16move_rows_kernelILi16EEEvNS1_9move_argsE"
PTX = """.visible .entry {symbol}(
	.param .align 8 .b8 args[192]
)
{{
	{body}
	ret;
}}
"""
RIGHT = "ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];\n\tst.global.v4.u32 [%rd2], {%r1, %r2, %r3, %r4};"


def faults(stack=0, stores=0, loads=0, body=RIGHT, symbol=SYMBOL):
    kernels = kernel_report.kernels_in_log(LOG.format(symbol=symbol, stack=stack, stores=stores, loads=loads))
    held = {("90a", name): has for name, has in
            kernel_report.instructions_in_ptx(PTX.format(symbol=symbol, body=body)).items()}
    names = {symbol: kernel_report.short_name("void ctxpar::v0_1::cuda::move_rows_kernel<16>(ctxpar::v0_1::x)")}
    wanted = {start: rule for start, rule in kernel_report.RULES.items() if start == "move_rows_kernel<16>"}
    saved, kernel_report.RULES = kernel_report.RULES, wanted
    try:
        return len(kernels), kernel_report.faults_of(kernels, held, names)
    finally:
        kernel_report.RULES = saved


class Report(unittest.TestCase):
    def test_a_good_kernel_has_no_faults(self):
        self.assertEqual(faults(), (1, []))

    def test_spills_and_stacks_are_found(self):
        for values in ({"stack": 16}, {"stores": 4}, {"loads": 4}):
            self.assertIn("spills", faults(**values)[1][0])

    def test_local_memory_is_found(self):
        for use in ("ld.local.u32 %r5, [%rd3];", "st.local.v2.u32 [%rd3], {%r5, %r6};"):
            self.assertIn("holds local instructions", faults(body=f"{RIGHT}\n\t{use}")[1][0])

    def test_missing_instructions_are_found(self):
        load, store = RIGHT.split("\n\t")
        self.assertIn("holds no load16", faults(body=store)[1][0])
        self.assertIn("holds no store16", faults(body=load)[1][0])
        self.assertIn("holds no load16", faults(body=f"ld.global.nc.v2.u32 {{%r1, %r2}}, [%rd1];{store}")[1][0])

    def test_a_kernel_that_is_not_there_is_found(self):
        saved, kernel_report.RULES = kernel_report.RULES, {"other_kernel": {"mma"}}
        self.assertEqual(kernel_report.faults_of([], {}, {}), ["there is no kernel other_kernel"])
        kernel_report.RULES = saved

    def test_names_are_short(self):
        self.assertEqual(kernel_report.short_name(
            "void ctxpar::v0_1::cuda::finish_kernel<ctxpar::v0_1::small_float<unsigned short, 8, 7, true, false>, "
            "(ctxpar::v0_1::lse_base)0, (ctxpar::v0_1::lse_base)1>(ctxpar::v0_1::finish_args<int>)"),
            "finish_kernel<bf16, natural, binary>")


if __name__ == "__main__":
    unittest.main()
