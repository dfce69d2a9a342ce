#!/usr/bin/env python3
"""Prints the table of benches/figures/measured/stack.md: `unwind stack --pid` beside eu-stack.

    benches/figures/stack.py [--rounds N]

Both take turns on the same process; of each the shortest time counts, from the start of the
command to its end, and of the pause the median: in each turn a busy program tells the longest time
between the start and the end of the command in which it did not run. That this is seen is shown by
a stop of 50 ms, without which the script fails. eu-stack is asked for all threads as they are, as
`unwind` is; `--no-lines` leaves out what eu-stack does not look for. What README.md has, `unwind
stack --pid` without more, is beside eu-stack with the source lines and inlined functions that it
shows. Needs cc, python3, node, elfutils, and the right to trace.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAMS = "benches/programs"
# How long the stop that has to be seen takes, in milliseconds.
HOLD = 50
UNWIND = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "dist", "unwind")


def commands(process):
    """The contestants, the rival last."""
    return {
        "unwind": [UNWIND, "stack", "--no-lines", "--pid", str(process)],
        "no stop": [UNWIND, "stack", "--no-lines", "--no-stop", "--pid", str(process)],
        "typed": [UNWIND, "stack", "--pid", str(process)],
        # What no command takes less than, and this one before it looks at its arguments.
        "nothing": ["true"],
        "version": [UNWIND, "--version"],
        # As many frames as there are at most.
        "lines": ["eu-stack", "-s", "-i", "-n", "510", "-p", str(process)],
        "eu-stack": ["eu-stack", "-n", "510", "-p", str(process)],
    }


def seconds(command):
    """How long a command takes, which may fail at a stack."""
    start = time.perf_counter()
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def walls(process, rounds):
    """The shortest time of each contestant."""
    shortest = {}
    for _ in range(rounds):
        for name, command in commands(process).items():
            shortest[name] = min(shortest.get(name, 1e9), seconds(command))
    return shortest


def hold(process):
    """Stops a child for as long as HOLD says, and no less."""
    os.kill(process, signal.SIGSTOP)
    os.waitpid(process, os.WUNTRACED)
    time.sleep(HOLD / 1000)
    os.kill(process, signal.SIGCONT)


def longest_gap(program, start, end):
    """The longest time, in milliseconds, that the program did not run in, of those that began or
    ended between two times of the monotonic clock."""
    longest = 0
    told = 0
    while told <= end:
        line = program.stdout.readline().split()
        told = int(line[0])
        for gap in line[1:]:
            at, length = map(int, gap.split(":"))
            if at < end and at + length > start:
                longest = max(longest, length)
    return longest / 1e6


def pauses(program, rounds):
    """The median of the longest pauses by each contestant, by none and by a stop, in
    milliseconds."""
    every = {name: lambda command=command: seconds(command)
             for name, command in commands(program.pid).items()
             if name not in ("nothing", "version")}
    every["none"] = lambda: time.sleep(0.02)
    every["stop"] = lambda: hold(program.pid)
    seen = {name: [] for name in every}
    names = list(every)
    for _ in range(rounds):
        random.shuffle(names)
        for name in names:
            # The last line is written by now.
            time.sleep(0.005)
            start = time.monotonic_ns()
            every[name]()
            seen[name].append(longest_gap(program, start, time.monotonic_ns()))
    return {name: statistics.median(all_seen) for name, all_seen in seen.items()}


def started(command, ready):
    """A program that runs; with `ready` once it says so."""
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    if ready:
        program.stdout.readline()
    else:
        time.sleep(2)
    return program


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    subprocess.run(["cargo", "build", "--quiet", "--profile", "dist", "--locked", "--package",
                    "unwind-cli"], check=True)
    for tool in ["eu-stack", "node", "python3"]:
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        waiting = os.path.join(folder, "waiting")
        subprocess.run(["cc", "-O2", "-pthread", "-o", waiting, f"{PROGRAMS}/waiting.c"],
                       check=True)
        idle = "print('ready', flush=True); import time; time.sleep(1e6)"
        targets = [
            ("python3", ["python3", "-c", idle], 0.3),
            ("sleep", ["sh", "-c", "echo ready; exec sleep 1000000"], 1.0),
            ("node", ["node", "-e", "console.log('ready'); setTimeout(() => 0, 1e8)"], 0.25),
            ("500 threads", [waiting, "500"], 0.07),
            ("3,001 threads", [waiting, "3001"], 0.09),
        ]
        print("Wall time of `unwind stack --no-lines --pid`, and with `--no-stop`, of eu-stack's, "
              f"of `unwind stack --pid` and `eu-stack -s -i`, shortest of {rounds} turns; and the longest pause that a busy program has seen, median "
              "of as many.\n")
        print("|  | eu-stack, ms | unwind / eu-stack | required | `--no-stop` / eu-stack "
              "| `unwind --version` / eu-stack | `true` / eu-stack "
              "| `unwind stack --pid`, ms | / `eu-stack -s -i` |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        for name, command, required in targets:
            program = started(command, True)
            # A node that has said it still starts its threads.
            time.sleep(1)
            wall = walls(program.pid, rounds)
            program.kill()
            program.wait()
            rival = wall["eu-stack"]
            print(f"| {name} | {rival * 1000:.1f} | {wall['unwind'] / rival:.2f} | {required} | "
                  f"{wall['no stop'] / rival:.2f} | {wall['version'] / rival:.2f} | "
                  f"{wall['nothing'] / rival:.2f} | {wall['typed'] * 1000:.1f} | "
                  f"{wall['typed'] / wall['lines']:.2f} |", flush=True)
        program = started(["node", f"{PROGRAMS}/gaps.js"], False)
        pause = pauses(program, rounds)
        program.kill()
        program.wait()
        rival = pause["eu-stack"]
        print(f"| longest pause of a busy node | {rival:.2f} | {pause['unwind'] / rival:.2f} | 0.7 | "
              f"{pause['no stop'] / rival:.2f} |  |  |  |  |")
        print(f"\nWithout any of them the busy node sees a pause of {pause['none']:.2f} ms, and one of "
              f"{pause['stop']:.2f} ms when it is stopped for {HOLD} ms.")
        if pause["stop"] < HOLD:
            sys.exit("a stop was not seen")


main()
