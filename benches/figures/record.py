#!/usr/bin/env python3
"""Prints the tables of benches/figures/measured/record.md: what `unwind record` sees and costs.

    benches/figures/record.py [--pairs N] [--rates HZ,HZ] [--results FILE] [--unwind FILE]
                              [--engine NAME] [PROGRAM...]

Each program does the same work alone, recorded by `unwind record`, by perf with copies of
stacks (`--call-graph dwarf`) and by perf with frame pointers (`fp`); with --engine bpf also by
`unwind record` with copies. They take turns, every second time in the opposite order, and a turn of
one program follows one of another, so that what else the machine does falls on all of them; the
figures are medians over the turns. CPU seconds of the program and of the recorder are told apart. What the recorders have seen is that of the first
turn, in which samply, if it is there, records each program, too.

Beside these a program that only looks at the clock tells how long it does not, which is what a
sample takes of it. That says more of the price than the CPU seconds of a program, which differ by
some percent from run to run.

Each program works for one or two seconds. Ten turns of all programs at both rates take some 30
minutes. With --results each turn is kept in a file as soon as it is over and not taken again: after
an interruption the same command continues. --unwind takes a command that is there, not that of
this tree, --engine what walks stacks for it. --table prints the tables of what a file has, and measures nothing.

Needs perf, gcc, g++, go, node, and the right to record; samply, which must be in the PATH, wants 1
or less in /proc/sys/kernel/perf_event_paranoid, which root sets for the time that samply runs.
"""

import argparse
import contextlib
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import samply

PROGRAMS = "benches/programs"
NODE_WITH_MAP = "node, --perf-basic-prof"
MAPS = "/tmp/perf-*.map"
INTERRUPTED = "interrupted"
# KiB of its stack: less than any recorder copies, and more.
DEPTHS = ("4", "12", "64")
# Student's distribution has 95 of 100 cases within as many standard errors, of two numbers and more.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
           2.145, 2.131, 2.120, 2.110, 2.101, 2.093]
PARANOID = "/proc/sys/kernel/perf_event_paranoid"
# The outermost functions by name, without underscores in front. perf leaves the last one or two out
# in some programs, which counts as complete.
OUTERMOST = {"start", "clone3", "clone", "dl_start_user", "start_thread",
             "thread_start", "libc_start_call_main", "libc_start_main_impl",
             "libc_start_main@@GLIBC_2.34", "runtime.goexit", "runtime.goexit.abi0",
             "runtime.mstart", "runtime.mstart.abi0", "runtime.mcall", "runtime.rt0_go.abi0",
             "rt0_amd64_linux",
             # samply's names for the loader's first function and for that of libc.
             "EntryPoint", "libc_start_main_alias_2"}


def is_outermost(name):
    """Whether a thread starts in a function of this name."""
    return name.lstrip("_") in OUTERMOST


def command_of(asked):
    """The path of the command that --unwind names, or of that of this tree, which is built."""
    if asked is None:
        subprocess.run(["cargo", "build", "--profile", "dist", "--quiet", "--locked", "--package",
                        "unwind-cli"], check=True)
        asked = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "dist/unwind")
    return os.path.abspath(asked)


def recorder_of(asked):
    """How that command records."""
    return [command_of(asked.unwind), "record", "--engine", asked.engine]


