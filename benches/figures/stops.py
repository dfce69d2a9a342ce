"""Samples of a perf.data with bytes of stacks, as the stops that unwind-local/c/truth compares.

Each is walked once more by elfutils' libdw from the same registers, all of them, over the same bytes,
where libdw is told of all mapped files.
"""

import collections
import json
import os
import re
import struct
import subprocess

REFERENCE = "unwind-local/c/truth/reference.c"
# As in truth/stops.h.
STOP, MAPS, MOST_ADDRESSES, REGISTERS = 0x504f5453, 0x5350414d, 512, 17
# Records, and bits of their headers.
COMM, FORK, SAMPLE, MMAP2 = 3, 7, 9, 10
EXEC = 1 << 13
# Fields of a sample that have eight bytes, in their order, by the bit of the sample type.
WORDS = {"identifier": 16, "ip": 0, "tid": 1, "time": 2, "addr": 3, "id": 6, "stream": 9, "cpu": 7,
         "period": 8}
# The same at the end of other records.
LAST_WORDS = ("tid", "time", "id", "stream", "cpu", "identifier")
READ, CHAIN, RAW, BRANCHES = (1 << bit for bit in (4, 5, 10, 11))
# DWARF's registers by perf's numbers.
X86_64 = (0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 8)
IA32 = (0, 2, 3, 1, 7, 6, 4, 5, 8)
SP = 7
PAGE = 0xfff
KINDS = re.compile(r"(\d+) (equal|ours has more|libdw has more|other frames) "
                   r"\(ours (complete|not complete), libdw's (whole|cut)(, which guessed)?\)")
ASTRAY = re.compile(r"(\d+) other frames \(ours complete, libdw has no return address\)")


def build(folder):
    """The reference; nothing where there is no libdw to build it with."""
    program = os.path.join(folder, "reference")
    done = subprocess.run(["gcc", "-std=c11", "-O2", "-o", program, REFERENCE, "-ldw", "-lelf"],
                          check=False, stderr=subprocess.DEVNULL)
    return None if done.returncode else program


def compare(reference, unwind, data, folder):
    """How many stacks agree with libdw's in which way, and what the reference prints.

    A way is: the kind, whether ours is complete, whether libdw's is whole, whether it guessed.
    """
    path = os.path.join(folder, "stops")
    with open(path, "wb") as out:
        counts = Stops(out, walked(unwind, data), vdso(folder)).write(data)
    with open(path, "rb") as stops:
        done = subprocess.run([reference], stdin=stops, stdout=subprocess.PIPE, text=True,
                              check=False)
    os.unlink(path)
    if done.returncode not in (0, 1):
        raise ValueError(f"{reference}: {done.returncode}\n{done.stdout}")
    last = done.stdout.splitlines()[-1]
    for count, kind, is_complete, end, guess in KINDS.findall(last):
        counts[kind, is_complete == "complete", end == "whole", bool(guess)] += int(count)
    counts["astray"] = sum(int(count) for count in ASTRAY.findall(last))
    return counts, done.stdout


def walked(unwind, data):
    """The stacks by thread and time: whether they are complete, and their addresses."""
    stacks = collections.defaultdict(collections.deque)
    script = subprocess.Popen([unwind, "script", "--json", "--max-stack", "65536", data],
                              stdout=subprocess.PIPE)
    for line in script.stdout:
        sample = json.loads(line)
        if sample["type"] == "sample" and sample["walk"]:
            parts = [part["ips"] for part in sample["chain"] if part["context"] == "user"]
            addresses = [int(ip, 16) for ip in parts[-1]] if parts else []
            key = (sample["tid"], sample["time"])
            stacks[key].append((sample["walk"]["complete"], addresses))
    if script.wait():
        raise ValueError(f"{unwind} script {data}: {script.returncode}")
    return stacks


def vdso(folder):
    """A file with the code that the kernel maps into 64-bit programs."""
    path = os.path.join(folder, "vdso.so")
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
        for line in maps:
            if line.endswith("[vdso]\n"):
                start, end = (int(word, 16) for word in line.split()[0].split("-"))
                memory.seek(start)
                with open(path, "wb") as file:
                    file.write(memory.read(end - start))
    return path


