"""The programs that a guest runs under `beside_kernel.py`, and their stacks by others than `unwind`: gdb, by the programs'
files, and the chains of functions that `load.c` has."""
import collections
import glob
import json
import os
import re
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
PYTHON = "/usr/bin/python3"
# By names of processes. All are of `load.c` but the last.
FILES = {
    "init": "init", "child; of init": "init", "load-dynamic": "load-dynamic", "load-32": "load-32",
    "python3": PYTHON[1:],
}
# What calls the leaves, from the inside out, down to where the C library begins.
OUTER = ["mid", "outer", "work", "main"]
MAP = re.compile(r"^MAP (.*): ([0-9a-f]+)-[0-9a-f]+ ..x. ([0-9a-f]+) \S+ \d+ +(/.*)$", re.M)


def libraries(path):
    """The libraries and the loader of a program, by their places."""
    return re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout)


class Programs:
    """The programs' files, by their names in the guest."""

    def __init__(self, folder):
        load = os.path.join(HERE, "load.c")
        self.files = {name: os.path.join(folder, name) for name in ("init", "load-dynamic", "load-32")}
        for name, options in [
            ("init", ["-static", "-Wl,--eh-frame-hdr"]),
            ("load-dynamic", []),
            ("load-32", ["-m32", "-static", "-Wl,--eh-frame-hdr"]),
        ]:
            subprocess.run(["gcc", *FLAGS, *options, "-o", self.files[name], load], check=True)
        self.files[PYTHON[1:]] = os.path.realpath(PYTHON)
        self.files["load.py"] = os.path.join(HERE, "load.py")
        for path in libraries(PYTHON) + libraries(self.files["load-dynamic"]):
            self.files[path[1:]] = os.path.realpath(path)
        (version,) = glob.glob("/usr/lib/python3.*/encodings")
        for path in [*glob.glob(f"{version}/*.py"), os.path.join(version, "..", "os.py")]:
            self.files[os.path.normpath(path)[1:]] = path

    def mapped(self, console):
        """Where each process has its code: its files and what is to be added to their addresses."""
        places = collections.defaultdict(dict)
        for name, start, offset, path in MAP.findall(console):
            file = self.files.get(path[1:])
            if file and file not in places[name]:
                places[name][file] = int(start, 16) - file_address(file, int(offset, 16))
        return places

    def names(self, process, places, pcs):
        """The functions of a process's own program at the addresses; None for those of others."""
        file = self.files[FILES[process]]
        return [function_at(symbols_of(file), pc - places[file]) for pc in pcs]


def file_address(file, offset):
    """The address in an ELF file's code of what is at an offset."""
    text = subprocess.run(["readelf", "-lW", file], check=True, capture_output=True, text=True).stdout
    for found in re.finditer(r"LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x\w+ 0x\w+ R E", text):
        start, addr = int(found[1], 16), int(found[2], 16)
        # Mappings begin at pages.
        if start & ~4095 == offset:
            return addr & ~4095
    raise ValueError(f"{file} has no code at {offset:#x}")


SYMBOLS = {}


def symbols_of(file):
    if file not in SYMBOLS:
        text = subprocess.run(["nm", "--print-size", "--numeric-sort", file], check=True, capture_output=True, text=True).stdout
        found = re.findall(r"^(\w+) (\w+) [tTwW] (\S+)$", text, re.M)
        SYMBOLS[file] = [(int(start, 16), int(size, 16), name) for start, size, name in found]
    return SYMBOLS[file]


def function_at(symbols, addr):
    return next((name.split(".")[0] for start, size, name in symbols if start <= addr < start + size), None)


def is_known_chain(names):
    """Whether the functions, innermost first, can have called each other in `load.c`."""
    own = [name for name in names if name in OUTER or (name or "").startswith("leaf_")]
    if own and own[0].startswith("leaf_"):
        own = own[1:]
    return own in (OUTER, OUTER[1:], OUTER[2:], OUTER[3:])


def by_gdb(socket, places, registers):
    """gdb's chain of pcs of the first vCPU, which has other registers now: they have to be set again afterwards."""
    files = [command for file, by in places.items() for command in ("-ex", f"add-symbol-file {file} -o {by:#x}")]
    # After each of these gdb may have selected another frame.
    values = [
        command for name, value in registers.items() for command in ("-ex", f"set ${name} = {value:#x}", "-ex", "frame 0")
    ]
    command = [
        "gdb", "-q", "-nx", "-batch", "-ex", "set architecture i386:x86-64", "-ex", "set confirm off",
        "-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on", *files,
        "-ex", f"target remote {socket}", "-ex", "thread 1", *values,
        "-ex", f"source {HERE}/gdb_stop.py", "-ex", "disconnect",
    ]
    environment = dict(os.environ, GUEST_WORDS="[]")
    output = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    for line in output.stdout.splitlines():
        if line.startswith("STOP "):
            return json.loads(line[5:])["chain"]
    raise RuntimeError(f"gdb found nothing: {output.stdout}{output.stderr}")
