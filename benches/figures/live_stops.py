#!/usr/bin/env python3
"""Prints the table of benches/figures/measured/stops.md: programs of many toolchains, stopped at random.

    benches/figures/live_stops.py [--unwind FILE] [--stops N] [--seed N] [--seconds N] [PROGRAM...]

Each program runs and is stopped by SIGSTOP after random times. Its stacks by `unwind stack` are held against those of
eu-stack, and where these differ against those of gdb. It is then recorded at 999 Hz for some seconds by each engine
of `unwind record`. Programs whose tools are not installed are left out, and told. What differs is written to a file.

Needs root, eu-stack (elfutils), gdb, Linux from 6.18 on for the engine `bpf`, and what the programs are made of.
"""

import argparse
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from in_kernel_kinds import ledger, share
from in_kernel_stops import state, theirs
from record import command_of

SOURCES = os.path.abspath("benches/programs/descends")
TESTS = os.path.abspath("unwind-cli/tests/programs")
OPENSSL = ("rsa2048", "rsa4096", "dsa2048", "ecdsap256", "ecdhx25519")
# Programs of the tests that run or wait until they are ended, one of them for a time.
WAITING = ("bare_code", "churn", "clock", "deep_lines", "expressions", "handler", "in_flight", "joined", "naps",
           "nested", "signals", "switches", "threads", "twenty_threads", "waits")
SECONDS = {"nested": ["600"]}
GDB = """
for thread in gdb.selected_inferior().threads():
    thread.switch()
    print("TID", thread.ptid[1])
    frame, count = gdb.newest_frame(), 0
    while frame and count < 5000:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            print("PC", hex(frame.pc()))
        count += 1
        try:
            frame = frame.older()
        except gdb.error:
            break
"""
# What a stack is, beside the others'.
KINDS = ("equal", "theirs lack frames", "ours lacks", "other frames", "complete and lacks")


class Programs:
    """How each is started, made in a folder when it is asked for."""

    def __init__(self, folder):
        self.folder = folder
        ocaml = subprocess.run("ocamlopt -version", shell=True, check=False, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL).stdout.strip()
        linked = {f"C, {linker}'s lazy PLT": self.linked(linker) for linker in ("bfd", "lld", "mold")}
        self.all = {
            "C": self.made("descends.c", "gcc", "-O2"),
            "C, 32-bit": self.made("descends.c", "gcc", "-O2", "-m32"),
            "C, static": self.made("descends.c", "gcc", "-O2", "-static"),
            **linked,
            "C++": self.made("descends.cc", "g++", "-O2"),
            "C++, -fsanitize=address": self.made("descends.cc", "g++", "-O1", "-fsanitize=address"),
            "C++, coroutines": self.made("coroutines.cc", "g++", "-O2", "-std=c++20"),
            "Boost's coroutines": self.made("boost_coroutines.cc", "g++", "-O2", after=["-lboost_context"]),
            "swapcontext": self.made("contexts.c", "gcc", "-O2"),
            "GMP": self.made("multiplies.c", "gcc", "-O2", after=["-lgmp"]),
            "Ada": self.made("descends.adb", "gnatmake", "-q", "-O2"),
            "D": self.made("descends.d", "gdc", "-O2"),
            "Fortran": self.made("descends.f90", "gfortran", "-O2"),
            "Go": self.made("descends.go", "go", "build"),
            "Go by gcc": self.made("descends.go", "gccgo-12", "-O2"),
            "Nim": self.made("descends.nim", "nim", "c", "--hints:off", "-d:release",
                             f"--nimcache:{folder}/nim", out="-o:"),
            f"OCaml {ocaml}": self.made("descends.ml", "ocamlopt"),
            f"OCaml {ocaml}, effects": self.made("effects.ml", "ocamlopt"),
            "Pascal": self.made("descends.pas", "fpc", "-v0", "-O2", f"-FU{folder}", out="-o"),
            "Rust": self.made("descends.rs", "rustc", "-O"),
            "Zig": self.made("descends.zig", "python3", "-m", "ziglang", "build-exe", "-OReleaseFast",
                             out="-femit-bin="),
            "LuaJIT": lambda: ["luajit", f"{SOURCES}/descends.lua"],
            "greenlet": lambda: ["python3", f"{SOURCES}/greenlets.py"],
            **{f"openssl speed {name}": self.speed(name) for name in OPENSSL},
            "tests: epilogues.c": self.made(f"{TESTS}/epilogues.c", "gcc", "-O2", run=["for-ever"]),
            **{f"tests: {name}.c": self.made(f"{TESTS}/{name}.c", "gcc", "-O2", "-pthread", run=SECONDS.get(name, ()))
               for name in WAITING},
            "tests: busy.go": self.made(f"{TESTS}/busy.go", "go", "build"),
            "tests: busy.py": lambda: ["python3", f"{TESTS}/busy.py"],
            "tests: busy.js": lambda: ["node", f"{TESTS}/busy.js"],
        }

    def made(self, source, *command, out="-o", after=(), run=()):
        """A program that a compiler makes: its name is what `out` begins or what follows."""
        def make():
            program = os.path.join(self.folder, "-".join((*command[:1], os.path.basename(source))) + ".out")
            named = [out + program] if out != "-o" or command[0] == "fpc" else [out, program]
            # Some compilers write beside the source.
            copy = os.path.join(self.folder, os.path.basename(source))
            with open(os.path.join(SOURCES, source)) as file, open(copy, "w") as to:
                to.write(file.read())
            subprocess.run([*command, *named, copy, *after], check=True, cwd=self.folder, stdout=sys.stderr,
                           env={**os.environ, "GO111MODULE": "off"})
            return [program, *run]
        return make

    def linked(self, linker):
        return self.made("descends.c", "gcc", "-O2", f"-fuse-ld={linker}", "-Wl,-z,lazy")

    @staticmethod
    def speed(name):
        return lambda: ["openssl", "speed", "-seconds", "600", name]