def build(folder):
    """The command lines of the programs, by name."""
    def path(name):
        return os.path.join(folder, name)

    def run(*command):
        subprocess.run(command, check=True)

    run("gcc", "-O2", "-static", "-o", path("timed"), f"{PROGRAMS}/timed.c")
    run("gcc", "-O2", "-o", path(INTERRUPTED), f"{PROGRAMS}/interrupted.c")
    plain = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
    run("gcc", *plain, "-o", path("nofp"), f"{PROGRAMS}/recursion.c")
    run("gcc", "-m32", *plain, "-o", path("ia32"), f"{PROGRAMS}/recursion.c")
    run("g++", "-std=c++17", "-E", f"{PROGRAMS}/templates.cc", "-o", path("templates.ii"))
    go = f"{PROGRAMS}/work.go"
    run("env", "GO111MODULE=off", "go", "build", "-o", path("go"), go)
    compiler = subprocess.run(["gcc", "-print-prog-name=cc1plus"], check=True, text=True,
                              stdout=subprocess.PIPE).stdout.strip()
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], check=True, text=True,
                             stdout=subprocess.PIPE).stdout.strip()
    python, node = shutil.which("python3.11") or shutil.which("python3"), shutil.which("node")
    return {
        "C without frame pointers": [path("nofp"), "45000"],
        "C, 32-bit": [path("ia32"), "32000"],
        "python3": [python, f"{PROGRAMS}/work.py", "150"],
        "node": [node, f"{PROGRAMS}/work.js", "800"],
        NODE_WITH_MAP: [node, "--perf-basic-prof", f"{PROGRAMS}/work.js", "800"],
        # Without code for it, which would take four times as long.
        "cc1plus": [compiler, "-fpreprocessed", "-quiet", "-fsyntax-only", "-std=c++17",
                    path("templates.ii"), "-o", "/dev/null"],
        "rustc": [f"{sysroot}/bin/rustc", "--edition", "2024", "--crate-type", "lib",
                  "--emit", "obj=/dev/null", "-C", "opt-level=0", f"{PROGRAMS}/generic.rs"],
        "Go": [path("go"), "9000"],
    }


def maps():
    """The maps that programs have written."""
    return set(glob.glob(MAPS))


def remove_maps(before):
    """Removes the maps that programs have written since then: they would fill the disk."""
    for name in maps() - before:
        os.unlink(name)


