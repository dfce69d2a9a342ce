#!/usr/bin/env python3
"""Takes stops of a guest by `unwind guest --json`, and prints how many stacks were complete and right.

    ./both_parts.py STOPS -- unwind guest --qmp SOCKET --mem FILE --symbols vmlinuz --symbols load

The guest's first program is `load.c`, whose chain of functions is known.
"""
import collections
import json
import random
import subprocess
import sys
import time

OUTER = ["mid", "outer", "work", "main", "__libc_start_call_main", "__libc_start_main", "_start"]


def kind(vcpu):
    if vcpu["privilege"] == "user":
        return "user code"
    if vcpu["halted"]:
        return "kernel, idle"
    return "kernel, entered by user code" if vcpu["user"] else "kernel, without a user part"


def is_known(frames):
    names = [(frame["function"] or "?").split(".")[0] for frame in frames]
    at = [name for name in names if name in OUTER or name.startswith("leaf_")]
    # What is called below the leaves are the C library's wrappers of system calls.
    chain = names[names.index("mid"):] if "mid" in names else at
    return chain in (OUTER, OUTER[1:], OUTER[2:], OUTER[3:], OUTER[4:])


def main():
    stops, command = int(sys.argv[1]), sys.argv[3:]
    count, complete, right = collections.Counter(), collections.Counter(), collections.Counter()
    wrong, depth = [], []
    for _ in range(stops):
        report = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True).stdout)
        for vcpu in report["vcpus"]:
            kind_of = kind(vcpu)
            user = vcpu if vcpu["privilege"] == "user" else vcpu["user"]
            whole = vcpu["end"]["complete"] and (user is None or user["end"]["complete"])
            count[kind_of] += 1
            complete[kind_of] += whole
            known = user is None or is_known(user["frames"])
            right[kind_of] += known
            if vcpu["privilege"] == "kernel":
                depth.append(len(vcpu["frames"]))
            if not whole or not known:
                wrong.append(vcpu)
        time.sleep(random.uniform(0, 0.1))
    for kind_of, number in count.items():
        print(f"{kind_of}: {number}, complete {complete[kind_of]}, user chain as known {right[kind_of]}")
    print(f"frames of the kernel: {min(depth, default=0)} to {max(depth, default=0)}")
    for vcpu in wrong[:6]:
        for part in filter(None, (vcpu, vcpu["user"])):
            print([(frame["pc"], frame["function"], frame["found_by"]) for frame in part["frames"]], part["end"])


main()