class Stops:
    """Writes stops, and the mapped files before them."""

    def __init__(self, out, stacks, vdso_path):
        self.out, self.stacks, self.vdso = out, stacks, vdso_path
        # Mapped code by process; a new list with each change.
        self.spaces, self.told, self.has_files = {}, None, False
        self.left_out = collections.Counter()

    def write(self, data):
        """Writes the stops of a recording; returns how many it leaves out, and why."""
        recording = Recording(data)
        for kind, misc, body in recording.by_time():
            if kind == COMM and misc & EXEC:
                self.spaces[struct.unpack_from("<I", body)[0]] = []
            elif kind == FORK:
                process, parent = struct.unpack_from("<II", body)
                self.spaces.setdefault(process, self.spaces.get(parent, []))
            elif kind == MMAP2:
                self.map(body)
            elif kind == SAMPLE:
                self.stop(recording.sample(body))
        return self.left_out

    def map(self, body):
        process, _, start, _, offset = struct.unpack_from("<IIQQQ", body)
        [rights] = struct.unpack_from("<I", body, 56)
        path = os.fsdecode(body[64:].split(b"\0")[0])
        path = self.vdso if path == "[vdso]" else path
        if rights & 4 and path.startswith("/") and os.path.isfile(path):
            self.spaces[process] = self.spaces.get(process, []) + [(start, offset, path)]

    def stop(self, sample):
        found = self.stacks.get((sample["tid"] >> 32, sample["time"]))
        if not found:
            return
        is_complete, addresses = found.popleft()
        if len(addresses) > MOST_ADDRESSES:
            self.left_out["too deep"] += 1
            return
        space = self.spaces.get(sample["tid"] & 0xffffffff, [])
        if space is not self.told:
            self.told = space
            lines = os.fsencode("".join(lines_of(space)))
            self.has_files = bool(lines)
            if self.has_files:
                self.header(MAPS, 8, (), 0, 0, 0, len(lines))
                self.out.write(lines)
        # libdw refuses a process of which it knows no file: one that has begun to execute another
        # program, whose files are not mapped yet.
        if not self.has_files:
            self.left_out["no file"] += 1
            return
        names, size = (IA32, 4) if sample["abi"] == 1 else (X86_64, 8)
        registers = [sample["registers"][name] for name in names]
        stack = sample["stack"]
        self.header(STOP, size, registers, is_complete, len(addresses), sample["registers"][SP],
                    len(stack))
        self.out.write(struct.pack(f"<{len(addresses)}Q", *addresses) + stack)

    def header(self, kind, size, registers, *rest):
        is_complete, *numbers = rest
        padded = [*registers] + [0] * (REGISTERS - len(registers))
        self.out.write(struct.pack(f"<4I{REGISTERS}Q3Q", kind, size, len(registers), is_complete,
                                   *padded, *numbers))


class Recording:
    """A perf.data of one kind of samples, which is not compressed."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = file.read()
        attrs, attrs_size, self.data, self.size = struct.unpack_from("<4Q", self.bytes, 24)
        [each] = struct.unpack_from("<Q", self.bytes, 16)
        kinds = {struct.unpack_from("<Q", self.bytes, at + 24)
                 + struct.unpack_from("<Q", self.bytes, at + 80)
                 for at in range(attrs, attrs + attrs_size, each)}
        [(self.type, registers)] = kinds
        self.registers = [bit for bit in range(64) if registers >> bit & 1]
        if self.type & (READ | RAW | BRANCHES):
            raise ValueError(f"{path}: samples with fields that are not looked at here")

    def by_time(self):
        """The records: kind, bits, and what is after the header."""
        last = [word for word in LAST_WORDS if self.type >> WORDS[word] & 1]
        from_end = 8 * (len(last) - last.index("time"))
        records, at = [], self.data
        while at < self.data + self.size:
            kind, misc, size = struct.unpack_from("<IHH", self.bytes, at)
            if kind in (COMM, FORK, MMAP2):
                [time] = struct.unpack_from("<Q", self.bytes, at + size - from_end)
                records.append((time, kind, misc, at + 8, at + size))
            elif kind == SAMPLE:
                time = self.words(self.bytes[at + 8:at + 128])[0]["time"]
                records.append((time, kind, misc, at + 8, at + size))
            at += size
        # In their order where times are equal.
        for _, kind, misc, start, end in sorted(records, key=lambda record: record[0]):
            yield kind, misc, self.bytes[start:end]

    def words(self, body):
        """The first fields of a sample, and where they end."""
        fields, at = {}, 0
        for name, bit in WORDS.items():
            if self.type >> bit & 1:
                [fields[name]] = struct.unpack_from("<Q", body, at)
                at += 8
        return fields, at

    def sample(self, body):
        """What is known of a sample."""
        fields, at = self.words(body)
        if self.type & CHAIN:
            at += 8 + 8 * struct.unpack_from("<Q", body, at)[0]
        [fields["abi"]] = struct.unpack_from("<Q", body, at)
        at += 8
        count = len(self.registers) if fields["abi"] else 0
        values = struct.unpack_from(f"<{count}Q", body, at)
        fields["registers"] = collections.defaultdict(int, zip(self.registers, values))
        at += 8 * count
        [size] = struct.unpack_from("<Q", body, at)
        [length] = struct.unpack_from("<Q", body, at + 8 + size) if size else (0,)
        fields["stack"] = body[at + 8:at + 8 + length]
        return fields


def lines_of(space):
    """For each file a line as of /proc/PID/maps, from the start of its first segment."""
    for inode, (start, offset, path) in enumerate(sorted(space), 1):
        loads = segments(path)
        for begin, address, size, _, flags in loads:
            if flags & 1 and begin & ~PAGE <= offset < begin + size:
                bias = start - (offset - (begin & ~PAGE)) - (address & ~PAGE)
                low = bias + (loads[0][1] & ~PAGE)
                high = bias + (loads[-1][1] + loads[-1][3] + PAGE & ~PAGE)
                yield f"{low:x}-{high:x} r-xp 00000000 fe:00 {inode} {path}\n"
                break


def segments(path):
    """What is loaded of a file: offset, address, bytes in the file and in memory, flags."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF":
            return []
        is_64 = head[4] == 2
        [at] = struct.unpack_from("<Q" if is_64 else "<I", head, 32 if is_64 else 28)
        size, count = struct.unpack_from("<HH", head, 54 if is_64 else 42)
        file.seek(at)
        table = file.read(size * count)
    loads = []
    for start in range(0, len(table), size):
        if is_64:
            kind, flags, *rest = struct.unpack_from("<IIQQQQQ", table, start)
            offset, address, _, in_file, in_memory = rest
        else:
            kind, offset, address, _, in_file, in_memory, flags = struct.unpack_from(
                "<7I", table, start)
        if kind == 1:
            loads.append((offset, address, in_file, in_memory, flags))
    return loads
