#!/usr/bin/env python3
"""Boots a Linux kernel with one program, stops it at random times, and holds
what `unwind guest` finds of the program's stack against gdb. See README.md."""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

from qemu import Qmp, initrd

HERE = os.path.dirname(os.path.abspath(__file__))
MEMORY = 256 << 20

COMMON = """-O1 -g0 -static -nostdlib -ffreestanding -fno-pic -no-pie -fno-stack-protector
    -fcf-protection=none -fno-optimize-sibling-calls -mgeneral-regs-only -Wall -Wextra
    -Wl,--build-id=none""".split()
PROGRAMS = {
    # By frame pointers.
    "64": ["-fno-omit-frame-pointer"],
    # By .sframe.
    "64-tables": ["-fomit-frame-pointer", "-Wa,--gsframe"],
    # By tables made of .eh_frame, if unwind is given the program with it.
    "64-cfi": ["-fomit-frame-pointer"],
    # By frame pointers.
    "32": ["-m32", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"],
}

# What spin.c calls, innermost function first; a recursion stands for 1 to 8.
CHAINS = [
    r"_start",
    r"main _start",
    r"brief main _start",
    r"top main _start",
    r"(deep ){1,8}top main _start",
    r"bottom (deep ){8}top main _start",
    r"leaf bottom (deep ){8}top main _start",
]


def build(program, flags):
    """Compiles the program. gdb has its .eh_frame; unwind, which would make
    tables of that, gets a copy without, unless it has nothing else."""
    start, spin = f"{program}-start.o", f"{program}-spin.o"
    width = [flag for flag in flags if flag == "-m32"]
    for options in (
        [*COMMON, *width, "-c", os.path.join(HERE, "start.S"), "-o", start],
        [*COMMON, *flags, "-c", os.path.join(HERE, "spin.c"), "-o", spin],
        [*COMMON, *width, start, spin, "-o", program],
    ):
        subprocess.run(["gcc", *options], check=True)
    without = ["objcopy", "--remove-section=.eh_frame", program, f"{program}-without"]
    subprocess.run(without, check=True)


class Guest:
    """A Linux kernel under QEMU that runs one program."""

    def __init__(self, args, scratch, program):
        self.scratch = scratch
        image = os.path.join(scratch, "initrd")
        with open(image, "wb") as file:
            file.write(initrd({"init": program}))
        self.memory = os.path.join(scratch, "memory")
        append = f"console=ttyS0 quiet panic=-1 nokaslr pti={args.pti} rdinit=/init"
        command = [
            "qemu-system-x86_64", "-machine", "q35,memory-backend=ram", "-accel", "tcg",
            "-cpu", args.cpu, "-m", "256M", "-smp", "1", "-display", "none", "-nodefaults",
            "-no-reboot", "-serial", "stdio", "-kernel", args.kernel, "-initrd", image,
            "-append", append,
            "-object", f"memory-backend-file,id=ram,size={MEMORY},mem-path={self.memory},share=on",
            "-qmp", f"unix:{self.path('qmp')},server=on,wait=off",
            # One client a socket.
            "-qmp", f"unix:{self.path('qmp-unwind')},server=on,wait=off",
            "-gdb", f"unix:{self.path('gdb')},server=on,wait=off",
        ]
        self.qemu = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        for line in self.qemu.stdout:
            if "BOOTED" in line:
                break
        else:
            sys.exit("the guest did not get to its program")
        self.qmp = Qmp(self.path("qmp"))

    def path(self, name):
        return os.path.join(self.scratch, name)

    def end(self):
        self.qemu.kill()
        self.qemu.wait()


def has_own_tables(guest):
    """Whether user code has page tables of its own: the second page of the two
    that Linux takes for the roots of a process. The guest stands still."""
    command = {"command-line": "info registers"}
    registers = guest.qmp.execute("human-monitor-command", **command)
    return int(re.search(r"CR3=([0-9a-f]+)", registers).group(1), 16) >> 12 & 1 == 1


def unwind(args, guest, program):
    """What `unwind guest` says of the one vCPU. The guest stands still."""
    command = [
        args.unwind, "guest", "--qmp", guest.path("qmp-unwind"), "--mem", guest.memory,
        "--symbols", program, "--json",
    ]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60)
    (vcpu,) = json.loads(output.stdout)["vcpus"]
    return vcpu


