"""Holds what `unwind record --engine module` says, and what `unwind report` and perf show, against what is known of the
victim."""

import json
import re
import subprocess
import tempfile

CLASSES = ["complete", "kernel_only", "unmatched", "unchecked", "damaged", "dropped"]

# From the outermost function on; of what the C library has below, some has no name. While it returns there are fewer steps.
KNOWN = re.compile(r"(main|thread);work;rounds((;step){12};varying(;leaf)?|(;step){1,12})[; ](?!step|varying|leaf)")
# Of levels.py, which calls itself by functions of C.
EVALUATOR = "_PyEval_EvalFrameDefault"
PYTHON = re.compile(r"_start;__libc_start_main[^;]*;[^;]+;Py_BytesMain;")
PART = re.compile(r"[; ](step|varying|leaf)[; ]")
# What is shown of a stack that ends in the victim's innermost function: its table was awaited, or the stack was not walked.
ENDED = re.compile(r"\[incomplete: ([a-z-]+)\];[^;]+;(step|varying|leaf)[; ](?!step|varying|leaf|rounds)")
REASONS = ("table-awaited", "unmatched", "thread-ended", "executed-another")


def is_known(line):
    """Whether a folded stack has the known chain."""
    if EVALUATOR in line:
        return PYTHON.search(line) and line.count(EVALUATOR) == 12
    return KNOWN.search(line)


def is_wrong(line):
    """Whether a folded stack cannot be, nor says where it ends for want of a table."""
    if EVALUATOR in line:
        return "[incomplete" not in line and (not PYTHON.search(line) or line.count(EVALUATOR) > 12)
    return PART.search(line) and not KNOWN.search(line) and reason(line) not in REASONS


def reason(line):
    """Why a folded stack ends in the victim's innermost function, if it does."""
    ended = ENDED.search(line)
    return ended and ended[1]


def count(lines):
    """How many samples there are in lines of folded stacks."""
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines)


def by_perf(data, programs):
    """How many samples perf finds in a recording, and how many of the known chain."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        command = ["perf", "script", "-i", file.name, "--symfs", programs, "-F", "tid,ip,sym"]
        told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if told.returncode:
        return 0, 0, told.stderr
    samples = [[line.split()[1] for line in sample.splitlines()[1:]] for sample in told.stdout.split("\n\n") if sample.strip()]
    folded = (";".join(reversed(sample)) + " 1" for sample in samples)
    return len(samples), sum(bool(is_known(line)) for line in folded), told.stderr


def tally(files, programs):
    """What there is to say of each recording, and what is not as it should be."""
    names = [name[: -len(".json")] for name in files if name.endswith(".json")]
    text, faults = [], []
    for name in names:
        ledger = json.loads(files[f"{name}.json"])
        lines = files.get(f"{name}.folded", b"").decode().splitlines()
        sum_of = sum(ledger[kind] for kind in CLASSES) + sum(ledger["incomplete"].values())
        known = count(line for line in lines if is_known(line) and "[incomplete" not in line)
        wrong = [line for line in lines if is_wrong(line)]
        awaited = count(line for line in lines if reason(line) == "table-awaited")
        text.append(f"{name}: {ledger['written']} samples, {ledger['complete']} complete, {ledger['incomplete']}, unmatched "
                    f"{ledger['unmatched']}, lost {ledger['lost']}, walks {ledger['walks']}; {known} of the known chain, "
                    f"{awaited} that end in it, {count(wrong)} wrong")
        if sum_of != ledger["written"]:
            faults.append(f"{name}: the classes come to {sum_of}")
        if known < 30 or wrong:
            faults.append(f"{name}: {known} of the known chain, {count(wrong)} wrong: {wrong[:3]}")
        # Tables come before a process that runs is sampled, and soon after a file is mapped; the whole system is sampled while
        # there is much else to look at.
        if awaited > {"process": 0, "system": awaited}.get(name, known):
            faults.append(f"{name}: {awaited} stacks end where a table was awaited")
        # It does not find the files of Python.
        if name == "python":
            continue
        samples, by_name, said = by_perf(files.get(name, b""), programs)
        text.append(f"    perf: {samples} samples, {by_name} of the known chain {said[:200]}")
        if samples < ledger["written"] or by_name < known * 0.9:
            faults.append(f"{name}: perf finds {samples} samples, {by_name} of the known chain: {said[:200]}")
    return text, faults
