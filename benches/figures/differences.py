#!/usr/bin/env python3
"""Prints the tables of benches/figures/measured/differences.md: what `unwind report --diff` says of recordings of
one program, and of recordings of which one function does ten percent more.

    benches/figures/differences.py [--comparisons N] [--pairs N,N] [--results FILE] [--unwind FILE] [PROGRAM...]

For each comparison a program is recorded as it is, before and after in turn, and after that
once more in which a function does more. --pairs says of how many pairs of recordings a comparison
is: the same recordings make one of eight pairs and eight of one. Needs gcc, g++, go and the right to record.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

from record import PROGRAMS, command_of

RATE = "4999"


def build(folder):
    """Command lines as they are and with ten percent more, and the function that does more."""
    def compiled(name, *command, source):
        path = os.path.join(folder, name)
        subprocess.run([*command, "-o", path, f"{PROGRAMS}/{source}"], check=True)
        return path

    plain = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
    eight = compiled("eight", "gcc", *plain, source="eight.c")
    of_cpp = compiled("eight-cpp", "g++", "-std=c++17", *plain, source="eight.cc")
    of_go = compiled("eight-go", "env", "GO111MODULE=off", "go", "build", source="eight.go")
    few, more = (compiled(f"recursion{percent}", "gcc", *plain, f"-DOWN_MORE={percent}",
                          source="recursion.c")
                 for percent in (0, 10))
    # Both are to have the same name.
    os.makedirs(os.path.join(folder, "more"))
    os.rename(few, os.path.join(folder, "recursion"))
    os.rename(more, os.path.join(folder, "more/recursion"))
    return {
        "eight functions, C": ([eight, "160000", "0"], [eight, "160000", "10"], "look_up"),
        "eight functions, C++": ([of_cpp, "160000", "0"], [of_cpp, "160000", "10"],
                                 "Numbers::look_up"),
        "eight functions, Go": ([of_go, "160000", "0"], [of_go, "160000", "10"], "main.lookUp"),
        "recursion, C": ([os.path.join(folder, "recursion"), "220000"],
                         [os.path.join(folder, "more/recursion"), "220000"], "own_work"),
    }


def recorded(unwind, command, data):
    subprocess.run([unwind, "record", "-F", RATE, "-o", data, "--", *command], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def compared(unwind, pairs):
    """The functions above the bound with their changes, that of the first row, and the spread in percent."""
    options = [word for pair in pairs for word in ("--diff", *pair)]
    told = subprocess.run([unwind, "report", *options], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    spread = re.search(r"differ by ([0-9.]+) % of their share", told)[1]
    _, rows = told.split("after  function\n")
    # A copy of a function that GCC has made for constant arguments is that function.
    name = r"(.+?)(?:\.constprop\.\d+)?(?:\([^*].*)? \([^()]*\)$"
    rows = [re.match(rf"(more|less)? +([-+][0-9.]+) % .* %  {name}", row)
            for row in rows.split("\n\n")[0].splitlines() if " % " in row]
    above = [(row[3], row[2]) for row in rows if row[1]]
    return {"above": above, "first": rows[0][3], "spread": float(spread)}


def measure(name, program, asked, unwind, folder, keep):
    """The answers to all comparisons of a program: of equal recordings, and with one that does more."""
    before, after, _ = program
    most = max(asked.pairs)
    answers = {f"{kind} {pairs}": [] for kind in ("equal", "more") for pairs in asked.pairs}
    for number in range(asked.comparisons):
        data = {kind: [os.path.join(folder, f"{kind}{at}") for at in range(most)]
                for kind in ("before", "again", "more")}
        for at in range(most):
            print(f"{name}: comparison {number + 1} of {asked.comparisons}, pair {at + 1} of {most}",
                  file=sys.stderr, flush=True)
            kinds = [("before", before), ("again", before), ("more", after)]
            for kind, command in kinds if at % 2 == 0 else reversed(kinds):
                recorded(unwind, command, data[kind][at])
        for pairs in asked.pairs:
            for begin in range(0, most - pairs + 1, pairs):
                part = slice(begin, begin + pairs)
                for kind, other in (("equal", "again"), ("more", "more")):
                    pair = zip(data["before"][part], data[other][part])
                    answers[f"{kind} {pairs}"].append(compared(unwind, list(pair)))
        keep(name, answers)
    return answers


def row(name, slow, pairs, answers):
    equal, more = answers[f"equal {pairs}"], answers[f"more {pairs}"]
    nothing = sum(not answer["above"] for answer in equal)
    first = sum(answer["first"] == slow for answer in more)
    above = sum(slow in [function for function, _ in answer["above"]] for answer in more)
    others = sorted({function for answer in equal for function, _ in answer["above"]})
    spreads = sorted(answer["spread"] for answer in equal)
    return (f"| {name} | {pairs} | {nothing} of {len(equal)} | {', '.join(others) or 'none'} "
            f"| {spreads[len(spreads) // 2]:.1f} % | `{slow}` | {first} of {len(more)} "
            f"| {above} of {len(more)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=2)
    parser.add_argument("--pairs", type=lambda text: [int(word) for word in text.split(",")],
                        default=[1, 4, 8])
    parser.add_argument("--results")
    parser.add_argument("--unwind")
    parser.add_argument("programs", nargs="*")
    asked = parser.parse_args()
    unwind = command_of(asked.unwind)
    results = {}

    def keep(name, answers):
        results[name] = answers
        if asked.results:
            with open(asked.results, "w") as file:
                json.dump(results, file)

    print("| program | pairs | two equal sides: nothing above the bound | else | most functions differ "
          "by | does 10 % more | is first | is above the bound |")
    print("|---|--:|--:|---|--:|---|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, program in build(folder).items():
            if asked.programs and name not in asked.programs:
                continue
            answers = measure(name, program, asked, unwind, folder, keep)
            for pairs in asked.pairs:
                print(row(name, program[2], pairs, answers), flush=True)


if __name__ == "__main__":
    main()
