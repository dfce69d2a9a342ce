#!/usr/bin/env python3
"""Has a guest's kernel crash and holds the stacks of its CPUs, as `unwind stack --core /proc/vmcore` shows them, against
the chains that the program of `crash.c` was in.

    ./crash.py --kernel vmlinuz --init crash --unwind unwind [--append OPTIONS] [--cpu MODEL]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from programs import libraries
from qemu import initrd

# Of each CPU: the thread's name, functions of the kernel, and those of user code. An interrupt may have stopped the
# second one's.
WANTED = [
    ("crashes", ["sysrq_handle_crash", "ksys_write", "do_syscall_64", "entry_SYSCALL_64_after_hwframe"],
     ["crash_leaf", "crash_middle", "crash_outer", "main"]),
    ("spins", [], ["spin_leaf", "spin_middle", "spin_outer", "main"]),
]


def by_name(paths):
    """The dynamic linker and the libraries of a program, in one folder."""
    return {"ld.so" if "/ld-" in path else os.path.basename(path): path for path in paths}


def differs(cpu, comm, of_kernel, chain):
    """What is wrong with a CPU's stack; nothing if it is right."""
    user = cpu["user"] if cpu["privilege"] == "kernel" else cpu
    if cpu["task"] is None or cpu["task"]["comm"] != comm:
        return f"the task is {cpu['task']}"
    if user is None or not user["end"]["complete"]:
        return f"the user code is {user}"
    names = [frame["function"] for frame in user["frames"]]
    start = names.index(chain[0]) if chain[0] in names else 0
    if names[start:start + len(chain)] != chain:
        return f"the user code is {names}"
    names = [frame["function"] for frame in cpu["frames"]]
    # Of a function without a row, such as that which leaves the kernel, the callers may not be known. That is told.
    if cpu["end"]["complete"] and [name for name in names if name in of_kernel] != of_kernel:
        return f"the kernel is {names}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--init", required=True)
    parser.add_argument("--unwind", required=True)
    parser.add_argument("--append", default="pti=on")
    parser.add_argument("--cpu", default="max")
    parser.add_argument("--seconds", type=int, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        with open(path("crashed"), "wb") as file:
            file.write(initrd({"init": arguments.init, "unwind": arguments.unwind, **by_name(libraries(arguments.unwind))}))
        with open(path("initrd"), "wb") as file:
            file.write(initrd({"init": arguments.init, "kernel": arguments.kernel, "crashed": path("crashed")}))
        append = f"console=ttyS0 no_timer_check crashkernel=256M {arguments.append}"
        command = [
            "qemu-system-x86_64", "-accel", "tcg", "-cpu", arguments.cpu, "-smp", "2", "-m", "768M", "-no-reboot",
            "-display", "none", "-nodefaults", "-kernel", arguments.kernel, "-initrd", path("initrd"),
            "-append", append, "-serial", "stdio",
        ]
        guest = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                               timeout=arguments.seconds)
    text = guest.stdout.replace("\r", "")
    if "STATUS 0" not in text:
        sys.exit(text[-4000:])
    report = json.loads(text[text.index('{\n'):text.rindex("}") + 1])
    found = [differs(cpu, *wanted) for cpu, wanted in zip(report["vcpus"], WANTED)]
    for cpu, why in zip(report["vcpus"], found):
        frames = len(cpu["frames"]) + len((cpu["user"] or {"frames": []})["frames"])
        print(f"CPU {cpu['vcpu']}: {frames} frames, {cpu['end']['text']}; {why or 'as expected'}")
    sys.exit(len(found) != len(WANTED) or any(found))


main()
