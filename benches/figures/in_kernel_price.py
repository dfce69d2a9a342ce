#!/usr/bin/env python3
"""Prints what a sample takes in the kernel where its stack is walked there, by the kernel's own clock.

    benches/figures/in_kernel_price.py [--unwind FILE]

A program computes in a number of frames while it is recorded (`unwind record --engine bpf`, 4,999 Hz); the kernel
counts how often the program that takes samples ran, and for how long (kernel.bpf_stats_enabled). The price of
a frame is the difference between depths. Walks that are made later, in the thread, are not in it.

Needs root, Linux from 6.18 on, and gcc.
"""

import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from record import command_of

DEPTHS = (0, 20, 60, 200)
SECONDS = "2"
STATS = "/proc/sys/kernel/bpf_stats_enabled"
PERF_EVENT = "prog_type:\t7\n"


def counts(pid):
    """Nanoseconds and runs of the program, and how many instructions its verifier has looked at."""
    for name in glob.glob(f"/proc/{pid}/fdinfo/*"):
        try:
            with open(name) as file:
                text = file.read()
        except OSError:
            continue
        if PERF_EVENT in text:
            return [int(re.search(rf"{field}:\s*(\d+)", text)[1])
                    for field in ("run_time_ns", "run_cnt", "verified_insns")]
    return None


def measured(unwind, program, depth, folder):
    """The same at the end of a recording, and its ledger."""
    command = [unwind, "record", "--engine", "bpf", "--json", "-F", "4999", "-o",
               os.path.join(folder, "perf.data"), "--", program, str(depth), SECONDS]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as recorder:
        last = None
        while recorder.poll() is None:
            last = counts(recorder.pid) or last
            time.sleep(0.05)
        ledger = json.loads(recorder.stdout.read())
    if recorder.returncode or last is None:
        sys.exit(f"{command}: {recorder.returncode}")
    return last, ledger


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unwind")
    unwind = command_of(parser.parse_args().unwind)
    with open(STATS) as file:
        before = file.read()
    print("| frames | samples | walked at once | µs a sample | ns a frame more |\n|--:|--:|--:|--:|--:|")
    try:
        with open(STATS, "w") as file:
            file.write("1")
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "depths")
            subprocess.run(["gcc", "-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls",
                            "benches/programs/depths.c", "-o", program], check=True)
            first = None
            for depth in DEPTHS:
                (ns, runs, instructions), ledger = measured(unwind, program, depth, folder)
                each = ns / runs
                first = first or each
                more = f"{(each - first) / depth:.0f}" if depth else ""
                print(f"| {depth + 4} | {ledger['written']:,} | {ledger['walks']['at_once']:,} "
                      f"| {each / 1000:.1f} | {more} |")
    finally:
        with open(STATS, "w") as file:
            file.write(before)
    print(f"\nThe kernel's verifier looked at {instructions:,} instructions.")


if __name__ == "__main__":
    main()
