#!/usr/bin/env python3
"""Holds the stacks of `unwind guest` against those of others at the same stops: the kernel's frames against the kernel's
own unwinder, those of user code against gdb and the chains of `load.c`.

    ./beside_kernel.py --stops 1000 --kernel vmlinuz --unwind unwind [--append OPTIONS] [--cpu MODEL]

The guest runs the programs of `programs.py`. At each stop `unwind guest` reads the stacks, and a snapshot is taken. Then an
NMI reaches the first vCPU, the kernel panics because nobody has asked for that, and prints the stack that the NMI has
interrupted and the registers that user code has left. From these gdb walks user code. The snapshot is loaded, and the
guest runs on as if that had not been.
"""
import argparse
import collections
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

from programs import FILES, Programs, by_gdb, is_known_chain
from qemu import Qmp, initrd

# Which is not printed.
EXPECTED = [
    "complete, with callers that the kernel's own is not sure of", "equal", "equal, and not called complete", "user code", "no user code", "known chain",
]
LINE = re.compile(r"^\[ *\d+\.\d+\] ?(.*)$", re.M)
FRAME = re.compile(r"^ *(\? )?([\w.]+)\+0x([0-9a-f]+)/0x[0-9a-f]+(?: \[\w+\])?$")
TASK = re.compile(r"^CPU: 0 (?:UID: \d+ )?PID: (\d+) Comm: (.*?) (?:Not t|T)ainted")
USER_RIP = re.compile(r"^RIP: 00([23])3:0x([0-9a-f]+)$")
REGISTER = re.compile(r"\b(R[A-Z0-9]{2}): (?:002b:)?([0-9a-f]{16})")
RIP = re.compile(r"^RIP: (00[0-9a-f]+):(?:([\w.]+)\+0x([0-9a-f]+)/|(\S+))")


