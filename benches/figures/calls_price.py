#!/usr/bin/env python3
"""Prints benches/figures/measured/calls.md: what it takes to read the calls of interpreters in recordings.

    benches/figures/calls_price.py [--turns N] [--rate HZ] [--unwind FILE] [--py-spy FILE]

As in price.py, processes of the same program share one CPU, each with its own recorder on another CPU, one
with none; in each turn another process has another recorder. Of a program the CPU time for a piece of its
work is compared, of a recorder its CPU time for a second of recording. `native` is `unwind record --native`,
which reads no calls; `perf` is the engine that copies stacks. py-spy stops a program to look at it, and
shows calls without native frames; without --py-spy or one in the PATH it is left out.

Needs python3, node, two CPUs, root, and Linux from 6.18 on.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

import price
import record

# Pieces of work of some 10 to 20 ms.
PROGRAMS = {
    "python3": ["python3", "benches/programs/calls.py", "1000000000", "20"],
    "node": ["node", "--detailed-line-info", "benches/programs/calls.js", "1000000000", "400"],
    "node, without `--detailed-line-info`": ["node", "benches/programs/calls.js", "1000000000", "400"],
}
WARM = 6.0


def recorders(asked, name, folder):
    """The commands of recorders of a program, to which the id of a process is added."""
    own = [asked.unwind, "record", "--json", "-F", str(asked.rate)]
    found = {
        "unwind": [*own, "--engine", "bpf", "-o", os.path.join(folder, "unwind.data"), "--pid"],
        "native": [*own, "--engine", "bpf", "--native", "-o", os.path.join(folder, "native.data"), "--pid"],
        "perf": [*own, "--engine", "perf", "-o", os.path.join(folder, "perf.data"), "--pid"],
    }
    if name == "python3" and asked.py_spy:
        del found["perf"]
        found["py-spy"] = [asked.py_spy, "record", "--rate", str(asked.rate), "--format", "raw", "--output",
                           os.path.join(folder, "spy.txt"), "--pid"]
    return found


def ended(process):
    """What a recorder that was told to end has told, and its CPU time in seconds."""
    told = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, -signal.SIGINT):
        sys.exit(f"{process.args}: {process.returncode}")
    return told, used.ru_utime + used.ru_stime


def turns_of(asked, command, commands, folder):
    """For each turn by contestant: CPU time a piece, CPU time of its recorder a second, and shares."""
    command = [os.path.abspath(word) if os.path.exists(word) else word for word in command]
    contestants = ["alone", *commands]
    with contextlib.ExitStack() as stack:
        programs = [price.Running(command, folder) for _ in contestants]
        for program in programs:
            stack.callback(program.end)
        price.run_for(WARM, programs)
        for turn in range(asked.turns):
            at = turn % len(contestants)
            names = contestants[at:] + contestants[:at]
            started = {}
            for name, program in zip(names, programs):
                if name in commands:
                    started[name] = subprocess.Popen(
                        [*commands[name], str(program.process.pid)], stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL, preexec_fn=price.on_cpu(1))
            price.run_for(price.START, programs)
            for program in programs:
                program.begin()
            price.run_for(price.COUNTED, programs)
            pieces = {name: program.seconds() for name, program in zip(names, programs)}
            for process in started.values():
                process.send_signal(signal.SIGINT)
            told = {name: ended(process) for name, process in started.items()}
            yield pieces, told


def shares(told):
    """Complete stacks of all, from the last lines of recordings."""
    ledgers = [json.loads(text.splitlines()[-1]) for text in told]
    written = sum(ledger["written"] for ledger in ledgers)
    return written, sum(ledger["complete"] for ledger in ledgers)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--rate", type=int, default=999)
    parser.add_argument("--unwind")
    parser.add_argument("--py-spy", default=shutil.which("py-spy"))
    asked = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("needs two CPUs")
    asked.unwind = record.command_of(asked.unwind)
    print(f"CPU time of a program for the same work, recorded {asked.rate} times a second, beside alone: the mean, "
          "and where it is in 95 of 100 cases. CPU time of the recorder, with its start and its end, for each "
          f"second of recording: the median of {asked.turns}.\n")
    print("| program | recorder | program / alone | recorder, ms a second | samples | complete |")
    print("|---|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, command in PROGRAMS.items():
            commands = recorders(asked, name, folder)
            turns = list(turns_of(asked, command, commands, folder))
            price.CONTESTANTS = ("alone", *commands)
            for recorder in commands:
                ratio = record.mean_of(price.ratios([pieces for pieces, _ in turns], recorder, "alone"))
                cpu = statistics.median(told[recorder][1] for _, told in turns)
                cpu = 1000 * cpu / (price.START + price.COUNTED)
                seen = ["", ""]
                if recorder != "py-spy":
                    written, complete = shares(told[recorder][0] for _, told in turns)
                    seen = [f"{written:,}", f"{100 * complete / written:.1f} %"]
                print(f"| {name} | {recorder} | {ratio} | {cpu:.0f} | {' | '.join(seen)} |", flush=True)


if __name__ == "__main__":
    main()
