#!/usr/bin/env python3
"""Prints what the tables of `unwind record --engine bpf` take of memory, beside other formats for the same rows.

    benches/figures/table_memory.py [--programs N] [--record [--unwind FILE]]

Of python3, node, rustc, and N programs of /usr/bin, each with the libraries that `ldd` names, every file counted
once. Others' formats: OpenTelemetry's profiler takes 4 bytes a row, each file's in a map of 2^8, 2^9, ... entries,
and 16,384 rules of 12 bytes for the machine; lightswitch 8 bytes a row (types.h:929-985 and profiler.h:157 of
their sources of August 2026). With --record the same N programs run, as nobody and by themselves, while all of the
machine is recorded: the recorder's own memory, and that of the kernel's maps by bpftool.

Needs cargo; with --record root, Linux from 6.18 on, bpftool, unshare, setpriv.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from record import command_of

SIZES = ["cargo", "run", "--release", "--quiet", "--locked", "--package", "unwind-sframe", "--features", "cfi",
         "--example", "compact_sizes"]
OTEL_ROW, OTEL_RULES, OTEL_LEAST, LIGHTSWITCH_ROW = 4, 12 * 16384, 256, 8


def output(*command):
    return subprocess.run(command, check=False, text=True, errors="replace", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def is_program(path):
    """Whether it is a 64-bit ELF file of x86."""
    with open(path, "rb") as file:
        head = file.read(20)
    return head[:5] == b"\x7fELF\x02" and head[18:20] == b"\x3e\0"


def with_libraries(programs):
    """The files, and the libraries that they name."""
    found = {os.path.realpath(program) for program in programs}
    for program in programs:
        found.update(map(os.path.realpath, re.findall(r"(/\S+) \(0x", output("ldd", program))))
    return sorted(found)


def sizes(files):
    """Rows and bytes of each file's table."""
    for line in output(*SIZES, *files).splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        yield int(cells[1]), int(cells[2])


def row(name, programs):
    tables = list(sizes(with_libraries(programs)))
    rows, ours = sum(rows for rows, _ in tables), sum(image for _, image in tables)
    otel = OTEL_RULES + sum(OTEL_ROW << (max(rows, OTEL_LEAST) - 1).bit_length() for rows, _ in tables)
    mib = [f"{size / (1 << 20):.2f}" for size in (ours, otel, rows * LIGHTSWITCH_ROW)]
    return f"| {name} | {len(tables):,} | {rows:,} | {' | '.join(mib)} | {ours / rows:.2f} |"


def map_memory():
    """Bytes of all maps of the kernel, by their numbers."""
    return {it["id"]: (it.get("name", ""), it["bytes_memlock"])
            for it in json.loads(output("bpftool", "-j", "map", "show") or "[]")}


def record(unwind, programs):
    """Runs the programs while all is recorded. Prints what the recorder and the kernel took for that."""
    before = map_memory()
    alone = ["unshare", "--pid", "--net", "--mount", "--ipc", "--fork", "--kill-child", "setpriv",
             "--reuid=65534", "--clear-groups", "--no-new-privs", "timeout", "-s", "KILL", "1"]
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/ledger", "w+") as ledger:
        os.chmod(folder, 0o777)
        recorder = subprocess.Popen([unwind, "record", "--all", "--engine", "bpf", "--json", "-F", "2999",
                                     "-o", f"{folder}/data", "--duration", "600"],
                                    stdout=ledger, stderr=subprocess.DEVNULL)
        time.sleep(2)
        for program in programs:
            for _ in range(2):
                subprocess.run([*alone, program, "--version"], check=False, cwd=folder,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        with open(f"/proc/{recorder.pid}/status") as status:
            most = re.search(r"VmHWM:\s+(\d+)", status.read()).group(1)
        maps = [it for number, it in map_memory().items() if number not in before]
        recorder.send_signal(2)
        recorder.wait()
        ledger.seek(0)
        told = json.loads([line for line in ledger if line.startswith('{"')][-1])
    tables = [size for name, size in maps if name.startswith("unwind_t")]
    others = sum(size for _, size in maps) - sum(tables)
    print(f"{len(programs)} programs, two runs each: {told['written']:,} samples, {told['complete']:,} complete, "
          f"{told['kernel_only']:,} of the kernel alone, {told['unmatched']:,} without a stack, lost {told['lost']:,}, "
          f"not complete {told['incomplete']}, walks {told['walks']}")
    print(f"kernel: {len(tables)} tables {sum(tables) / 1e6:.1f} MB, other maps {others / 1e6:.1f} MB; "
          f"recorder at most {int(most) / 1e3:.1f} MB resident")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--unwind")
    asked = parser.parse_args()
    found = {os.path.realpath(entry.path) for entry in os.scandir("/usr/bin") if entry.is_file()}
    programs = [path for path in sorted(found) if is_program(path)][:asked.programs]
    if asked.record:
        return record(command_of(asked.unwind), programs)
    rustc = output("rustc", "--print", "sysroot").strip() + "/bin/rustc"
    print("| program | files | rows | MiB | OpenTelemetry | lightswitch | bytes a row |\n|---|--:|--:|--:|--:|--:|--:|")
    for name, which in [("python3", [sys.executable]), ("node", [shutil.which("node")]), ("rustc", [rustc]),
                        (f"{len(programs)} programs", programs)]:
        print(row(name, which), flush=True)


if __name__ == "__main__":
    main()
