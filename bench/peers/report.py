"""The result of peers.py as a Markdown table."""


def faster(line):
    if line["name"] == "ctxpar" or "ctxpar_is_faster" not in line:
        return ""
    return f"{line['ctxpar_is_faster']:.2f}"


def case_lines(case):
    what = f"{case['tokens']:,} x {case['batch']}"
    if not case["rounds"]:
        yield f"| {what} | no round was quiet | | | | | | | |"
    ordered = sorted(case["summary"].values(), key=lambda line: (line["name"] != "ctxpar", line["seconds"]))
    for line in ordered:
        rate = line["bytes_a_step"] / line["seconds"] / 1e9
        yield (
            f"| {what} | {line['name']} | {line['type']} | {line['seconds'] * 1e3:.2f} | {rate:.1f} "
            f"| {line['of_ceiling']:.2f} | {faster(line)} | {line['error']:.1e} "
            f"| {line['worst_head']:.1e} |"
        )
    for key, reason in case["failures"].items():
        yield f"| {what} | {key.replace(':', ' | ')} | FAILED: {reason} | | | | | |"


def markdown(result):
    """All cases, then what was left out and why."""
    lines = [
        f"GQA decode of one token, 64 query and 8 KV heads of 128; {result['threads']} threads on CPUs "
        f"{result['cpus']}; the last-level cache reports {result['last_level_cache'] >> 20} MiB.",
        "",
        "| tokens x requests | program | cache | ms a step | GB/s | of ceiling | ctxpar is faster by "
        "| relative L2 error | of the worst head |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in result["cases"]:
        lines += case_lines(case)
    lines.append("")
    for case in result["cases"]:
        ceilings = ", ".join(f"{one['all_threads'] / 1e9:.1f}" for one in case["rounds"])
        scalings = ", ".join(f"{one['scaling']:.2f}" for one in case["rounds"])
        lines.append(
            f"- {case['tokens']:,} x {case['batch']}: steps go round {case['caches']} caches, "
            f"{case['bytes_in_turn'] >> 20:,} MiB; ceiling {ceilings or 'unknown'} GB/s, {scalings or 'unknown'} times "
            f"what one thread reads; {case['noisy_rounds']} rounds were not quiet; an answer without the newest token "
            f"would be {case['without_newest']:.2f} off"
        )
    allowed = ", ".join(f"{key.replace(':', ' ')} {bound:.0e}" for key, bound in result["bounds"].items())
    lines.append(f"- relative L2 errors that are allowed: {allowed}")
    lines += [f"- {shape} was left out: it {reason}" for shape, reason in result["skipped"].items()]
    lines += [f"- {name} was not had: {reason}" for name, reason in result["absent"].items()]
    return "\n".join(lines) + "\n"