class Guest:
    def __init__(self, arguments, folder, programs):
        self.folder = folder
        with open(self.path("initrd"), "wb") as file:
            file.write(initrd(programs.files))
        open(self.path("console"), "w").close()
        snapshots = self.path("snapshots")
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", snapshots, "1M"], check=True)
        ram = f"memory-backend-file,id=ram,size=384M,mem-path={self.path('ram')},share=on"
        append = f"console=ttyS0 no_timer_check unknown_nmi_panic {arguments.append}"
        self.qemu = subprocess.Popen([
            "qemu-system-x86_64", "-accel", "tcg", "-cpu", arguments.cpu, "-smp", "2", "-m", "384M",
            "-machine", "q35,memory-backend=ram", "-object", ram, "-display", "none", "-nodefaults",
            "-kernel", arguments.kernel, "-initrd", self.path("initrd"), "-append", append,
            "-drive", f"if=none,id=snapshots,file={snapshots},format=qcow2",
            "-serial", f"file:{self.path('console')}", "-qmp", f"unix:{self.path('qmp')},server=on,wait=off",
            # One client a socket.
            "-qmp", f"unix:{self.path('qmp-unwind')},server=on,wait=off",
            "-gdb", f"unix:{self.path('gdb')},server=on,wait=off",
        ], stdin=subprocess.DEVNULL)
        until = time.monotonic() + 300
        while not all(f" {name}\n" in self.wait_for("TASK ", 0, 300) for name in FILES):
            if time.monotonic() > until:
                raise TimeoutError(f"not all programs have begun:\n{self.console(0)[-4000:]}")
            time.sleep(0.1)
        self.places = programs.mapped(self.console(0))
        self.qmp = Qmp(self.path("qmp"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def console(self, since):
        with open(self.path("console"), "rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace").replace("\r", "")

    def console_len(self):
        return os.stat(self.path("console")).st_size

    def wait_for(self, text, since, seconds):
        until = time.monotonic() + seconds
        while not re.search(text, self.console(since)):
            if time.monotonic() > until or self.qemu.poll() is not None:
                raise TimeoutError(f"the guest has not printed {text!r}:\n{self.console(since)[-4000:]}")
            time.sleep(0.02)
        return self.console(since)

    def monitor(self, line):
        if told := self.qmp.execute("human-monitor-command", **{"command-line": line}):
            raise RuntimeError(f"{line}: {told}")

    def kernels_own(self):
        """What the kernel prints of the first vCPU, which stands; afterwards it stands as before."""
        self.monitor("savevm stop")
        since = self.console_len()
        self.qmp.execute("inject-nmi")
        self.qmp.execute("cont")
        # What comes after the stack.
        text = self.wait_for(r"Kernel Offset:|---\[ end Kernel panic", since, 120)
        self.qmp.execute("stop")
        self.monitor("loadvm stop")
        return text

    def by_gdb(self, process, registers):
        """gdb's pcs of a process's user code from the registers; the vCPU stands as before afterwards."""
        pcs = by_gdb(self.path("gdb"), self.places[process], registers)
        self.monitor("loadvm stop")
        return pcs


def interrupted(text):
    """The frames below the NMI, innermost first, as names, offsets, and whether the kernel is sure; none if that was user
    code."""
    lines = LINE.findall(text)
    lines = lines[lines.index("Call Trace:") + 1:]
    # The last registers before that are those of the NMI. It is on the task's own stack if it came in user code.
    end = lines.index(" </NMI>") if " </NMI>" in lines else len(lines)
    registers = [number for number, line in enumerate(lines[:end]) if RIP.match(line)]
    frames, pending = [], []
    for line in lines[registers[-1]:]:
        found = RIP.match(line)
        if found and found[1] in ("0033", "0023"):
            break
        if found:
            frames += pending
            # Where no function is the address itself stands.
            pending = [(found[2] or found[4], int(found[3] or "0", 16), True)]
        elif found := FRAME.match(line):
            frame = (found[2], int(found[3], 16), not found[1])
            # Newer kernels print a frame of saved registers besides.
            frames += [other for other in pending if other != frame] + [frame]
            pending = []
    return frames + pending


def compared(vcpu, text):
    """What a vCPU's frames are beside what the kernel has printed, and both."""
    is_kernel, complete = vcpu["privilege"] == "kernel", vcpu["end"]["complete"]
    ours = [(frame["function"], frame["function_offset"]) for frame in vcpu["frames"]] * is_kernel
    try:
        theirs = interrupted(text)
    except (ValueError, IndexError):
        return "without a trace of the kernel", ours, text
    both, theirs = theirs, [frame[:2] for frame in theirs if frame[2]]
    if not theirs or not ours:
        return "user code" if ours == theirs else "WRONG: user code for one alone", ours, theirs
    if ours == theirs:
        return "equal" if complete else "equal, and not called complete", ours, theirs
    if [offset for _, offset in ours] == [offset for _, offset in theirs]:
        return "equal but for another name at the same place", ours, theirs
    if complete and len(ours) > len(theirs) and are_among(ours, both):
        # Without tables it loses the caller of a function that has no frame yet, or no longer.
        return "complete, with callers that the kernel's own is not sure of", ours, both
    if complete and ours[:-1] == theirs == [("error_entry", *theirs[0][1:])] and ours[-1][0].startswith("asm_"):
        return "complete, where the kernel's own ends in error_entry", ours, both
    # It calls functions of its own, and these others.
    last = [name for name, _ in ours[len(theirs) - 1:len(theirs) + 2]]
    if complete and any(name.startswith("__switch_to") for name in last) and ours[:len(theirs)] == theirs:
        # The stack is the next task's by then, and to the kernel none of the current one's.
        return "complete, where the kernel's own ends in __switch_to", ours, theirs
    if complete:
        return "WRONG: complete, and different", ours, both
    is_start = ours == theirs[:len(ours)]
    return "not complete, equal as far as they go" if is_start else "not complete, and different", ours, theirs


def are_among(frames, others):
    """Whether the frames are the others, but for some of which the kernel is not sure."""
    left = list(frames)
    for *other, is_sure in others:
        if left and left[0] == tuple(other):
            left.pop(0)
        elif is_sure:
            return False
    return not left


def user_registers(text):
    """The registers that user code has left, by the kernel's print, and whether it is 64-bit code; None if there are none."""
    lines = LINE.findall(text)
    starts = [(number, found) for number, line in enumerate(lines) if (found := USER_RIP.match(line))]
    if not starts:
        return None
    number, found = starts[-1]
    registers = {"rip": int(found[2], 16)}
    for line in lines[number + 1:number + 8]:
        registers |= {name.lower().replace("r0", "r"): int(value, 16) for name, value in REGISTER.findall(line)}
    return registers, found[1] == "3"


def user_compared(guest, programs, process, vcpu, text):
    """What the frames of user code are beside gdb's and the known chains, and both."""
    user, theirs = vcpu if vcpu["privilege"] == "user" else vcpu["user"], user_registers(text)
    if theirs is None:
        return "no user code" if user is None else "the kernel has not printed its registers", user, theirs
    if user is None:
        return ("WRONG: none, and complete" if vcpu["end"]["complete"] else "none, and not called complete"), user, theirs
    registers, is_wide = theirs
    complete = user["end"]["complete"]
    ours = [int(frame["pc"], 16) for frame in user["frames"]]
    if (ours[0], int(user["frames"][0]["sp"], 16)) != (registers["rip"], registers["rsp"]):
        return "WRONG: other registers", user["frames"][0], registers
    names = programs.names(process, guest.places[process], ours)
    if complete and process != "python3" and not is_known_chain(names):
        return "WRONG: complete, and no known chain", names, user["end"]
    if not is_wide:
        return ("known chain" if complete else "not complete"), names, user["end"]
    chain = guest.by_gdb(process, registers)
    if ours == chain:
        return "equal" if complete else "equal, and not called complete", names, user["end"]
    ours, theirs = [hex(pc) for pc in ours], [hex(pc) for pc in chain]
    if complete and process != "python3":
        # Before the kernel has the next task's stack it has that one's page tables, by which gdb reads.
        return "known chain, which gdb has not", ours, theirs
    if complete:
        is_start = theirs == ours[:len(theirs)]
        return "complete, and longer than gdb's" if is_start else "WRONG: complete, and different", ours, theirs
    return "not complete, equal as far as they go" if ours == theirs[:len(ours)] else "not complete, and different", ours, theirs


def kind(vcpu, comm):
    """A stop's kind: who ran, and in which part."""
    if vcpu["halted"]:
        return "idle"
    if vcpu["privilege"] == "user":
        return f"{comm}, user code"
    return f"{comm}, kernel" if vcpu["user"] else "kernel alone"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--unwind", required=True)
    parser.add_argument("--append", default="pti=on")
    parser.add_argument("--cpu", default="max")
    parser.add_argument("--without-tasks", action="store_true", help="the kernel does not tell what it runs")
    arguments = parser.parse_args()
    kernel, user, tasks, kinds, complete = (collections.Counter() for _ in range(5))
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(folder)
        guest = Guest(arguments, folder, programs)
        try:
            for _ in range(arguments.stops):
                time.sleep(random.uniform(0, 0.2))
                guest.qmp.execute("stop")
                command = [arguments.unwind, "guest", "--qmp", guest.path("qmp-unwind"), "--json"]
                report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                text = guest.kernels_own()
                vcpu = report["vcpus"][0]
                task, own = vcpu["task"], [found for found in map(TASK.match, LINE.findall(text)) if found][0]
                is_task = task is not None and (str(task["tid"]), task["comm"]) == own.groups()
                is_untold = arguments.without_tasks and task is None
                parts = [(kernel, compared(vcpu, text))]
                between = task is None and "__switch_to" in parts[0][1][0]
                what = "equal" if is_task else "not told" if is_untold else "none, between two" if between else f"WRONG: {task}, {own[0]}"
                tasks[what] += 1
                if is_task or is_untold:
                    parts.append((user, user_compared(guest, programs, own[2], vcpu, text)))
                own_kind = kind(vcpu, own[2] if is_task or is_untold else "between two")
                guest.qmp.execute("cont")
                for count, (what, ours, theirs) in parts:
                    count[what] += 1
                    if what not in EXPECTED:
                        ends = [part["end"]["text"] for part in (vcpu, vcpu["user"]) if part]
                        print(f"{what}: {own_kind}, {ends}\n  ours   {ours}\n  theirs {theirs}", flush=True)
                kinds[own_kind] += 1
                complete[own_kind] += vcpu["end"]["complete"] and (not vcpu["user"] or vcpu["user"]["end"]["complete"])
        except KeyboardInterrupt:
            pass
        finally:
            guest.qemu.kill()
            guest.qemu.wait()
    for part, count in [("kernel", kernel), ("user code", user), ("task", tasks)]:
        for what, number in count.most_common():
            print(f"{number:6} {part}: {what}")
    for what, number in kinds.most_common():
        print(f"{number:6} {what}: {complete[what]} complete")
    sys.exit(any(what.startswith("WRONG") for what in [*kernel, *user, *tasks]))


main()
