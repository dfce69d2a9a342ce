"""Reads a perf.data file of the module, and holds its stacks against what is known of the victims."""

import bisect
import collections
import dataclasses
import re
import struct
import subprocess

SAMPLE, STACK, LOST, MMAP2, FORK = 9, 22, 2, 10, 7
KERNEL_MARK, DEFERRED_MARK, FIRST_MARK = 2**64 - 128, 2**64 - 640, 2**64 - 4095

# What the known functions have between them, and how the C library begins. In the vDSO names are of no use.
START = r"(main( \S*libc_start\S*)*( _start)?|thread( start_thread)( \S*clone\S*)?)"
KNOWN = re.compile(rf"^(((leaf )?varying (step ){{12}}|(step ){{1,12}}|((\S+ )?\S*getppid )?)rounds )?work {START}$")


@dataclasses.dataclass
class Tally:
    text: str
    faults: list


def records(data):
    """Type, mode and body of each."""
    offset, size = struct.unpack_from("<QQ", data, 40)
    at = offset
    while at < offset + size:
        kind, mode, length = struct.unpack_from("<IHH", data, at)
        yield kind, mode, data[at + 8 : at + length]
        at += length


def symbols_of(program):
    out = subprocess.run(["nm", "--defined-only", program], capture_output=True, text=True, check=True).stdout
    fields = [line.split() for line in out.splitlines()]
    names = {}
    for address, kind, name in (field for field in fields if len(field) == 3 and field[1] in "tTwWi" and field[2][0] != "."):
        # Of aliases the one that the pattern knows.
        if name in ("getppid", "_start", "main") or int(address, 16) not in names:
            names[int(address, 16)] = name
    return sorted(names.items())


def name_of(symbols, pc):
    at = bisect.bisect_right(symbols, (pc, "\x7f")) - 1
    return symbols[at][1] if at >= 0 else "?"


def tally(data, programs):
    samples, stacks, maps, parents = [], collections.defaultdict(list), {}, {}
    lost = 0
    for kind, mode, body in records(data):
        words = struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8])
        if kind == SAMPLE:
            chain = words[6 : 6 + words[5]]
            cookie = chain[-1] if len(chain) > 1 and chain[-2] == DEFERRED_MARK else 0
            samples.append((words[1] >> 32, cookie, mode & 7, chain))
        elif kind == STACK:
            stacks[(words[-3] >> 32, words[0])].append((words[-3] & 0xFFFFFFFF, words[2 : 2 + words[1]]))
        elif kind == LOST:
            lost += words[1]
        elif kind == MMAP2:
            name = body[64:].split(b"\0")[0].decode().rsplit("/", 1)[-1]
            if name.startswith("victim"):
                # A file that may be anywhere is linked at zero, with its code where it is in the file.
                is_anywhere = (programs / name).read_bytes()[16] == 3
                maps[words[0] & 0xFFFFFFFF] = (name, words[1] - words[3] if is_anywhere else 0)
            elif not name.startswith("["):
                maps[words[0] & 0xFFFFFFFF] = (name, 0)
        elif kind == FORK:
            pid, parent = struct.unpack_from("<II", body)
            parents[pid] = parent
    symbols = {}
    others, whole, part, foreign, wrong = collections.Counter(), 0, 0, 0, []
    for got in stacks.values():
        for pid, pcs in got:
            name, bias = maps.get(pid) or maps.get(parents.get(pid), ("?", 0))
            if not name.startswith("victim"):
                foreign += 1
                continue
            if name not in symbols:
                symbols[name] = symbols_of(programs / name)
            frames = [name_of(symbols[name], pc - bias - (at > 0)) for at, pc in enumerate(pcs)]
            text = " ".join(frames)
            if KNOWN.match(text):
                whole += 1
            elif "work" in frames or "step" in frames:
                part += 1
                wrong.append(text)
            else:
                others["of the C library: " + text[:60]] += 1
    asked = collections.Counter((tid, cookie) for tid, cookie, _, _ in samples if cookie)
    without = sum(1 for key in asked if key not in stacks)
    twice = sum(1 for got in stacks.values() if len(got) > 1)
    in_kernel = [chain for _, _, mode, chain in samples if mode == 1]
    faults = ["a cookie with two stacks"] * twice + ["a known stack is not whole"] * part
    faults += ["no stacks"] * (not stacks) + ["a stack that was not asked for"] * sum(key not in asked for key in stacks)
    faults += ["a kernel stack without its mark"] * sum(chain[:1] != (KERNEL_MARK,) for chain in in_kernel)
    total = sum(map(len, stacks.values()))
    text = (f"{len(samples)} samples ({len(in_kernel)} of the kernel), {total} stacks: {whole} whole and right, {part} not, "
            f"{total - whole - part - foreign} of start-up, {foreign} of others; cookies {len(asked)}: one stack "
            f"{len(asked) - without - twice}, none {without}, more {twice}; lost {lost}")
    for stack in wrong[:6]:
        text += f"\n        not whole: {stack[:400]}"
    for other, count in others.most_common(6):
        text += f"\n        {count} x {other}"
    return Tally(text, sorted(faults))
