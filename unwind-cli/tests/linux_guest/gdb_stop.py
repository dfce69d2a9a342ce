"""What gdb finds at one stop of a guest, as a line of JSON after `STOP `.

Runs inside gdb, connected to QEMU's gdbstub. GUEST_WORDS is a JSON list of
[address, bytes]: words of the guest's memory to read.
"""

import json
import os

import gdb


def register(name):
    return int(gdb.parse_and_eval(f"${name}")) % 2**64


def chain():
    """The pcs of gdb's frames, innermost first, one for a function and what is inlined in it."""
    pcs = []
    try:
        frame = gdb.newest_frame()
        while frame is not None and len(pcs) < 100:
            if frame.type() != gdb.INLINE_FRAME:
                pcs.append(frame.pc())
            frame = frame.older()
    except gdb.error:
        pass
    return pcs


def word(addr, size):
    memory = gdb.selected_inferior().read_memory(addr, size)
    return int.from_bytes(bytes(memory), "little")


words = []
for addr, size in json.loads(os.environ["GUEST_WORDS"]):
    try:
        words.append(word(addr, size))
    except gdb.error:
        words.append(None)

stop = {"cs": register("cs"), "rip": register("rip"), "chain": chain(), "words": words}
print("STOP " + json.dumps(stop), flush=True)
