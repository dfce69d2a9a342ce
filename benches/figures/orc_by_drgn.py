#!/usr/bin/env python3
"""Compares every row of a vmlinux's ORC tables, as the example `orc_rows` of unwind-guest reads them, with what
drgn's unwinder makes of the same sections: it steps out of a frame at each entry's first address, over memory
in which each word tells its address.

    benches/figures/orc_by_drgn.py VMLINUX ROWS [CUT]

ROWS is the output of `cargo run -p unwind-guest --example orc_rows VMLINUX`. Needs drgn (PyPI). Prints how many rows
were compared and each difference, and exits 1 where there is one. With CUT it writes the entries around the kernel's
entry, and what drgn makes of them, to CUT.ip, CUT.orc and CUT.txt: the inputs of `unwind-guest/tests/orc_by_drgn.rs`.
"""
import struct
import sys
import tempfile

from drgn import Architecture, Object, Platform, Program, TypeMember

NAMES = "r15 r14 r13 r12 bp bx r11 r10 r9 r8 ax cx dx si di orig_ax ip cs flags sp ss".split()
STACK = 0xFFFF900000000000
MASK = 0xFFFFFFFFFF
# How many entries a cut has.
CUT = 600
# The registers of the frame, far from each other.
REGISTERS = {name: STACK + (number + 1) * 0x10000 for number, name in enumerate(NAMES)}
REGISTERS.update(cs=0x10, ss=0x18, flags=0)


def word(addr):
    """What memory has at an address. Each region has addresses of the next one, and the last is not mapped, so that no
    walk gets far. Each is the selector of the kernel's code, too."""
    return (addr & ~MASK) + MASK + 1 | addr >> 3 << 16 & MASK | 0x10


def read(addr, count, _offset, _physical):
    start = addr & ~7
    words = b"".join(struct.pack("<Q", word(at)) for at in range(start, addr + count, 8))
    return words[addr - start:addr - start + count]


def sections(path):
    with open(path, "rb") as file:
        data = file.read()
    at, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, at + size * n) for n in range(count)]
    names = headers[names][4]
    for name, _, _, addr, offset, length, *_ in headers:
        end = data.index(b"\0", names + name)
        yield data[names + name:end].decode(), addr, data[offset:offset + length]


# The bases of the layout that Linux 7.2 has, by those that drgn knows. Kinds and offsets are the same.
RENUMBERED = {0: 0, 2: 2, 3: 5, 4: 4, 5: 3, 6: 6, 7: 7, 8: 1, 9: 9, 10: 8}
KNOWN_HEADER = bytes.fromhex("fe5d32bf581bd63b2ca9a5c65ba5a625eab3fe24")
NEW_HEADER = bytes.fromhex("137c36ad7627c4dd55932176bb0ecdbd5041fc82")


def renumber(tables):
    """The tables as drgn knows them."""
    if not any(name == ".orc_header" and data == NEW_HEADER for name, _, data in tables):
        return tables
    def entry(data):
        bases = data[4]
        return data[:4] + bytes([RENUMBERED[bases & 15] | RENUMBERED[bases >> 4] << 4, data[5]])
    def table(name, data):
        if name == ".orc_header":
            return KNOWN_HEADER
        if name == ".orc_unwind":
            return b"".join(entry(data[at:at + 6]) for at in range(0, len(data), 6))
        return data
    return [(name, addr, table(name, data)) for name, addr, data in tables]


def small_file(path):
    """A file that has the tables and nothing else: drgn wants a segment that has the header, and DWARF."""
    tables = [(name, addr, data) for name, addr, data in sections(path) if name.startswith(".orc_")
              and name != ".orc_lookup"]
    tables = renumber(tables)
    unit = struct.pack("<HBBIB", 5, 1, 8, 0, 1)
    tables += [(".debug_abbrev", 0, bytes([1, 0x11, 0, 0, 0, 0])),
               (".debug_info", 0, struct.pack("<I", len(unit)) + unit)]
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _, _ in tables) + b".shstrtab\0"
    base = 0xFFFFFFFF81000000
    out = bytearray(0x1000)
    headers, name = [(0,) * 10], 1
    for label, addr, data in tables + [(".shstrtab", 0, names)]:
        headers.append((name, 3 if label == ".shstrtab" else 1, 2 if addr else 0, addr, len(out), len(data), 0, 0, 1, 0))
        name += len(label) + 1
        out += data
    at = len(out)
    for header in headers:
        out += struct.pack("<IIQQQQIIQQ", *header)
    out[:64] = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, base, 64, at, 0, 64, 56, 1, 64,
                           len(headers), len(headers) - 1)
    out[64:120] = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, 0x1000, 0x1000, 0x1000)
    file = tempfile.NamedTemporaryFile(suffix=".elf")
    file.write(out)
    file.flush()
    return file, base


