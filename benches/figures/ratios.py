#!/usr/bin/env python3
"""Prints the tables of benches/figures/measured/ratios.md: what the bench `ratios` measures.

    benches/figures/ratios.py [FILE]     of the large corpus, captured first if it is not there;
                              or of what the bench has printed to FILE
"""

import os
import subprocess
import sys

BENCH = ["cargo", "bench", "--quiet", "--package", "unwind-benches", "--bench", "ratios", "--"]
PARTS = [
    ("process", "The stack of the process itself, frames of functions with or without frame "
     "pointers, called in turn or in random order."),
    ("walks", "Walks of the snapshots of a corpus."),
    ("tables", "Tables of the image that most frames of a corpus are in."),
]
# Where the columns of a line begin, see the bench's `line` and `fact`.
OF, FIGURES = 35, 66


def measured(part):
    """What the bench prints of a part."""
    environment = dict(os.environ, UNWIND_CORPUS="target/corpus")
    return subprocess.run(BENCH + [part], env=environment, check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def cells(text):
    """Of each line: what is measured, of what, and the ratio or fact."""
    for line in text.splitlines():
        what, of, figures = line[:OF].strip(), line[OF:FIGURES].strip(), line[FIGURES:]
        if not what:
            continue
        words = figures.split()
        try:
            times = float(words[0]), float(words[-2]), float(words[-1])
        except (IndexError, ValueError):
            yield what, of, figures.strip()
            continue
        rival = " ".join(words[1:-2])
        yield f"{what} / {rival}", of, f"{times[-1]:.2f}"


def table(text):
    """Markdown: a row for each thing measured, a column for each figure."""
    columns, rows = [], {}
    for column, of, cell in cells(text):
        if column not in columns:
            columns.append(column)
        rows.setdefault(of, {})[column] = cell
    print("|  | " + " | ".join(columns) + " |")
    print("|---|" + "--:|" * len(columns))
    for of, row in rows.items():
        print(f"| {of} | " + " | ".join(row.get(column, "") for column in columns) + " |")


def part_of(line):
    """The part of the bench that prints a line."""
    what, of = line[:OF].strip(), line[OF:FIGURES].strip()
    if what.startswith("first stack"):
        return "first"
    if what.startswith("unwind, "):
        return "process"
    return "tables" if "," in of else "walks"


def main():
    text = open(sys.argv[1]).read() if sys.argv[1:] else None
    if text is None:
        subprocess.run(["benches/capture.sh"], check=True, stdout=sys.stderr)
    print("Ratios of times, unwind / rival: the shortest of many rounds in which both take turns.")
    for part, sentence in PARTS:
        print(f"\n{sentence}\n")
        if text is None:
            table(measured(part))
        else:
            table("\n".join(line for line in text.splitlines() if part_of(line) == part))


main()
