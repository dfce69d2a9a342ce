#!/usr/bin/env python3
"""Prints benches/figures/measured/price.md: what recorders take of a program that runs.

    benches/figures/price.py [--turns N] [--rates HZ,HZ] [--unwind FILE] [--results FILE] [--table] [PROGRAM...]

Four processes of the same program share one CPU, between which the kernel switches every few
milliseconds. Each has its own recorder, and one has none; the recorders share another CPU. So what
else the machine does falls on all four alike, where runs that follow each other may differ by tens of
percent. What is compared is the CPU time that a process takes for a piece of its work: it writes a line
after each. In each turn another process has another recorder, and in four turns each has had each: so
how a process lies in memory falls on all of them too.

Compilers end after a second: in each turn all four recorders start one, at the same time.

The result of four turns is the mean of the logarithms of two recorders' ratios. The tables have the mean
of the results, and where it is in 95 of 100 cases by Student's distribution.

Needs perf, gcc, g++, go, node, two CPUs, and the right to record. Forty turns of all programs at one
rate take some 25 minutes. With --results each turn is kept as soon as it is over and not taken again.
"""

import contextlib
import math
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import record

# Pieces of work of some 10 to 20 ms: arguments in place of the last, which says how long it runs.
PIECES = {
    "C without frame pointers": ("2000000000", "500"),
    "C, 32-bit": ("2000000000", "400"),
    "python3": ("1000000000", "2"),
    "node": ("1000000000", "8"),
    record.NODE_WITH_MAP: ("1000000000", "8"),
    "Go": ("1000000000", "500"),
}
# Seconds after the start of recorders from which on they surely sample, and those that count.
START, COUNTED = 0.7, 3.0
CONTESTANTS = ("unwind", "dwarf", "fp", "alone")
PAIRS = (("unwind", "dwarf"), ("unwind", "fp"), ("unwind", "alone"), ("dwarf", "alone"))


def on_cpu(cpu):
    """Has a process that is started run on this CPU alone."""
    return lambda: os.sched_setaffinity(0, {cpu})


class Running:
    """A program on the first CPU, which writes a line after each piece of its work."""

    def __init__(self, command, folder):
        # node writes logs where it runs.
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, bufsize=0, preexec_fn=on_cpu(0))
        # The clock of the CPU time of another process: see clock_getcpuclockid(3).
        self.clock = (~self.process.pid << 3) | 2
        self.begin()

    def begin(self):
        """Forgets the pieces until now."""
        self.first, self.last, self.count = None, None, 0

    def read(self):
        """Takes note of the pieces that it has told of."""
        lines = os.read(self.process.stdout.fileno(), 1 << 16)
        if not lines:
            sys.exit(f"{self.process.args}: {self.process.wait()}")
        self.last = time.clock_gettime(self.clock)
        if self.first is None:
            self.first = self.last
        else:
            self.count += lines.count(b"\n")

    def seconds(self):
        """CPU seconds of a piece."""
        return (self.last - self.first) / self.count

    def end(self):
        self.process.kill()
        self.process.wait()


def run_for(seconds, programs):
    """Takes note of what these programs tell for so long."""
    by_file = {program.process.stdout: program for program in programs}
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for file in select.select(list(by_file), [], [], left)[0]:
            by_file[file].read()


def attached(name, unwind, rate, pid, folder):
    """A recorder on the second CPU that is attached to a process."""
    command, _ = record.recorders(unwind, rate, folder)[name]
    command = [*command[:-1], "--pid", str(pid)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            preexec_fn=on_cpu(1))


def ended(recorder):
    """Ends a recorder."""
    told = recorder.communicate()[1]
    # perf ends by the signal that has ended it.
    if recorder.returncode not in (0, -signal.SIGINT):
        sys.exit(f"{recorder.args}: {recorder.returncode}\n{told.decode()}")


def of_turn(turn):
    """The contestants in the order of this turn: each has each place once in four."""
    at = turn % len(CONTESTANTS)
    return CONTESTANTS[at:] + CONTESTANTS[:at]


