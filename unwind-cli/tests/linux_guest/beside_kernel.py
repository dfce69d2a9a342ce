#!/usr/bin/env python3
"""Holds the kernel's frames of `unwind guest` against those of the kernel's own unwinder at the same stops.

    ./beside_kernel.py --stops 1000 --kernel vmlinuz --init load --unwind unwind [--append OPTIONS] [--cpu MODEL]

`load.c`, linked statically, is the guest's first program. At each stop `unwind guest` reads the stacks, and a snapshot is
taken. Then an NMI reaches the first vCPU, the kernel panics because nobody has asked for that, and prints the stack that
the NMI has interrupted. The snapshot is loaded, and the guest runs on as if that had not been.
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

from qemu import Qmp, initrd

LINE = re.compile(r"^\[ *\d+\.\d+\] ?(.*)$", re.M)
FRAME = re.compile(r"^ *([\w.]+)\+0x([0-9a-f]+)/0x[0-9a-f]+(?: \[\w+\])?$")
TASK = re.compile(r"^CPU: 0 (?:UID: \d+ )?PID: (\d+) Comm: (.*?) (?:Not t|T)ainted")
RIP = re.compile(r"^RIP: (00[0-9a-f]+):(?:([\w.]+)\+0x([0-9a-f]+)/|(\S+))")


class Guest:
    def __init__(self, arguments, folder):
        self.folder = folder
        with open(self.path("initrd"), "wb") as file:
            file.write(initrd(arguments.init))
        open(self.path("console"), "w").close()
        snapshots = self.path("snapshots")
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", snapshots, "1M"], check=True)
        ram = f"memory-backend-file,id=ram,size=256M,mem-path={self.path('ram')},share=on"
        append = f"console=ttyS0 no_timer_check unknown_nmi_panic {arguments.append}"
        self.qemu = subprocess.Popen([
            "qemu-system-x86_64", "-accel", "tcg", "-cpu", arguments.cpu, "-smp", "2", "-m", "256M",
            "-machine", "q35,memory-backend=ram", "-object", ram, "-display", "none", "-nodefaults",
            "-kernel", arguments.kernel, "-initrd", self.path("initrd"), "-append", append,
            "-drive", f"if=none,id=snapshots,file={snapshots},format=qcow2",
            "-serial", f"file:{self.path('console')}", "-qmp", f"unix:{self.path('qmp')},server=on,wait=off",
            # One client a socket.
            "-qmp", f"unix:{self.path('qmp-unwind')},server=on,wait=off",
        ], stdin=subprocess.DEVNULL)
        self.wait_for("READY", 0, 300)
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
        while text not in self.console(since):
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
        text = self.wait_for("---[ end Kernel panic", since, 120)
        self.qmp.execute("stop")
        self.monitor("loadvm stop")
        return text


def interrupted(text):
    """The frames below the NMI, innermost first, as names and offsets; none if that was user code."""
    lines = LINE.findall(text)
    lines = lines[lines.index("Call Trace:") + 1:]
    # The last registers before that are those of the NMI. It is on the task's own stack if it came in user code.
    end = lines.index(" </NMI>") if " </NMI>" in lines else len(lines)
    registers = [number for number, line in enumerate(lines[:end]) if RIP.match(line)]
    frames, pending = [], []
    for line in lines[registers[-1]:]:
        found = RIP.match(line)
        if found and found[1] == "0033":
            break
        if found:
            frames += pending
            # Where no function is the address itself stands.
            pending = [(found[2] or found[4], int(found[3] or "0", 16))]
        elif found := FRAME.match(line):
            frame = (found[1], int(found[2], 16))
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
    if not theirs or not ours:
        return "user code" if ours == theirs else "WRONG: user code for one alone", ours, theirs
    if ours == theirs:
        return "equal" if complete else "equal, and not called complete", ours, theirs
    if [offset for _, offset in ours] == [offset for _, offset in theirs]:
        return "equal but for another name at the same place", ours, theirs
    last = [name for name, _ in ours[len(theirs) - 1:len(theirs) + 1]]
    if complete and "__switch_to" in last and ours[:len(theirs)] == theirs:
        # The stack is the next task's by then, and to the kernel none of the current one's.
        return "complete, where the kernel's own ends in __switch_to", ours, theirs
    if complete:
        return "WRONG: complete, and different", ours, theirs
    is_start = ours == theirs[:len(ours)]
    return "not complete, equal as far as they go" if is_start else "not complete, and different", ours, theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--init", required=True)
    parser.add_argument("--unwind", required=True)
    parser.add_argument("--append", default="pti=on")
    parser.add_argument("--cpu", default="max")
    arguments = parser.parse_args()
    count, tasks, shown = collections.Counter(), collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        guest = Guest(arguments, folder)
        try:
            for _ in range(arguments.stops):
                time.sleep(random.uniform(0, 0.2))
                guest.qmp.execute("stop")
                command = [arguments.unwind, "guest", "--qmp", guest.path("qmp-unwind"), "--json"]
                report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                text = guest.kernels_own()
                guest.qmp.execute("cont")
                vcpu = report["vcpus"][0]
                what, ours, theirs = compared(vcpu, text)
                count[what] += 1
                if what not in ("equal", "user code"):
                    shown.append((what, ours, theirs, vcpu["end"]))
                task, own = vcpu["task"], [found for found in map(TASK.match, LINE.findall(text)) if found][0]
                is_task = task is not None and (str(task["tid"]), task["comm"]) == own.groups()
                tasks["equal" if is_task else f"WRONG: {task}, {own[0]}"] += 1
        finally:
            guest.qemu.kill()
            guest.qemu.wait()
    for what, number in count.most_common():
        print(f"{number:6} {what}")
    for what, number in tasks.most_common():
        print(f"{number:6} task: {what}")
    # What is equal and was not called complete is most of them, and comes last.
    for what, ours, theirs, end in sorted(shown, key=lambda stop: stop[0].startswith("equal"))[:20]:
        print(f"{what}: {end}\n  ours   {ours}\n  theirs {theirs}")
    sys.exit(any(what.startswith("WRONG") for what in [*count, *tasks]))


main()