def gdb(guest, program, words):
    """What gdb says of the same stop; the guest continues afterwards."""
    if program:
        setup = ["-ex", f"file {program}"]
    else:
        # gdb would take the guest for a 32-bit one, which has other registers.
        setup = ["-ex", "set architecture i386:x86-64"]
    command = [
        "gdb", "-q", "-nx", "-batch", *setup,
        "-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on",
        "-ex", f"target remote {guest.path('gdb')}",
        "-ex", f"source {HERE}/gdb_stop.py", "-ex", "detach",
    ]
    environment = dict(os.environ, GUEST_WORDS=json.dumps(words))
    output = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        timeout=60,
    )
    for line in output.stdout.splitlines():
        if line.startswith("STOP "):
            return json.loads(line[5:])
    sys.exit(f"gdb found nothing: {output.stdout}{output.stderr}")


def fault(vcpu, other, is_wide):
    """What is wrong with the stack of a user stop; None if nothing is."""
    pcs = [int(frame["pc"], 16) for frame in vcpu["frames"]]
    names = [frame["function"] for frame in vcpu["frames"]]
    if vcpu["arch"] != ("x86-64" if is_wide else "ia32"):
        return f"arch {vcpu['arch']}"
    if not any(re.fullmatch(chain, " ".join(map(str, names))) for chain in CHAINS):
        return f"no such chain: {names}"
    if other["rip"] != pcs[0] or other["words"] != pcs[1:]:
        return f"gdb reads {other['rip']:#x} and {other['words']}, the chain is {pcs}"
    if is_wide and other["chain"] != pcs:
        return f"gdb's chain is {other['chain']}, unwind's {pcs}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", required=True, help="a Linux kernel to boot: vmlinuz")
    parser.add_argument("--unwind", required=True, help="the program `unwind`")
    parser.add_argument("--program", choices=PROGRAMS, default="64")
    parser.add_argument("--pti", choices=["on", "off"], default="off")
    parser.add_argument("--cpu", default="qemu64", help="of QEMU; `max` has 5 levels")
    parser.add_argument("--stops", type=int, default=200, help="stops in user code")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    is_wide = args.program.startswith("64")
    scratch = tempfile.mkdtemp(prefix="unwind-guest-")
    program = os.path.join(scratch, "spin")
    build(program, PROGRAMS[args.program])
    randomly = random.Random(args.seed)
    guest = Guest(args, scratch, program)
    user = kernel = differ = frames = 0
    paging = set()
    try:
        while user < args.stops and kernel < 20 * args.stops:
            time.sleep(randomly.uniform(0.001, 0.05))
            guest.qmp.execute("stop")
            by_cfi = args.program == "64-cfi"
            vcpu = unwind(args, guest, program if by_cfi else f"{program}-without")
            paging.add(vcpu["paging"])
            if vcpu["privilege"] != "user":
                kernel += 1
                guest.qmp.execute("cont")
                continue
            if has_own_tables(guest) != (args.pti == "on"):
                sys.exit(f"the kernel does not do as told: pti={args.pti}")
            user += 1
            frames += len(vcpu["frames"])
            # A return address lies right below the stack pointer of its frame.
            size = 8 if is_wide else 4
            callers = vcpu["frames"][1:]
            words = [[int(frame["sp"], 16) - size, size] for frame in callers]
            other = gdb(guest, program if is_wide else None, words)
            trouble = fault(vcpu, other, is_wide)
            if trouble:
                differ += 1
                print(f"stop {user}: {trouble}")
    finally:
        guest.end()
        shutil.rmtree(scratch)
    print(
        f"{args.program}, pti {args.pti}, paging {' '.join(sorted(paging))}: {user} stops in user "
        f"code, {frames} frames, {differ} differ; {kernel} stops in the kernel"
    )
    sys.exit(1 if differ or user < args.stops else 0)


main()
