"""Counts the lines and the sides of branches of libraries that tests reach.

    benches/figures/coverage.py [--rest] LIBRARY...    after benches/figures/coverage.sh has measured

A line counts if any instance of a generic function reaches it, and so does a side of a
branch. Tests inside the libraries, and the models that only tests run, do not count.
"""

import json
import os
import re
import sys
from collections import defaultdict

# Made by a build for its own tests alone.
FAULTY = "sync/faulty"


def test_modules(library):
    """The files, less `.rs`, and folders of modules that only tests have."""
    for folder, _, names in os.walk(library + "/src"):
        for name in names:
            with open(os.path.join(folder, name)) as file:
                found = re.findall(r"#\[cfg\([^\]]*\btest\b[^\]]*\)\]\n(?:#.*\n)*mod (\w+);", file.read())
            for module in found:
                yield os.path.join(folder, module)


def first_test_line(name):
    """Where the tests at the end of a file begin."""
    with open(name) as file:
        lines = file.read().split("\n")
    for at, line in enumerate(lines):
        if re.match(r"#\[cfg\(.*\btest\b", line):
            following = " ".join(lines[at + 1 : at + 3])
            if "mod " in following and "{" in following:
                return at + 1
    return len(lines) + 1


def measured(libraries):
    """The lines and branches of each source file: how often each was reached."""
    root = os.getcwd() + "/"
    lines, branches = defaultdict(dict), defaultdict(dict)
    with open("target/coverage.lcov") as file:
        name = ""
        for entry in file:
            kind, _, rest = entry.strip().partition(":")
            if kind == "SF":
                name = rest.removeprefix(root)
            elif kind == "DA":
                number, count = (int(part) for part in rest.split(",")[:2])
                lines[name][number] = max(lines[name].get(number, 0), count)
    with open("target/coverage.json") as file:
        for entry in json.load(file)["data"][0]["files"]:
            of_file = branches[entry["filename"].removeprefix(root)]
            for branch in entry.get("branches", []):
                taken, not_taken = of_file.get(tuple(branch[:2]), (0, 0))
                of_file[tuple(branch[:2])] = (taken + branch[4], not_taken + branch[5])
    tests = [module for library in libraries for module in test_modules(library)]
    for name in sorted(lines):
        if not name.startswith(tuple(library + "/src/" for library in libraries)):
            continue
        if FAULTY in name or any(name.startswith((test + ".rs", test + "/")) for test in tests):
            continue
        end = first_test_line(name)
        yield (
            name,
            {number: count for number, count in lines[name].items() if number < end},
            {place: sides for place, sides in branches[name].items() if place[0] < end},
        )


def table(libraries):
    print("| library | lines | | sides of branches | |")
    print("|---|---:|---:|---:|---:|")
    sums = defaultdict(lambda: [0, 0, 0, 0])
    for name, lines, branches in measured(libraries):
        of_library = sums[name.split("/")[0]]
        of_library[0] += sum(count != 0 for count in lines.values())
        of_library[1] += len(lines)
        of_library[2] += sum((side != 0) for sides in branches.values() for side in sides)
        of_library[3] += 2 * len(branches)
    for library in libraries:
        lines, all_lines, sides, all_sides = sums[library]
        print(
            f"| `{library}` | {lines:,} of {all_lines:,} | {100 * lines / all_lines:.1f} %"
            f" | {sides:,} of {all_sides:,} | {100 * sides / all_sides:.1f} % |"
        )


def rest(libraries):
    for name, lines, branches in measured(libraries):
        with open(name) as file:
            text = file.read().split("\n")
        for number, count in sorted(lines.items()):
            if count == 0:
                print(f"{name}:{number}: line: {text[number - 1].strip()}")
        for (number, column), sides in sorted(branches.items()):
            if 0 in sides:
                side = "true" if sides[0] == 0 else "false"
                print(f"{name}:{number}:{column}: never {side}: {text[number - 1].strip()}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] == "--rest":
        rest(arguments[1:])
    else:
        table(arguments)
