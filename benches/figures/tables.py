#!/usr/bin/env python3
"""Writes the tables of a page that stand between `<!-- figures: NAME -->` and `<!-- end -->`.

    benches/figures/tables.py [--check] PAGE...

They are parts of the files in benches/figures/measured, with the day and the revision. --check says
by its exit code whether the pages have them.
"""

import re
import sys

FOLDER = "benches/figures/measured"
BLOCK = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
UNWINDERS = ["unwind, SFrame", "unwind, `.eh_frame`", "framehop 0.16", "simple-frame-rs 0.3", "gimli 0.34"]


def read(name):
    with open(f"{FOLDER}/{name}.md", encoding="utf-8") as file:
        return file.read()


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(name, *headings, where=lambda row: True):
    """These columns of the first table of a file that has all of them."""
    for text in re.findall(r"(?:^\|.*\n)+", read(name), flags=re.MULTILINE):
        lines = [cells(line) for line in text.splitlines()]
        if all(heading in lines[0] for heading in headings):
            rows = [dict(zip(lines[0], line)) for line in lines[2:]]
            return [[row[heading] for heading in headings] for row in rows if where(row)]
    sys.exit(f"{FOLDER}/{name}.md has no table with {headings}")


def at_999(row):
    return row["Hz"] == "999"


def markdown(headings, rows):
    yield "| " + " | ".join(headings) + " |"
    yield "|---" + "|--:" * (len(headings) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def instructions():
    """What a frame costs in replay, in instructions."""
    lines = [line.replace(",", "").split() for line in read("instructions").splitlines()]
    rows = [line for line in lines if line[1:2] == ["replay"] and len(line) == 11]
    rows = [[row[at] for at in [0, 2, 4, 6, 7, 8]] for row in rows]
    return markdown(["instructions a frame", *UNWINDERS], rows)


def first():
    """The ratios of the first stack: each line has the program, and the ratio at its end."""
    found = {}
    line = re.compile(r"first stack, (\S+).*?  +([\w-]+)(, cold CPU)? .* framehop .* ([\d.]+)$")
    for match in filter(None, map(line.match, read("first").splitlines())):
        found.setdefault(match[2], []).append(f"{float(match[4]):.2f}")
    headings = ["", "`.eh_frame`", "SFrame in the file", "`.eh_frame`, caches swept", "SFrame, caches swept"]
    return markdown(headings, [[name, *ratios] for name, ratios in found.items()])


def sizes():
    lines = [line.split() for line in read("sizes").splitlines()]
    rows = [line for line in lines if len(line) == 3 and line[1].isdigit()]
    return markdown(["bytes", "code", "constants"], rows)


def stack():
    rows = table("stack", "", "eu-stack, ms", "unwind / eu-stack", "`--no-stop` / eu-stack", "/ `eu-stack -s -i`")
    return markdown(["", "eu-stack, ms", "`--no-lines` / eu-stack", "`--no-lines --no-stop` / eu-stack",
                     "as typed / `eu-stack -s -i`"], rows)


def walks():
    rows = table("ratios", "", "replay / framehop", "hot / framehop")
    return markdown(["", "in the order of the samples", "the same again and again"], rows)


def own_stack():
    rivals = {"framehop": "framehop", "libunwind's unw_backtrace": "libunwind", "glibc's backtrace": "glibc"}
    columns = [f"unwind-local / {rival}" for rival in rivals]
    rows = table("ratios", "", *columns, where=lambda row: row[columns[0]])
    return markdown(["frames", *rivals.values()], rows)


def complete():
    columns = ["complete: unwind", "perf dwarf", "perf fp", "samply"]
    rows = table("record", "program", *columns, where=at_999)
    return markdown(["complete stacks", "unwind", *columns[1:]], rows)


def price():
    columns = ["unwind / alone", "dwarf / alone", "unwind / dwarf"]
    rows = table("price", "program", *columns, where=at_999)
    return markdown(["CPU time of the program", "unwind / alone", "perf dwarf / alone", "unwind / perf dwarf"], rows)


def recorder():
    columns = ["unwind", "perf dwarf", "perf fp", "file, MB", "file / perf dwarf's"]
    rows = table("record", "program", *columns, where=at_999)
    return markdown(["CPU time of the recorder", *columns[:3], "file of unwind, MB", "file / perf dwarf's"], rows)


def libdw():
    columns = ["stacks", "equal and whole", "equal, not whole", "libdw guesses", "libdw led astray",
               "libdw has more or others, whole here", "the same, not whole here"]
    rows = table("verify", "program", *columns)
    headings = [*columns[:-2], "differ, complete by unwind", "differ, not complete"]
    return markdown(["program", *headings], rows)


def stops():
    rows = table("oracle", "program", "stacks", "say complete", "and lack a frame")
    total = [[cell.strip("*") for cell in row] for row in rows if row[0] == "**all**"]
    return markdown(["programs", "stacks", "say that they are complete", "and lack a frame"], total)


# The tables by their names, and the files that they are of.
TABLES = {
    "instructions": (instructions, "instructions"), "walks": (walks, "ratios"),
    "own-stack": (own_stack, "ratios"), "first": (first, "first"), "sizes": (sizes, "sizes"),
    "stack": (stack, "stack"), "complete": (complete, "record"), "price": (price, "price"),
    "recorder": (recorder, "record"), "libdw": (libdw, "verify"), "stops": (stops, "oracle"),
}


def block(match, up):
    lines, name = TABLES[match[2]][0](), TABLES[match[2]][1]
    when = re.search(r"^Measured ([\d-]+), revision (\w+)", read(name), flags=re.MULTILINE)
    source = f"[Measured]({up}{FOLDER}/{name}.md) {when[1]}, revision {when[2]}."
    return match[1] + "\n".join(lines) + f"\n\n{source}\n" + match[3]


def main():
    pages, is_same = sys.argv[1:], True
    is_check = "--check" in pages
    for page in pages[is_check:]:
        with open(page, encoding="utf-8") as file:
            old = file.read()
        new = BLOCK.sub(lambda match: block(match, "../" * page.count("/")), old)
        is_same = is_same and new == old
        if not is_check:
            with open(page, "w", encoding="utf-8") as file:
                file.write(new)
    sys.exit(0 if is_same or not is_check else 1)


main()
