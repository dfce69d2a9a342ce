#!/usr/bin/env python3
"""Prints the table of docs/figures/verify.md: stacks beside those of perf's unwinders.

    docs/verify.py [--perf PERF]... [--seconds N] [PROGRAM...]

Each program of docs/record.py is recorded once by `perf record --call-graph dwarf`, with copies of
32 KiB, and its stacks are compared by `unwind verify` with those that each perf finds in the same
bytes. Needs what docs/record.py needs, and perl.
"""

import argparse
import json
import os
import subprocess
import tempfile

from record import build

PERL = "sub f { my $n = shift; return $n < 2 ? $n : f($n - 1) + f($n - 2) } f(20) while 1"
CLASSES = ["equal", "ours_further", "ours_more", "theirs_further", "differ", "nothing"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perf", action="append")
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("programs", nargs="*")
    asked = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "--quiet", "--package", "unwind-cli"],
                   check=True)
    unwind = os.path.abspath("target/release/unwind")
    print("| program | perf | stacks | complete | equal | ours further | ours more "
          "| theirs further | differ | nothing |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        programs = build(folder)
        programs["perl"] = ["perl", "-e", PERL]
        data = os.path.join(folder, "perf.data")
        for name in asked.programs or programs:
            # What it writes at its end, as it is interrupted, is of no use.
            subprocess.run(["perf", "record", "-q", "-e", "cpu-clock", "-F", "1999", "--call-graph",
                            "dwarf,32768", "-o", data, "--", "timeout", "-s", "INT",
                            str(asked.seconds), *programs[name]], check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for perf in asked.perf or ["perf"]:
                told = subprocess.run([unwind, "verify", "--json", "--perf", perf, data],
                                      check=True, stdout=subprocess.PIPE)
                told = json.loads(told.stdout)
                [beside] = told["beside"]
                cells = [f"{beside['counts'][word]:,}" for word in CLASSES]
                if beside["left_out"]:
                    cells = ["32-bit: not compared"] + [""] * 5
                version = beside["version"].removeprefix("perf version ")
                print(f"| {name} | {version} | {told['samples']:,} | {told['complete']:,} "
                      f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
