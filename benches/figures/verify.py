#!/usr/bin/env python3
"""Prints the tables of benches/figures/measured/verify.md: stacks beside those of other unwinders.

    benches/figures/verify.py [--perf PERF]... [--seconds N] [--show] [--unwind FILE] [PROGRAM...]

Each program of benches/figures/record.py is recorded once by `perf record --call-graph dwarf`, with copies of
32 KiB, and its stacks are compared by `unwind verify` with those that each perf finds in the same
bytes, and by benches/figures/stops.py with those that elfutils' libdw finds in them by all registers; --show
prints some stacks of each kind on standard error. Programs with frame pointers are recorded by
`unwind record --uretprobes`, and their stacks compared with the kernel's chains. Needs what
benches/figures/record.py needs, perl, and libdw-dev. --unwind takes a command that is there, not that of this
tree.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import stops
from record import PROGRAMS, build, command_of

PERL = "sub f { my $n = shift; return $n < 2 ? $n : f($n - 1) + f($n - 2) } f(20) for 1 .. 400"
CLASSES = ["equal", "ours_further", "ours_more", "theirs_further", "differ", "nothing"]
RATE = "2999"
LIBDW = """
Beside elfutils' libdw (eu-stack's) with all registers, over the same bytes, where it is told of all
mapped files. What comes after a place where libdw guesses or ends early tells nothing, so these stacks
stand apart. It guesses by the frame pointer where call frame information does not tell of the code, as
that of a compiler at run time. It ends early for want of a register where a function was interrupted
while it left: the register has its caller's value again, but the table says that it is still saved, in
bytes below the stack pointer, which are not copied. Equal, not whole: libdw does not take the loader's
first function for the outermost, or `unwind` says that callers may be missing. Led astray it is in 32-bit
code whose table is wrong: it has an address of no code, or a word below the stack pointer.
"""
KERNEL = """
Beside the kernel's chains, in programs with frame pointers. The kernel leaves out the caller of a function
that was interrupted before it had set its own frame pointer, or has none (ours more; ours further if that
was the last). The C library has none where programs start.
"""
JUDGED = """
Who is right where they differ: libunwind (perf 6.1) takes stale words for return addresses, or ends; libdw
and `unwind` agree there. perf's libdw does not find the file of node's and rustc's code in most samples,
and gives wrong frames where it loses it; told of all files it has no other frame than `unwind` but where it
guesses. In Go it continues from `runtime.mcall`, which never returns, to a stale word, and so do the kernel's
chains to the goroutine that a thread ran before; from where a thread starts they continue by the frame
pointer that it began with, which is another thread's. Stacks of Go that are not whole were sampled on the
stack of their thread, and only the kernel can read the goroutine's. In `bn_mul_mont` of node the call
frame information is an expression that no row can say, so that the walk ends there, as `misaligned`. perf
takes 32-bit stacks for those of 64 bits, so that nothing can be said of these.
"""


def record(command, program, asked, folder):
    """Records a program, which is interrupted if it runs longer."""
    program = [os.path.abspath(word) if os.path.exists(word) else word for word in program]
    # What it writes at its end, as it is interrupted, is of no use.
    subprocess.run([*command, "--", "timeout", "-s", "INT", str(asked.seconds), *program],
                   check=False, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def verified(unwind, data, *options):
    told = subprocess.run([unwind, "verify", "--json", *options, data], check=True,
                          stdout=subprocess.PIPE)
    return json.loads(told.stdout)


def perf_row(name, told):
    """The row of a program beside a perf."""
    [beside] = told["beside"]
    cells = [f"{beside['counts'][word]:,}" for word in CLASSES]
    if beside["left_out"]:
        cells = ["32-bit: not compared"] + [""] * 5
    version = beside["version"].removeprefix("perf version ")
    return (f"| {name} | {version} | {told['samples']:,} | {told['complete']:,} "
            f"| {' | '.join(cells)} |")


def libdw_row(name, counts):
    """The row of a program beside libdw. What libdw says after a guess, or before it ends early,
    tells nothing."""
    unread = no_register = guessed = 0
    against = {True: 0, False: 0}
    ended = {True: 0, False: 0}
    for key, count in counts.items():
        if not isinstance(key, tuple):
            continue
        kind, is_complete, is_whole, is_guess = key
        if kind == "equal":
            ended[is_complete and is_whole] += count
        elif is_guess:
            guessed += count
        elif kind == "ours has more" and not is_whole:
            unread += count
        elif kind == "ours has more":
            no_register += count
        else:
            against[is_complete] += count
    total = sum(counts.values())
    cells = (total, ended[True], ended[False], unread, no_register, guessed, counts["astray"],
             counts["too deep"], counts["no file"], against[True], against[False])
    return f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |"


def with_frame_pointers(folder):
    """Programs whose code keeps frame pointers: their command lines, by name."""
    flags = ["-O2", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer",
             "-fno-optimize-sibling-calls"]
    framed, recursion = (os.path.join(folder, name) for name in ("framed", "allfp"))
    subprocess.run(["gcc", *flags, "-DROUNDS=2000000", "-static", "-nostdlib", "-o", framed,
                    "unwind-cli/tests/programs/framed.c"], check=True)
    subprocess.run(["gcc", *flags, "-DOWN_WORK", "-o", recursion, f"{PROGRAMS}/recursion.c"],
                   check=True)
    return {"C without a C library": [framed], "C": [recursion, "45000"],
            "Go": [os.path.join(folder, "go"), "9000"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perf", action="append")
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--unwind")
    parser.add_argument("programs", nargs="*")
    asked = parser.parse_args()
    unwind = command_of(asked.unwind)
    print("| program | perf | stacks | complete | equal | ours further | ours more "
          "| theirs further | differ | nothing |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        programs = build(folder)
        programs["perl"] = ["perl", "-e", PERL]
        reference = stops.build(folder)
        data = os.path.join(folder, "perf.data")
        perf = ["perf", "record", "-q", "-e", "cpu-clock", "-F", RATE, "--call-graph",
                "dwarf,32768", "-o", data]
        libdw = []
        for name in asked.programs or programs:
            record(perf, programs[name], asked, folder)
            for beside in asked.perf or ["perf"]:
                print(perf_row(name, verified(unwind, data, "--perf", beside)), flush=True)
            if reference:
                counts, shown = stops.compare(reference, unwind, data, folder)
                libdw.append(libdw_row(name, counts))
                if asked.show:
                    print(f"{name}\n{shown}", file=sys.stderr, flush=True)
        print(LIBDW)
        print("| program | stacks | equal and whole | equal, not whole | libdw ends early: no bytes "
              "| libdw ends early: no register | libdw guesses | libdw led astray "
              "| over 512 frames | no file is mapped yet "
              "| libdw has more or others, whole here | the same, not whole here |")
        print("|---|" + "--:|" * 11)
        print("\n".join(libdw))
        print(KERNEL)
        print("| program | stacks | complete | equal | ours further | ours more | theirs further "
              "| differ | nothing |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        ours = [unwind, "record", "-F", RATE, "--keep-stacks", "--uretprobes", "-o", data]
        for name, program in with_frame_pointers(folder).items():
            record(ours, program, asked, folder)
            told = verified(unwind, data, "--no-perf")
            [beside] = told["beside"]
            cells = " | ".join(f"{beside['counts'][word]:,}" for word in CLASSES)
            print(f"| {name} | {told['samples']:,} | {told['complete']:,} | {cells} |", flush=True)
        print(JUDGED.rstrip())


if __name__ == "__main__":
    main()
