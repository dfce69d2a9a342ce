"""Compares two profiles of one program: how many allocations, or samples, have the same stack in both.

    profiles.py heap THEIRS OURS      of gperftools or jemalloc, in text
    profiles.py heaptrack THEIRS OURS    as heaptrack leaves it
    profiles.py cpu THEIRS OURS       of gperftools: samples, and how many do not begin in the outermost
                                      function that most of them begin in
"""

import re
import struct
import subprocess
import sys
from collections import Counter


def objects(lines):
    """Where files are mapped: start, end, what an offset is counted from, name."""
    found = []
    for line in lines:
        at = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+ +(\S+)", line)
        if at:
            start, end, offset = (int(at[number], 16) for number in (1, 2, 3))
            # The two libraries and what is loaded after them are elsewhere.
            found.append((start, end, start - offset, at[4].rsplit("/", 1)[-1]))
    return found


def place(address, mapped):
    for start, end, base, name in mapped:
        if start <= address < end:
            return name, address - base
    return "", address


def heap(name):
    """How many allocations each stack has had, and whether the profile has them all: gperftools' have
    a mebibyte of the largest at most."""
    with open(name, encoding="latin-1") as file:
        text = file.read()
    body, _, maps = text.partition("MAPPED_LIBRARIES:")
    mapped = objects(maps.splitlines())
    counts, stack = Counter(), None
    for line in body.splitlines():
        both = re.match(r" *\d+: +\d+ \[ *(\d+): +\d+\] @((?: 0x[0-9a-f]+)+)", line)
        total = re.match(r"  t\*: \d+: \d+ \[(\d+): \d+\]", line)
        if both:
            count, stack = int(both[1]), both[2]
        elif line.startswith("@"):
            stack = line[1:]
            continue
        elif total and stack:
            count = int(total[1])
        else:
            continue
        # The profilers' own frames, and the libraries' that walk.
        frames = [place(int(address, 16), mapped) for address in stack.split()]
        own = ("libjemalloc", "libtcmalloc", "libunwind", "libgcc_s")
        counts[tuple(frame for frame in frames if not frame[0].startswith(own))] += count
    total = re.match(r"heap profile: +\d+: +\d+ \[ *(\d+)", body)
    return counts, not total or int(total[1]) == counts.total()


def heaptrack(name):
    """How many allocations each stack has had. A frame is an object and the place in its page: where objects
    are loaded differs, and the names that heaptrack gives to addresses depend on that, too."""
    text = subprocess.run(["zstd", "-dc", name], check=True, capture_output=True).stdout.decode("latin-1")
    strings, frames, stacks, sizes, counts = [""], [None], [()], [], Counter()
    for line in text.split("\n"):
        kind, _, rest = line.partition(" ")
        if kind == "s":
            # After its length.
            strings.append(rest.partition(" ")[2])
            continue
        numbers = [int(word, 16) for word in rest.split()] if kind in ("i", "t", "a", "+") else []
        if kind == "i":
            frames.append((strings[numbers[1]].rsplit("/", 1)[-1], numbers[0] & 0xFFF))
        elif kind == "t":
            own = ("libheaptrack", "libunwind")
            frame = frames[numbers[0]]
            stacks.append(stacks[numbers[1]] + (() if frame[0].startswith(own) else (frame,)))
        elif kind == "a":
            sizes.append(numbers[1])
        elif kind == "+":
            counts[stacks[sizes[numbers[0]]]] += 1
    return counts


def cpu(name):
    """How many samples, by their outermost function's object and page."""
    with open(name, "rb") as file:
        data = file.read()
    words = struct.unpack_from(f"<{len(data) // 8}Q", data)
    roots, at = Counter(), 2 + words[1]
    while at + 1 < len(words):
        count, depth = words[at], words[at + 1]
        if count == 0:
            break
        roots[words[at + 1 + depth]] += count
        at += 2 + depth
    return roots


def main():
    kind, theirs, ours = sys.argv[1:]
    if kind == "cpu":
        for who, name in (("theirs", theirs), ("ours", ours)):
            roots = cpu(name)
            rest = roots.total() - max(roots.values(), default=0)
            print(f"    {who}: {roots.total()} samples, {rest} of them with another outermost frame than most")
        return
    if kind == "heaptrack":
        (theirs, has_all), (ours, has_all_too) = ((heaptrack(name), True) for name in (theirs, ours))
    else:
        (theirs, has_all), (ours, has_all_too) = heap(theirs), heap(ours)
    if not (has_all and has_all_too):
        listed = theirs.keys() & ours.keys()
        print(f"    of stacks that both profiles have room for ({len(theirs)}, {len(ours)}):")
        theirs, ours = (Counter({stack: each[stack] for stack in listed}) for each in (theirs, ours))
    both = (theirs & ours).total()
    print(
        f"    allocations with the same stack {both}, by theirs alone {(theirs - ours).total()}, "
        f"by ours alone {(ours - theirs).total()}"
    )
    if not both:
        sys.exit(1)


main()
