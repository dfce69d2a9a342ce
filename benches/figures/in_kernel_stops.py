#!/usr/bin/env python3
"""Holds stacks that are walked in the kernel (`unwind record --engine bpf`) against eu-stack.

    benches/figures/in_kernel_stops.py [--stops N] [--unwind FILE] -- PROGRAM [ARGUMENT...]

The program runs for as long as it takes. Each time that a stack of it is walked it is stopped, before it
returns to user code; eu-stack then looks at the same moment. Compared are the pcs of all frames of the thread.
A stack that is deeper than a copy of it (until the tables are there) is told as cut. Where eu-stack has the
innermost frames of ours alone, as in the `_init` of a library, which has no FDE, it says nothing of the others:
these stops are told apart, and may be one in twenty.

Needs root, Linux from 6.18 on, and eu-stack (elfutils).
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from record import command_of

THREAD = re.compile(r"^TID (\d+):", re.MULTILINE)
FRAME = re.compile(r"^#\d+\s+0x([0-9a-f]+)", re.MULTILINE)
# Samples of one entry into the kernel share a stack, so the next one to compare may be some samples later.
AHEAD = 200


def state(pid):
    """The letter of the process's state; None once it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(") ", 1)[1][0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def theirs(pid):
    """The pcs that eu-stack finds, by thread."""
    done = subprocess.run(["eu-stack", "-n", "5000", "-p", str(pid)], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    _, *parts = THREAD.split(done.stdout)
    return {int(thread): [int(pc, 16) for pc in FRAME.findall(stack)]
            for thread, stack in zip(parts[::2], parts[1::2])}


def ours(unwind, data):
    """The thread and the user part of each sample, in the order of the recording."""
    done = subprocess.run([unwind, "script", "--json", "--max-stack", "5000", data], check=True,
                          text=True, stdout=subprocess.PIPE)
    samples = []
    for record in map(json.loads, done.stdout.splitlines()):
        parts = record["chain"] if record["type"] == "sample" else []
        user = [int(pc, 16) for part in parts if part["context"] == "user" for pc in part["ips"]]
        samples += [(record["tid"], user)] if user else []
    return samples


def is_start(stacks_of, thread, stack):
    """Whether a stack is that of the thread, or the innermost frames of it."""
    return stacks_of.get(thread, [])[:len(stack)] == stack


def is_longer(stacks_of, thread, stack):
    """Whether eu-stack has the innermost frames of a stack, and ends."""
    theirs_of = stacks_of.get(thread, [])
    return bool(theirs_of) and stack[:len(theirs_of)] == theirs_of


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--unwind")
    parser.add_argument("program", nargs="+")
    asked = parser.parse_args()
    unwind = command_of(asked.unwind)
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data")
        program = subprocess.Popen(asked.program, stdout=subprocess.DEVNULL)
        command = [unwind, "record", "--engine", "bpf", "--stop-each", "--json", "-F", "499", "-N",
                   "-o", data, "--pid", str(program.pid)]
        recorder = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        found = []
        while len(found) < asked.stops and recorder.poll() is None:
            now = state(program.pid)
            if now in (None, "Z"):
                break
            if now == "T":
                found.append(theirs(program.pid))
                os.kill(program.pid, signal.SIGCONT)
            else:
                time.sleep(0.0005)
        recorder.send_signal(signal.SIGINT)
        while recorder.poll() is None:
            if state(program.pid) == "T":
                os.kill(program.pid, signal.SIGCONT)
            time.sleep(0.01)
        program.kill()
        ledger, told = recorder.communicate()
        if "cannot be walked in the kernel" in told:
            print(f"skipped: {told.strip()}")
            return
        if recorder.returncode:
            sys.exit(told)
        samples = ours(unwind, data)
    at = equal = cut = longer = frames = 0
    differing = []
    for stacks_of in found:
        ahead = range(at, min(at + AHEAD, len(samples)))
        place = next((it for it in ahead if is_start(stacks_of, *samples[it])), None)
        if place is None:
            place = next((it for it in ahead if is_longer(stacks_of, *samples[it])), None)
            if place is not None:
                at, longer = place, longer + 1
                continue
            differing.append((stacks_of, samples[at:at + 3]))
            continue
        thread, stack = samples[place]
        is_whole = len(stack) == len(stacks_of[thread])
        at, equal, cut, frames = place, equal + is_whole, cut + (not is_whole), frames + len(stack)
    walks = json.loads(ledger)["walks"]
    print(f"{asked.program[0]}: {len(found)} stops, {equal} equal, {cut} cut ({frames} frames), "
          f"{longer} where eu-stack ends first, {len(differing)} differ; "
          f"walked in the kernel {walks['deferred']}, copied {walks['copied']}")
    for stacks_of, near in differing[:3]:
        theirs_and_ours = [("eu-stack", it) for it in stacks_of.items()] + [("ours", it) for it in near]
        for name, (thread, stack) in theirs_and_ours:
            print(f"  {name}, {thread}:", " ".join(f"{pc:x}" for pc in stack))
    sys.exit(bool(differing) or longer * 20 > len(found))


if __name__ == "__main__":
    main()