def turns_of_running(command, unwind, rate, numbers, folder):
    """CPU time a piece by contestant, turn by turn, of a program that runs all the time."""
    with contextlib.ExitStack() as stack:
        programs = [Running(command, folder) for _ in CONTESTANTS]
        for program in programs:
            stack.callback(program.end)
        run_for(6.0, programs)  # They become warm.
        for turn in numbers:
            names = of_turn(turn)
            recorders = [attached(name, unwind, rate, program.process.pid, folder)
                         for name, program in zip(names, programs) if name != "alone"]
            run_for(START, programs)
            for program in programs:
                program.begin()
            run_for(COUNTED, programs)
            seconds = {name: program.seconds() for name, program in zip(names, programs)}
            for recorder in recorders:
                recorder.send_signal(signal.SIGINT)
            for recorder in recorders:
                ended(recorder)
            yield seconds


def turns_of_runs(command, unwind, rate, numbers, folder):
    """The same of a program that ends: its CPU time by contestant."""
    def told(name):
        return os.path.join(folder, f"{name}.seconds")

    # Compilers make files with the same names.
    own = {name: tempfile.mkdtemp(dir=folder) for name in CONTESTANTS}
    for turn in numbers:
        started = []
        for name in of_turn(turn):
            recorder, _ = record.recorders(unwind, rate, folder)[name]
            program = ["taskset", "-c", "0", os.path.join(folder, "timed"), told(name), *command]
            started.append(subprocess.Popen(
                [*recorder, *program], cwd=own[name], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                preexec_fn=on_cpu(1)))
        for process in started:
            ended(process)
        seconds = {}
        for name in CONTESTANTS:
            with open(told(name)) as file:
                seconds[name] = sum(float(word) for word in file.read().split())
        yield seconds


def measure(results, asked, unwind):
    """Takes the turns that are not there yet."""
    with tempfile.TemporaryDirectory() as folder:
        commands = record.build(folder)
        for rate in asked.rates.split(","):
            for name, command in commands.items():
                if asked.programs and name not in asked.programs:
                    continue
                key = record.key(name, rate)
                numbers = range(len(results.turns.get(key, [])), asked.turns)
                if not numbers:
                    continue
                command = [os.path.abspath(word) if os.path.exists(word) else word for word in command]
                if name in PIECES:
                    command = [*command[:-1], *PIECES[name]]
                    turns = turns_of_running(command, unwind, rate, numbers, folder)
                else:
                    turns = turns_of_runs(command, unwind, rate, numbers, folder)
                maps = record.maps()
                for turn, seconds in zip(numbers, turns):
                    results.add(key, seconds)
                    print(f"\r{name}, {rate} Hz: turn {turn + 1} of {asked.turns} ", end="",
                          file=sys.stderr, flush=True)
                print(file=sys.stderr)
                record.remove_maps(maps)


def ratios(turns, this, that):
    """How much more this one takes of the program than that one, in percent: a mean for each four
    turns."""
    all_turns = [100 * math.log(turn[this] / turn[that]) for turn in turns]
    count = len(CONTESTANTS)
    return [statistics.fmean(all_turns[at:at + count])
            for at in range(0, len(all_turns) - count + 1, count)]


def table(results, rates):
    """Rows of programs at each rate, and all together, by the mean of the programs."""
    print("| program | Hz | turns | " + " | ".join(f"{this} / {that}" for this, that in PAIRS) + " |")
    print("|---|--:|--:|" + "--:|" * len(PAIRS))
    for rate in rates:
        of_rate = [(key.rsplit(" at ", 1)[0], turns) for key, turns in results.turns.items()
                   if key.rsplit(" at ", 1)[1] == rate and len(turns) >= len(CONTESTANTS)]
        for name, turns in of_rate:
            cells = [record.mean_of(ratios(turns, *pair)) for pair in PAIRS]
            print(f"| {name} | {rate} | {len(turns)} | {' | '.join(cells)} |")
        if len(of_rate) > 1:
            cells = [record.mean_of([statistics.fmean(row) for row in
                           zip(*(ratios(turns, *pair) for _, turns in of_rate))]) for pair in PAIRS]
            count = min(len(turns) for _, turns in of_rate)
            print(f"| all | {rate} | {count} | {' | '.join(cells)} |")


def main():
    asked = record.arguments("--turns", 40)
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("needs two CPUs")
    results = record.Results(asked.results)
    if not asked.table:
        measure(results, asked, record.recorder_of(asked))
    print("CPU time of a program for the same work, recorded by one beside recorded by another or alone, "
          "in percent of the latter: the mean, and where it is in 95 of 100 cases.\n")
    table(results, asked.rates.split(","))


if __name__ == "__main__":
    main()