def timed(recorder, program, folder):
    """CPU seconds of the program, and of the recorder around it, with its output."""
    told = os.path.join(folder, "seconds")
    timed_program = [os.path.join(folder, "timed"), told, *program]
    before = os.times()
    done = subprocess.run(recorder + timed_program, check=False, cwd=folder,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    after = os.times()
    if done.returncode:
        sys.exit(f"{recorder}: {done.returncode}\n{done.stderr.decode()}")
    both = (after.children_user - before.children_user
            + after.children_system - before.children_system)
    with open(told) as file:
        own = sum(float(word) for word in file.read().split())
    return own, max(both - own, 0.0), done.stdout


def by_perf(data):
    """How many stacks perf follows to the outermost function, of how many."""
    script = subprocess.Popen(["perf", "script", "--no-inline", "-i", data, "-F", "ip,sym"], text=True,
                              errors="replace", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    complete = samples = 0
    last = None
    for line in script.stdout:
        words = line.split()
        if words:
            last = words[1] if len(words) > 1 else ""
        elif last is not None:
            samples += 1
            complete += is_outermost(last)
            last = None
    if script.wait():
        sys.exit(f"perf script -i {data} failed")
    return complete, samples


def by_samply(program, rate, folder):
    """How many stacks samply follows to the outermost function, of how many; or why there are none."""
    if shutil.which("samply") is None:
        return "not installed"
    profile = os.path.join(folder, "samply.json")
    names = os.path.join(folder, "samply.syms.json")
    for left in (profile, names):  # Of the program before.
        if os.path.exists(left):
            os.unlink(left)
    with allowed_to_samply():
        done = subprocess.run(["samply", "record", "--save-only", "--unstable-presymbolicate", "-r",
                               str(rate), "-o", profile, "--", *program], check=False, cwd=folder,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if not os.path.exists(names):
        told = done.stderr.decode(errors="replace")
        print(f"samply: {done.returncode}\n{told}", file=sys.stderr)
        return "no right" if PARANOID in told else f"fails with {done.returncode}"
    all_names = list(samply.stacks(profile, names))
    return sum(is_outermost(name) for name in all_names), len(all_names)


@contextlib.contextmanager
def allowed_to_samply():
    """Root gives samply the level that it insists on, also as root, and takes it back."""
    with open(PARANOID) as file:
        before = file.read()
    if int(before) <= 1 or os.geteuid():
        yield
        return
    with open(PARANOID, "w") as file:
        file.write("1")
    try:
        yield
    finally:
        with open(PARANOID, "w") as file:
            file.write(before)


def recorders(unwind, rate, folder):
    """The contestants: name, command, file."""
    ours, copies, dwarf, fp = (os.path.join(folder, name)
                               for name in ("ours", "copies", "dwarf", "fp"))
    perf = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(rate)]
    with_copies = {}
    if unwind[-1] == "bpf":
        other = [*unwind[:-1], "perf", "--json", "-F", str(rate), "-o", copies, "--"]
        with_copies["unwind, copies"] = (other, copies)
    return {
        "alone": ([], None),
        "unwind": ([*unwind, "--json", "-F", str(rate), "-o", ours, "--"], ours),
        **with_copies,
        "dwarf": (perf + ["--call-graph", "dwarf", "-o", dwarf, "--"], dwarf),
        "fp": (perf + ["--call-graph", "fp", "-o", fp, "--"], fp),
    }


def turn_of(unwind, program, rate, number, folder):
    """One turn: seconds of each contestant, sizes of files, and of the first what each has seen."""
    before = maps()
    contestants = list(recorders(unwind, rate, folder).items())
    seconds, sizes, seen = {}, {}, {}
    for name, (command, data) in contestants if number % 2 == 0 else reversed(contestants):
        own, around, output = timed(command, program, folder)
        seconds[name] = (own, around)
        if data is None:
            continue
        sizes[name] = os.path.getsize(data)
        if number == 0:
            seen[name] = ledger(output) if name.startswith("unwind") else by_perf(data)
    if number == 0:
        seen["samply"] = by_samply(program, rate, folder)
    remove_maps(before)
    return {"seconds": seconds, "sizes": sizes, "seen": seen}


def interrupted_turn(unwind, depth, rate, number, folder):
    """How often each contestant interrupts a program, for how long, and for which share."""
    told = os.path.join(folder, "interruptions")
    turn = {}
    contestants = list(recorders(unwind, rate, folder).items())
    for name, (command, _) in contestants if number % 2 == 0 else reversed(contestants):
        subprocess.run(command + [os.path.join(folder, INTERRUPTED), told, "1", depth], check=True,
                       cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(told) as file:
            turn[name] = [int(word) for word in file.read().split()]
    return turn


def measured(turns):
    """All turns of a program as one result."""
    def column(field, name):
        return [turn[field][name] for turn in turns]

    return {"seconds": {name: column("seconds", name) for name in turns[0]["seconds"]},
            "sizes": {name: column("sizes", name) for name in turns[0]["sizes"]},
            "seen": turns[0]["seen"], "pairs": len(turns)}


class Results:
    """The turns that were taken, by program and rate, in a file if there is one."""

    def __init__(self, path):
        self.path, self.turns = path, {}
        if path and os.path.exists(path):
            with open(path) as file:
                self.turns = json.load(file)

    def add(self, key, turn):
        self.turns.setdefault(key, []).append(turn)
        if self.path:
            with open(f"{self.path}.part", "w") as file:
                json.dump(self.turns, file)
            os.replace(f"{self.path}.part", self.path)


def measure(results, asked, unwind):
    """Takes the turns that are not there yet."""
    with tempfile.TemporaryDirectory() as folder:
        programs = {name: [os.path.abspath(word) if os.path.exists(word) else word
                           for word in command] for name, command in build(folder).items()
                    if not asked.programs or name in asked.programs}
        names = list(programs) + [depth_name(depth) for depth in DEPTHS if not asked.programs]
        left = [(number, rate, name) for number in range(asked.turns)
                for rate in asked.rates.split(",") for name in names
                if number >= len(results.turns.get(key(name, rate), []))]
        begun = time.monotonic()
        for at, (number, rate, name) in enumerate(left):
            gone = time.monotonic() - begun
            rest = f", some {gone / at * (len(left) - at) / 60:.0f} min left" if at else ""
            print(f"turn {at + 1} of {len(left)}{rest}: {name}, {rate} Hz", file=sys.stderr,
                  flush=True)
            if name in programs:
                turn = turn_of(unwind, programs[name], rate, number, folder)
            else:
                depth = name.split()[1]
                turn = interrupted_turn(unwind, depth, rate, number, folder)
            results.add(key(name, rate), turn)


def depth_name(depth):
    return f"{INTERRUPTED} {depth} KiB"


def key(name, rate):
    return f"{name} at {rate}"


def ledger(output):
    """Complete stacks and samples of a ledger, whose sums the command has checked."""
    told = json.loads(output)
    reasons = sorted(told["incomplete"].items(), key=lambda item: -item[1])
    return told["complete"], told["written"] + told["lost"], reasons, told["kernel_only"]


def share(seen):
    if seen is None:  # Of a file of an earlier version.
        return "not tried"
    if isinstance(seen, str):
        return seen
    return f"{100 * seen[0] / seen[1]:.1f} %" if seen[1] else "no sample"


def median(numbers):
    return statistics.median(numbers)


def more(these, those):
    """How much more CPU time the program took, turn by turn: the median, and the middle half."""
    numbers = [100 * (own / before - 1) for (own, _), (before, _) in zip(these, those)]
    if len(numbers) < 4:
        return f"{median(numbers):+.1f} %"
    low, _, high = statistics.quantiles(numbers, n=4)
    return f"{median(numbers):+.1f} % ({low:+.1f} to {high:+.1f})"


def together(rate, results):
    """How much more CPU time all programs took by `unwind` than by perf dwarf: the mean of the turns,
    in each of which all programs count alike, and the interval that has it in 95 of 100 cases."""
    programs = [result["seconds"] for _, rate_of, result in results if rate_of == rate]
    turns = min(len(seconds["unwind"]) for seconds in programs)
    means = [statistics.fmean(100 * (seconds["unwind"][turn][0] / seconds["dwarf"][turn][0] - 1)
                              for seconds in programs) for turn in range(turns)]
    return f"{rate} Hz: {mean_of(means)}"


def mean_of(percents):
    """Their mean, and where it is in 95 of 100 cases, unless they are one or very many."""
    mean, count = statistics.fmean(percents), len(percents)
    if not 0 <= count - 2 < len(STUDENT):
        return f"{mean:+.2f} %"
    around = STUDENT[count - 2] * statistics.stdev(percents) / count ** 0.5
    return f"{mean:+.2f} % ({mean - around:+.2f} to {mean + around:+.2f})"


def seen_row(name, rate, results):
    """What the recorders have seen of a program."""
    seen = results["seen"]
    _, samples, reasons, kernel = seen["unwind"]
    others = ", ".join(f"{count:,} `{reason}`" for reason, count in reasons[:3])
    return (f"| {name} | {rate} | {samples:,} | {share(seen['unwind'])} "
            f"| {share(seen['dwarf'])} | {share(seen['fp'])} | {share(seen['samply'])} "
            f"| {others} | {kernel:,} |")


def cost_rows(name, rate, results):
    """What a program and its recorders took: rows of the two tables."""
    seconds, sizes = results["seconds"], results["sizes"]
    alone = seconds["alone"]
    contestants = [name for name in seconds if name != "alone"]
    cells = [more(seconds[recorder], alone) for recorder in contestants]
    cells.append(more(seconds["unwind"], seconds["dwarf"]))
    own = median([own for own, _ in alone])
    arounds = [f"{100 * median([around for _, around in seconds[recorder]]) / own:.1f} %"
               for recorder in contestants]
    size = median(sizes["dwarf"]) / median(sizes["unwind"])
    return (f"| {name} | {rate} | {own:.2f} | {' | '.join(cells)} |",
            f"| {name} | {rate} | {' | '.join(arounds)} | {median(sizes['unwind']) / 1e6:.2f} "
            f"| 1/{size:.0f} |")


def interrupted_row(name, rate, turns):
    """What a sample takes of a program."""
    cells = []
    for name_of in turns[0]:
        length = median([turn[name_of][1] for turn in turns]) / 1000
        part = median([turn[name_of][2] for turn in turns]) / 10_000
        cells.append(f"{length:.1f} µs, {part:.2f} %")
    ratios = [turn["unwind"][2] / turn["dwarf"][2] for turn in turns]
    return f"| {name.split()[1]} | {rate} | {' | '.join(cells)} | {median(ratios):.2f} |"


def arguments(count, default):
    """What is asked for. `count` is the option that says how many turns to take."""
    parser = argparse.ArgumentParser()
    parser.add_argument(count, type=int, default=default, dest="turns")
    parser.add_argument("--rates", default="999,4999")
    parser.add_argument("--results")
    parser.add_argument("--unwind")
    parser.add_argument("--engine", default="perf")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("programs", nargs="*")
    os.environ["RUSTUP_DIST_SERVER"] = "http://127.0.0.1:9"
    return parser.parse_args()


def main():
    asked = arguments("--pairs", 10)
    results = Results(asked.results)
    if not asked.table:
        measure(results, asked, recorder_of(asked))
    rows = []
    interrupted = []
    for name, turns in results.turns.items():
        name, rate = name.rsplit(" at ", 1)
        if name.startswith(INTERRUPTED) and rate in asked.rates.split(","):
            interrupted.append(interrupted_row(name, rate, turns))
        elif rate in asked.rates.split(",") and (not asked.programs or name in asked.programs):
            rows.append((name, rate, measured(turns)))
    rows.sort(key=lambda row: int(row[1]))
    turns = " or ".join(sorted({str(results["pairs"]) for _, _, results in rows}))
    print(f"Medians of {turns} turns. A stack of perf or samply counts as complete if its last "
          "frame has the name of a function that a thread starts in, whatever is missing before "
          "it; one of `unwind` if no frame is missing by its tables.\n")
    print("| program | Hz | samples | complete: unwind | perf dwarf | perf fp | samply "
          "| incomplete by `unwind`, most | kernel only |")
    print("|---|--:|--:|--:|--:|--:|--:|---|--:|")
    print("\n".join(seen_row(*row) for row in rows))
    costs = [cost_rows(*row) for row in rows]
    print("\nThe program's CPU time beside that of its run alone, and recorded by `unwind` beside "
          "recorded by perf dwarf: the median of the turns, and the middle half of them.\n")
    recorders_of = [name for name in (rows[0][2]["seconds"] if rows else ()) if name != "alone"]
    names = " | ".join(name if name.startswith("unwind") else f"perf {name}" for name in recorders_of)
    columns = "--:|" * len(recorders_of)
    print(f"| program | Hz | alone, s | {names} | unwind / perf dwarf |")
    print(f"|---|--:|--:|{columns}--:|")
    print("\n".join(program for program, _ in costs))
    print("\n`unwind` / perf dwarf, all programs together: the mean of the turns, and where it is in 95 of "
          "100 cases: " + "; ".join(together(rate, rows) for rate in asked.rates.split(",")) + ".")
    print("\nThe recorder's CPU time as a share of that of the program alone, and its file.\n")
    print(f"| program | Hz | {names} | file, MB | file / perf dwarf's |")
    print(f"|---|--:|{columns}--:|--:|")
    print("\n".join(recorder for _, recorder in costs))
    print("\nHow long a program with this much stack, in KiB, stands still at a time, the median, and "
          "in which share of its time; medians of the turns. Alone these are ticks of the kernel's "
          "clock.\n")
    print(f"| stack | Hz | alone | {names} | share: unwind / perf dwarf |")
    print(f"|---|--:|--:|{columns}--:|")
    print("\n".join(interrupted))


if __name__ == "__main__":
    main()
