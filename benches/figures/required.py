#!/usr/bin/env python3
"""Prints what the engine has to reach beside what was measured, by the files in benches/figures/measured.

    benches/figures/required.py

The last part of benches/figures/README.md, see benches/figures/figures.sh. A figure that is not in the
files is an error, so that no line is lost when a command prints something else.
"""

import sys

FOLDER = "benches/figures/measured"


def lines(name):
    """The lines of a file of figures."""
    with open(f"{FOLDER}/{name}.md", encoding="utf-8") as file:
        return file.read().splitlines()


def column(name, section, row, which):
    """A number of a line that begins with these words, after the line that begins so."""
    is_in = False
    for line in lines(name):
        if line.startswith(section):
            is_in = True
        elif is_in and line.split()[:len(row.split())] == row.split():
            return float(line.split()[len(row.split()):][which])
    sys.exit(f"{FOLDER}/{name}.md has no line {row!r} after {section!r}")


def cell(name, row, heading):
    """The cell of a Markdown table, in the row whose name begins so."""
    headings = []
    for line in lines(name):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|  |"):
            headings = cells
        elif cells[0].startswith(row) and heading in headings:
            if cells[headings.index(heading)]:
                return float(cells[headings.index(heading)])
    sys.exit(f"{FOLDER}/{name}.md has no cell {row!r}, {heading!r}")


def first(name, source):
    return column("first", "```", f"first stack, {source} {name}", -1)


def instructions(section, row, which):
    return column("instructions", f"instructions a {section}", row, which)


def with_index(name):
    """What an index adds to the instructions of a miss, in percent."""
    return 100 * (instructions("miss", name, 2) / instructions("miss", name, 0) - 1)


def change(name):
    section = "a sample after a change"
    ours, theirs = (column("instructions", section, name, which) for which in [0, 1])
    return ours / theirs


def spaces(count):
    return column("curves", "processes of one program", str(count), 1)


LARGE = ["python", "node", "cc1plus", "rustc-whole"]
CORPORA = ["python", "node", "cc1plus", "rustc"]
TARGETS = ["python3", "node", "500 threads", "3,001 threads"]
BUILD = "build V3, a row of CFI / gimli, rows alone"
OWN = "unwind, SFrame / two-load loop, code with fp"
CHECKED = "unwind, frame pointers / two-load loop"
PAUSE = "longest pause of a busy node"

# What is measured, the file with it; and of what: required, and measured. At most, all of them.
FIGURES = [
    ("First stack from nothing / framehop", "first",
     [(name, 2, first(name, ".eh_frame")) for name in LARGE]),
    ("First stack by SFrame sections in the files / framehop", "first",
     [(name, 1, first(name, ".sframe in the file")) for name in LARGE]),
    ("Longest pause by `unwind stack` / eu-stack's", "stack",
     [("node", 0.7, cell("stack", PAUSE, "unwind / eu-stack"))]),
    ("Wall time of `unwind stack` / eu-stack's", "stack",
     [(name, required, cell("stack", name, "unwind / eu-stack"))
      for name, required in zip(TARGETS, [0.3, 0.25, 0.07, 0.09])]),
    ("A whole table / gimli's rows alone", "ratios",
     [(name, 1.1, cell("ratios", f"{name}, ", BUILD)) for name in CORPORA]),
    # The last revision before the work on this.
    ("Replay with misses, 512 rows, instructions a frame / at a40e2584", "since",
     [(name, required, column("since", "replay", name, 2))
      for name, required in zip(CORPORA, [0.80, 0.67, 0.81, 0.74])]),
    # The command, which has memory, has more by default.
    ("The same with 4,096 rows; `unwind stack` has 8,192, `record` and `report` 32,768", "since",
     [(name, required, column("since", "replay", name, 4))
      for name, required in zip(CORPORA, [0.80, 0.67, 0.81, 0.74])]),
    ("Instructions of a miss", "instructions",
     [("cc1plus", 600, instructions("miss", "cc1plus", 0))]),
    ("What an index adds to a frame that misses, %", "instructions",
     [(name, -10, with_index(name)) for name in ["cc1plus", "node", "rustc"]]),
    ("1,000 return addresses, time with 4,096 rows / 512", "curves",
     [("", 0.25, column("curves", "walks through random", "1000", 2))]),
    ("Sample after a change of one of 1,000 modules / framehop", "instructions",
     [(name, 0.3, change(name)) for name in CORPORA]),
    ("200 processes of one program, a frame / one process", "curves",
     [("by key", 1.5, spaces(200) / spaces(1))]),
    ("Own stack without frame pointers / two-load loop", "ratios",
     [(f"{frames} frames", required, cell("ratios", f"no fp, {frames}", OWN))
      for frames, required in [(100, 1.9), (400, 1.5)]]),
    ("Checked frame pointers / two-load loop", "ratios",
     [(f"{frames} frames", required, cell("ratios", f"fp, {frames}", CHECKED))
      for frames, required in [(100, 1.5), (400, 1.2)]]),
    ("Code that a walk by tables with a cache adds, bytes", "sizes",
     [("", 22000, column("sizes", "bytes", "tables", 0))]),
]


# What is no figure, and the tests of it.
CHECKED_BY_TESTS = """
By tests, and not by figures:

- Frames of 32-bit programs without frame pointers are those of eu-stack and gdb, live and in core
  files, static, with threads and between any two instructions: `cargo test --package unwind-cli --test
  oracle 32_bit`.
- Rows of call frame information lead where gimli's lead, and no row can say the same of both: `cargo
  test --package unwind-cfi --test against_gimli`. Of large files each row's start and 10,000 random
  places, with the reasons for what no row can say: `cargo run --release --package unwind-cfi --example
  against_gimli FILE...`.
- A lookup in hostile call frame information ends after a stated number of steps: `cargo test --package
  unwind-cfi --test hostile`, and the fuzz target `cfi_lookup`.
- The first row of call frame information takes at most 537,000 instructions in any of python, node, cc1plus,
  librustc_driver, libLLVM, and both libcs: the last row of cc1plus' longest FDE, 20,068 bytes. The example
  `first_row` of `unwind-cfi` says how it is counted.

A part of a bench alone: 200 processes by `cargo bench --package unwind-benches --bench curves -- spaces`,
whole tables by `UNWIND_CORPUS=target/corpus cargo bench --package
unwind-benches --bench ratios -- tables`."""


def number(value):
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def main():
    print("|  | of what | required, at most | measured | file |")
    print("|---|---|--:|--:|---|")
    for what, file, cells in FIGURES:
        for of, required, measured in cells:
            short = "" if round(measured, 2) <= required else "**"
            print(f"| {what} | {of} | {number(required)} | {short}{number(measured)}{short} | [{file}](measured/{file}.md) |")
    print(CHECKED_BY_TESTS)


main()
