#!/usr/bin/env python3
"""Kills recorders at random moments, and prints how much of each recording can be read.

    benches/figures/killed.py [--times N] [--seconds S] [--engine NAME] [--unwind FILE]

A process is busy for some seconds, recorded by `unwind record --pid`, which is killed (SIGKILL) at a random
moment of the last second. The samples that `unwind report` reads are compared with the CPU time that the process
had used a second before. Two recorders run at a time, each of a process of its own. With `--engine bpf` it also prints
how many BPF programs of recorders the kernel has at the end.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from record import command_of

RATE = 999


def cpu_seconds(process):
    """The CPU time of a process."""
    with open(f"/proc/{process}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9


def programs():
    """The BPF programs of recorders that the kernel has, each of which has one of this name."""
    with open("/proc/kallsyms", encoding="ascii", errors="replace") as symbols:
        return sum(line.endswith("_on_exec\t[bpf]\n") for line in symbols)


def once(unwind, engine, seconds, folder, number):
    """The samples that were read, those that were due, and whether the end is told to be missing."""
    data = os.path.join(folder, f"{number}.data")
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy:
        command = [unwind, "record", "--engine", engine, "-o", data, "-F", str(RATE), "--pid", str(busy.pid)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as recorder:
            time.sleep(1)
            start = cpu_seconds(busy.pid)
            time.sleep(seconds + random.random())
            due = (cpu_seconds(busy.pid) - start) * RATE
            time.sleep(1)
            recorder.send_signal(signal.SIGKILL)
        busy.kill()
    report = subprocess.run([unwind, "report", data], capture_output=True, text=True, check=False)
    found = re.search(r"^([0-9]+) samples:", report.stdout, re.MULTILINE)
    os.remove(data)
    return (int(found[1]) if found else 0), due, "could finish the file" in report.stderr


def main():
    """Prints a line of the shares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--engine", default="perf", choices=["perf", "bpf"])
    parser.add_argument("--unwind")
    asked = parser.parse_args()
    asked.unwind = command_of(asked.unwind)
    before = programs()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(once, asked.unwind, asked.engine, asked.seconds, folder, number)
                for number in range(asked.times)]
        results = [run.result() for run in runs]
    # A timer that is late takes one sample for several.
    shares = [found / due for found, due, _ in results]
    lacking = sum(share < 0.98 for share in shares)
    told = sum(is_told for _, _, is_told in results)
    print(f"{len(shares)} recorders killed: {len(shares) - lacking} with all samples older than a second, "
          f"the least {100 * min(shares):.1f} % of these; {told} are told to lack their end")
    left = 0
    if asked.engine == "bpf":
        time.sleep(1)
        left = max(programs() - before, 0)
        print(f"{left} programs of these recorders in the kernel")
    sys.exit(1 if lacking or left else 0)


if __name__ == "__main__":
    main()