def expected(row):
    """The caller by a row of ours: pc, sp, bp; a text where there is none."""
    kind, sp, sp_offset, bp, bp_offset, _signal = row
    if kind in ("undefined", "end"):
        return None
    base = {"sp": "sp", "bp": "bp", "r10": "r10", "r13": "r13", "dx": "dx", "di": "di"}
    if sp in base:
        cfa = REGISTERS[base[sp]] + sp_offset
    elif sp == "[sp]":
        cfa = word(REGISTERS["sp"]) + sp_offset
    elif sp == "[bp]":
        cfa = word(REGISTERS["bp"] + sp_offset)
    if kind == "registers":
        return word(cfa + 128), word(cfa + 152), word(cfa + 32)
    own = REGISTERS["bp"]
    if kind == "partial":
        return word(cfa), word(cfa + 24), own
    bp = {"-": lambda: own, "cfa": lambda: word(cfa + bp_offset), "bp": lambda: word(own + bp_offset)}[bp]()
    return word(cfa - 8), cfa, bp


def main():
    path, rows, *cut = sys.argv[1:]
    file, base = small_file(path)
    release = next((data.split(b" ")[2].decode() for name, _, data in sections(path) if name == ".rodata"
                    for data in [data[data.find(b"Linux version "):][:200]]), "")
    vmcoreinfo = (f"OSRELEASE={release}\nPAGESIZE=4096\nKERNELOFFSET=0\n"
                  "SYMBOL(swapper_pg_dir)=ffffffff82a00000\n").encode()
    program = Program(Platform(Architecture.X86_64))
    program.set_linux_kernel_custom(vmcoreinfo, False)
    program.add_memory_segment(STACK, 2 * (MASK + 1), read)
    module = program.main_module(path, create=True)
    module = module[0] if isinstance(module, tuple) else module
    module.address_range = (base, base + 0x20000000)
    module.try_file(file.name, force=True)
    print(release, module.debug_file_status)
    u64 = program.int_type("unsigned long", 8, False)
    struct_type = program.struct_type(
        "pt_regs", 168, tuple(TypeMember(u64, name, number * 64) for number, name in enumerate(NAMES)))
    compared = differ = ends = without_offset = 0
    lines = [line.split() for line in open(rows)]
    lines = [(int(at, 16), kind, sp, int(sp_offset), bp, int(bp_offset), signal)
             for at, kind, sp, sp_offset, bp, bp_offset, signal in lines]
    first = max(0, next(number for number, line in enumerate(lines) if line[1] == "registers") - 100)
    made = []
    for number, (at, *row) in enumerate(lines):
        # An entry of no length is never the one that holds.
        if number + 1 < len(lines) and lines[number + 1][0] == at:
            continue
        frames = program.stack_trace(Object(program, struct_type, {**REGISTERS, "ip": at}))
        ours = expected(row)
        theirs = None
        if len(frames) > 1:
            frame = frames[1].registers()
            theirs = frame["rip"], frame["rsp"], frame.get("rbp")
        if first <= number < first + CUT:
            made.append(f"{at:#x} " + (" ".join(f"{value:#x}" for value in theirs) if theirs else "-"))
        compared += 1
        # Where ORC says nothing drgn follows the frame pointer.
        own = REGISTERS["bp"]
        if row[0] == "undefined" and theirs == (word(own + 8), own + 16, word(own)):
            theirs = None
        ends += theirs is None
        # Other registers than these two are taken as they are, as Linux's own unwinder does. The one entry that has an
        # offset needs it: the code there reads what the CPU has saved from rdx + 8 on.
        if row[1] not in ("sp", "bp", "-", "[sp]", "[bp]") and row[2] != 0 and theirs == expected([*row[:2], 0, *row[3:]]):
            without_offset += 1
            continue
        if ours != theirs:
            differ += 1
            if differ < 20:
                print(hex(at), row, ours and [hex(x) for x in ours], theirs and [x and hex(x) for x in theirs])
    print(f"{compared} rows compared, {ends} without a caller, {differ} differ, "
          f"and {without_offset} that drgn reads without its offset")
    if cut:
        tables = {name: (addr, data) for name, addr, data in sections(path)}
        ips, entries = tables[".orc_unwind_ip"], tables[".orc_unwind"]
        with open(cut[0] + ".ip", "wb") as file:
            file.write(ips[1][first * 4:(first + CUT) * 4])
        with open(cut[0] + ".orc", "wb") as file:
            file.write(entries[1][first * 6:(first + CUT) * 6])
        with open(cut[0] + ".txt", "w") as file:
            file.write(f"{ips[0] + first * 4:#x}\n" + "\n".join(made) + "\n")
    sys.exit(differ > 0)


main()
