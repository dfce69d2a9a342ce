#!/usr/bin/env python3
"""Prints the tables of docs/figures/record.md: what `unwind record` sees and costs.

    docs/record.py [--pairs N] [--rates HZ,HZ] [--results FILE] [--unwind FILE] [PROGRAM...]

Each program does the same work alone, recorded by `unwind record`, by perf with copies of
stacks (`--call-graph dwarf`) and by perf with frame pointers (`fp`). The four take turns, every
second time in the opposite order, so that what else the machine does falls on all of them; the
figures are medians over the turns. CPU seconds of the program and of the recorder are told apart.
samply, if it is there, records each program once. A quarter of an hour for each program and rate
with ten turns: with --results what is measured is kept in a file and not measured again, so that
programs can be measured one by one. --unwind takes a command that is there, not that of this tree.

Needs perf, gcc, g++, go, node, and the right to record; samply wants 1 or less in
/proc/sys/kernel/perf_event_paranoid.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import samply

PROGRAMS = "benches/programs"
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


def build(folder):
    """The command lines of the programs, by name."""
    def path(name):
        return os.path.join(folder, name)

    def run(*command):
        subprocess.run(command, check=True)

    run("gcc", "-O2", "-static", "-o", path("timed"), f"{PROGRAMS}/timed.c")
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
        "C without frame pointers": [path("nofp"), "90000"],
        "C, 32-bit": [path("ia32"), "40000"],
        "python3": [python, f"{PROGRAMS}/work.py", "200"],
        "node": [node, f"{PROGRAMS}/work.js", "1000"],
        "cc1plus": [compiler, "-fpreprocessed", "-quiet", "-O2", "-std=c++17",
                    path("templates.ii"), "-o", "/dev/null"],
        "rustc": [f"{sysroot}/bin/rustc", "--edition", "2024", "--crate-type", "lib",
                  "--emit", "obj=/dev/null", "-C", "opt-level=3", f"{PROGRAMS}/generic.rs"],
        "Go": [path("go"), "16000"],
    }


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
    """How many stacks samply follows to the outermost function, of how many."""
    if shutil.which("samply") is None:
        return None
    profile = os.path.join(folder, "samply.json")
    done = subprocess.run(["samply", "record", "--save-only", "--unstable-presymbolicate", "-r",
                           str(rate), "-o", profile, "--", *program], check=False, cwd=folder,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    names = os.path.join(folder, "samply.syms.json")
    if done.returncode or not os.path.exists(names):
        return None
    all_names = list(samply.stacks(profile, names))
    return sum(is_outermost(name) for name in all_names), len(all_names)


def recorders(unwind, rate, folder):
    """The contestants: name, command, file."""
    ours, dwarf, fp = (os.path.join(folder, name) for name in ("ours", "dwarf", "fp"))
    perf = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(rate)]
    return {
        "alone": ([], None),
        "unwind": ([unwind, "record", "--json", "-F", str(rate), "-o", ours, "--"], ours),
        "dwarf": (perf + ["--call-graph", "dwarf", "-o", dwarf, "--"], dwarf),
        "fp": (perf + ["--call-graph", "fp", "-o", fp, "--"], fp),
    }


def measure(unwind, program, rate, pairs, folder):
    """Seconds of each contestant, sizes of files, and what each has seen, in the last turn."""
    seconds, sizes, seen = {}, {}, {}
    for turn in range(pairs):
        contestants = list(recorders(unwind, rate, folder).items())
        for name, (command, data) in contestants if turn % 2 == 0 else reversed(contestants):
            own, around, output = timed(command, program, folder)
            seconds.setdefault(name, []).append((own, around))
            if data is None:
                continue
            sizes.setdefault(name, []).append(os.path.getsize(data))
            if turn + 1 == pairs:
                seen[name] = ledger(output) if name == "unwind" else by_perf(data)
    seen["samply"] = by_samply(program, rate, folder)
    return {"seconds": seconds, "sizes": sizes, "seen": seen, "pairs": pairs}


def ledger(output):
    """Complete stacks and samples of a ledger, whose sums the command has checked."""
    told = json.loads(output)
    reasons = sorted(told["incomplete"].items(), key=lambda item: -item[1])
    return told["complete"], told["written"] + told["lost"], reasons, told["kernel_only"]


def share(seen):
    if seen is None:
        return ""
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
    contestants = ("unwind", "dwarf", "fp")
    cells = [more(seconds[recorder], alone) for recorder in contestants]
    cells.append(more(seconds["unwind"], seconds["dwarf"]))
    own = median([own for own, _ in alone])
    arounds = [f"{100 * median([around for _, around in seconds[recorder]]) / own:.1f} %"
               for recorder in contestants]
    size = median(sizes["dwarf"]) / median(sizes["unwind"])
    return (f"| {name} | {rate} | {own:.2f} | {' | '.join(cells)} |",
            f"| {name} | {rate} | {' | '.join(arounds)} | {median(sizes['unwind']) / 1e6:.2f} "
            f"| 1/{size:.0f} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rates", default="999,4999")
    parser.add_argument("--results")
    parser.add_argument("--unwind")
    parser.add_argument("programs", nargs="*")
    asked = parser.parse_args()
    os.environ["RUSTUP_DIST_SERVER"] = "http://127.0.0.1:9"
    if asked.unwind is None:
        subprocess.run(["cargo", "build", "--release", "--quiet", "--locked", "--package",
                        "unwind-cli"], check=True)
    unwind = os.path.abspath(asked.unwind or os.path.join(
        os.environ.get("CARGO_TARGET_DIR", "target"), "release/unwind"))
    known = {}
    if asked.results and os.path.exists(asked.results):
        with open(asked.results) as file:
            known = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        programs = build(folder)
        programs = {name: [os.path.abspath(word) if os.path.exists(word) else word
                           for word in command] for name, command in programs.items()
                    if not asked.programs or name in asked.programs}
        rows = []
        for rate in asked.rates.split(","):
            for name, command in programs.items():
                key = f"{name}, {rate} Hz"
                if key not in known:
                    print(key, file=sys.stderr)
                    known[key] = measure(unwind, command, rate, asked.pairs, folder)
                    if asked.results:
                        with open(asked.results, "w") as file:
                            json.dump(known, file)
                rows.append((name, rate, known[key]))
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
    print("| program | Hz | alone, s | unwind | perf dwarf | perf fp | unwind / perf dwarf |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    print("\n".join(program for program, _ in costs))
    print("\nThe recorder's CPU time as a share of that of the program alone, and its file.\n")
    print("| program | Hz | unwind | perf dwarf | perf fp | file, MB | file / perf dwarf's |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    print("\n".join(recorder for _, recorder in costs))


if __name__ == "__main__":
    main()