def ours(unwind, pid):
    """By thread: the pcs, and whether they are all."""
    done = subprocess.run([unwind, "stack", "--json", "--no-lines", "--max-frames", "5000", "--pid", str(pid)],
                          check=False, text=True, stdout=subprocess.PIPE)
    return {thread["thread"]: ([int(frame["pc"], 16) for frame in thread["frames"] if frame["found_by"] != "inlined"],
                               thread["end"]["complete"])
            for thread in json.loads(done.stdout)["threads"] if thread.get("end")}


def gdbs(pid):
    """The pcs that gdb finds, by thread."""
    done = subprocess.run(["gdb", "-nx", "-q", "-batch", "-ex", "set backtrace past-main on", "-p", str(pid),
                           "-ex", f"python exec({GDB!r})"], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found = {}
    for word, value in re.findall(r"^(TID|PC) (\w+)$", done.stdout, re.MULTILINE):
        if word == "TID":
            thread = found.setdefault(int(value), [])
        else:
            thread.append(int(value, 16))
    return found


def code_of(pid):
    """Where the process has code."""
    with open(f"/proc/{pid}/maps") as maps:
        found = re.findall(r"^(\w+)-(\w+) ..x", maps.read(), re.MULTILINE)
    return [(int(start, 16), int(end, 16)) for start, end in found]


def in_code(code, stack):
    """A stack up to the first word that is no address of code: that is no frame, nor is what is above it."""
    lost = (at for at, pc in enumerate(stack) if not any(start <= pc < end for start, end in code))
    return stack[:next(lost, len(stack))]


def has_all(stack, of):
    """Whether the frames of another stack are among those of this one, in their order."""
    rest = iter(stack)
    return all(any(pc == it for it in rest) for pc in of)


def kind(stack, complete, others):
    """How a stack stands beside those of the other programs."""
    if stack in others:
        return "equal"
    if all(has_all(stack, other) for other in others):
        return "theirs lack frames"
    if complete:
        return "complete and lacks"
    return "ours lacks" if any(has_all(other, stack) for other in others) else "other frames"


def stop(program, rng):
    """Whether the program could be stopped after a while."""
    time.sleep(rng.uniform(0.001, 0.03))
    program.send_signal(signal.SIGSTOP)
    while (now := state(program.pid)) not in ("T", "Z", None):
        time.sleep(0.0005)
    return now == "T"


def stops(asked, name, command, differing):
    """How many stacks of a program are of which kind."""
    rng, counts = random.Random(asked.seed), collections.Counter()
    with tempfile.TemporaryFile() as out:
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)
        time.sleep(0.3)
        try:
            for number in range(asked.stops):
                if not stop(program, rng):
                    sys.exit(f"{name} has ended")
                found, elfutils, by_gdb = ours(asked.unwind, program.pid), theirs(program.pid), None
                code = code_of(program.pid)
                for thread, (stack, complete) in found.items():
                    others = [in_code(code, elfutils.get(thread, []))]
                    if stack != others[0]:
                        by_gdb = gdbs(program.pid) if by_gdb is None else by_gdb
                        others.append(in_code(code, by_gdb.get(thread, [])))
                    is_of = kind(stack, complete, others)
                    counts.update(["stacks", is_of] + ["complete"] * complete)
                    if is_of in KINDS[2:]:
                        stacks = {who: [hex(pc) for pc in pcs]
                                  for who, pcs in zip(("ours", "eu-stack", "gdb"), (stack, *others))}
                        told = {"program": name, "stop": number, "kind": is_of, "complete": complete, **stacks}
                        differing.write(json.dumps(told) + "\n")
                program.send_signal(signal.SIGCONT)
        finally:
            program.kill()
            program.wait()
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unwind")
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=999)
    parser.add_argument("--differing", default="/dev/null", help="a file for the stacks that differ, JSON by line")
    parser.add_argument("programs", nargs="*")
    asked = parser.parse_args()
    asked.unwind = command_of(asked.unwind)
    print(f"| program | stacks | complete | {' | '.join(KINDS)} "
          "| record, `bpf` | not complete | record, `perf` | not complete |\n"
          f"|---|{'--:|' * (2 + len(KINDS))}--:|---|--:|---|")
    with tempfile.TemporaryDirectory() as folder, open(asked.differing, "a") as differing:
        for name, make in Programs(folder).all.items():
            if asked.programs and name not in asked.programs:
                continue
            try:
                command = make()
                counts = stops(asked, name, command, differing)
            except (FileNotFoundError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            cells = [f"{counts[of]:,}" for of in ("stacks", "complete", *KINDS)]
            for engine in ("bpf", "perf"):
                cells += share(ledger(asked, engine, command, folder))
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
