# For gdb: at each stop of the agent compares the addresses that a handler found with gdb's frames.
import os

import gdb

WANTED = int(os.environ["TRUTH_STOPS"])
SHOWN = 10
counts = {}
# By kind, and the function of the last frame that both have.
places = {}
last = shown = 0


def words(name, count):
    """Words of a variable, whatever gdb knows of its type."""
    first = gdb.parse_and_eval(f"(unsigned long *) &{name}")
    return [int(first[at]) for at in range(count)]


def addresses():
    """gdb's addresses from what the signal interrupted on, and why there are no more."""
    frame = gdb.newest_frame()
    while frame is not None and frame.type() != gdb.SIGTRAMP_FRAME:
        frame = frame.older()
    frame = frame.older() if frame is not None else None
    found, last = [], None
    while frame is not None:
        # Of a function that was called by a jump, and of one that was inlined, no address is on the stack.
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            found.append(frame.pc())
        last, frame = frame, frame.older()
    reason = gdb.frame_stop_reason_string(last.unwind_stop_reason()) if last is not None else "no frame"
    return found, reason


def function(address):
    """The name of the function with an address, or where else it is."""
    name = gdb.execute(f"info symbol {address - 1:#x}", to_string=True)
    return "no known function" if name.startswith("No symbol") else name.split(" + ")[0].split(" in ")[0].strip()


def memory(address, count):
    return gdb.selected_inferior().read_memory(address, count).tobytes()


def is_code(address):
    """Whether an address is in memory that can be executed."""
    with open(f"/proc/{gdb.selected_inferior().pid}/maps") as maps:
        for line in maps:
            span, mode = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                return "x" in mode
    return False


def common(ours, theirs):
    """How many frames are the same, from the interrupted one on."""
    same = 0
    while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
        same += 1
    return same


def is_lost(ours, theirs):
    """Whether gdb's first frame that differs is at an address of no code, as where it guesses in code that a
    compiler has made at run time."""
    at = common(ours, theirs)
    return at < len(theirs) and not is_code(theirs[at])


def is_thunk(ours, theirs):
    """Whether it was interrupted in a function that loads its return address and returns, which has no
    call frame information in some libraries for i386: that address is on top of the stack, as
    ours has it, after a call of that function. gdb guesses there."""
    frame = gdb.newest_frame()
    while frame.type() != gdb.SIGTRAMP_FRAME:
        frame = frame.older()
    frame = frame.older()
    pc, width = frame.pc(), gdb.lookup_type("long").sizeof
    if width != 4 or len(ours) < 2 or theirs[:2] == ours[:2]:
        return False
    # mov reg, [esp]; ret
    loads = memory(pc, 4), memory(pc - 3, 4)
    start = next((pc - 3 * at for at, code in enumerate(loads) if code[::2] == b"\x8b\x24" and code[3] == 0xC3), None)
    top = int.from_bytes(memory(int(frame.read_register("esp")) & 0xFFFFFFFF, 4), "little")
    call = memory(ours[1] - 5, 5)
    called = (ours[1] + int.from_bytes(call[1:], "little", signed=True)) & 0xFFFFFFFF
    return top == ours[1] and call[0] == 0xE8 and called == start


def is_below(theirs):
    """Whether gdb takes a word below the stack pointer for the return address of 32-bit code, as tables of the
    C library's memcpy say."""
    frame = gdb.newest_frame()
    while frame.type() != gdb.SIGTRAMP_FRAME:
        frame = frame.older()
    if gdb.lookup_type("long").sizeof != 4 or len(theirs) < 2:
        return False
    top = int(frame.older().read_register("esp")) & 0xFFFFFFFF
    words = memory(top - 8, 8)
    return theirs[1].to_bytes(4, "little") in (words[:4], words[4:])


def kind(ours, is_complete, theirs):
    if ours == theirs:
        return "equal, complete" if is_complete else "equal, not called complete"
    if is_complete:
        if is_thunk(ours, theirs):
            return "complete, where gdb guesses in a thunk"
        if is_lost(ours, theirs):
            return "complete, where gdb has an address of no code"
        if common(ours, theirs) == 1 and is_below(theirs):
            return "complete, where gdb has a word below the stack pointer"
        # Else someone is wrong.
        same = theirs == ours[: len(theirs)]
        return "complete, gdb has fewer of the same" if same else "complete, and gdb has others"
    if ours == theirs[: len(ours)]:
        return "cut, the same as far as it goes"
    if is_lost(ours, theirs):
        return "not complete, and gdb has an address of no code"
    return "not complete, and gdb has others"


class Stop(gdb.Breakpoint):
    def stop(self):
        global last, shown
        number = words("truth_number", 1)[0]
        if number == last:
            # A signal came before the thread had left the breakpoint.
            return False
        last = number
        ours = words("truth_list", words("truth_count", 1)[0])
        is_complete = words("truth_is_complete", 1)[0] != 0
        theirs, reason = addresses()
        what = kind(ours, is_complete, theirs)
        counts[what] = counts.get(what, 0) + 1
        if not what.startswith("equal"):
            same = common(ours, theirs)
            place = what, function(ours[same - 1]) if same else "the interrupted one"
            places[place] = places.get(place, 0) + 1
        if what.startswith(("complete", "not")) and shown < SHOWN:
            shown += 1
            print(f"{what}; gdb: {reason}")
            for at in range(max(len(ours), len(theirs))):
                pair = [each[at] if at < len(each) else None for each in (ours, theirs)]
                if pair[0] != pair[1]:
                    names = [gdb.format_address(pc) if pc is not None else "-" for pc in pair]
                    print(f"  frame {at}: {names[0]} | gdb {names[1]}")
                    break
        return sum(counts.values()) >= WANTED


gdb.execute("set pagination off")
gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")
gdb.execute("set backtrace limit 600")
gdb.execute("set breakpoint pending on")
gdb.execute("handle SIGPROF nostop noprint pass")
Stop("truth_stop")
# The shell would have the agent, too.
gdb.execute("set startup-with-shell off")
gdb.execute("run")
total = sum(counts.values())
for (what, name), number in sorted(places.items(), key=lambda item: -item[1])[:10]:
    print(f"  after {name}: {number} {what}")
print(f"{total} stops: " + ", ".join(f"{number} {what}" for what, number in sorted(counts.items())))
is_wrong = counts.get("complete, and gdb has others", 0)
try:
    gdb.execute("kill")
except gdb.error:
    pass
gdb.execute(f"quit {0 if total >= WANTED and is_wrong * 100 <= total else 1}")
