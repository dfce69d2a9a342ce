"""Stops a program, and writes down what gdb and unwind say of its stacks.

Runs inside gdb. UNWIND_ORACLE_JOB names a file with a JSON object:

    out      where to write: a line of JSON a stop
    scratch  a directory for core files
    unwind   the program `unwind`
    methods  the methods to ask it for
    seed     of the random numbers
    stops    how many stops to make
    program  (steps) the program to start
    phases   (steps) for "start-up", "main" and "exit", how many stops of each
    from     (each) the function from whose first instruction on each one is stopped at
    pid      (live) the process to look at
    head     (live) how many seconds of CPU time it runs before the first stop
    gap      (live) the most seconds to let it run between two stops
    eu_stack the program `eu-stack`

A stop has its phase and number, the executable mappings, the threads with their
frames as gdb finds them (pc, stack pointer, name, object), the output of `unwind`
for each method, and what `eu-stack` finds: by thread, the pcs of its frames. The
object is the path of the mapping with the pc; none where that is not a file's.
"""

import json
import os
import random
import signal
import subprocess
import time

import gdb

# How far stops before and after `main` are spread: what a small C program takes.
STARTUP_STEPS = 100_000
EXIT_STEPS = 1_000

# Functions without a caller. gdb takes what is above some of them for a frame.
OUTERMOST = ("_start", "clone", "clone3", "__clone", "__clone3")

# Compilers recurse deeply.
MAX_FRAMES = 20_000


def command(text):
    return gdb.execute(text, to_string=True)


def register(frame, *names):
    """The first of the registers that there is."""
    for name in names:
        try:
            return int(frame.read_register(name)) % 2**64
        except (ValueError, gdb.error):
            pass
    raise gdb.GdbError(f"no register {names}")


class Objects:
    """What is mapped where in the process that gdb holds."""

    def __init__(self):
        self.ranges = []
        self.code = []
        pid = gdb.selected_inferior().pid
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                fields = line.rstrip("\n").split(maxsplit=5)
                start, end = (int(text, 16) for text in fields[0].split("-"))
                name = fields[5] if len(fields) > 5 else ""
                if "x" in fields[1]:
                    self.code.append((start, end))
                if name.startswith("/") or name == "[vdso]":
                    self.ranges.append((start, end, name))

    def find(self, pc):
        return next((name for start, end, name in self.ranges if start <= pc < end), None)


def frames(objects):
    """The frames of the selected thread, innermost first, without those that
    share the machine's frame with their caller."""
    found = []
    try:
        frame = gdb.newest_frame()
        while frame is not None and len(found) < MAX_FRAMES:
            if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                found.append(
                    {
                        "pc": frame.pc(),
                        "sp": register(frame, "rsp", "esp"),
                        "name": frame.name(),
                        "object": objects.find(frame.pc()),
                    }
                )
            if frame.name() in OUTERMOST:
                break
            frame = frame.older()
    except gdb.error:
        # The stack ends for gdb where it cannot read on.
        pass
    return found


def threads(objects):
    """The frames of all threads."""
    said = []
    for thread in sorted(gdb.selected_inferior().threads(), key=lambda t: t.ptid[1]):
        thread.switch()
        said.append({"thread": thread.ptid[1], "frames": frames(objects)})
    return said


def unwind(job, target):
    """The output of `unwind` for each method."""
    said = {}
    for method in job["methods"]:
        done = subprocess.run(
            [
                job["unwind"],
                "stack",
                *target,
                "--method",
                method,
                "--max-frames",
                str(MAX_FRAMES),
                "--json",
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            said[method] = json.loads(done.stdout)
        else:
            said[method] = {"failed": f"exit code {done.returncode}: {done.stderr.strip()}"}
    return said


def eu_stack(job, target):
    """The pcs of the frames of each thread as elfutils finds them."""
    done = subprocess.run(
        [job["eu_stack"], "-q", "-n", "0", *target],
        capture_output=True,
        text=True,
    )
    said = {}
    for line in done.stdout.splitlines():
        fields = line.split()
        if fields[:1] == ["TID"]:
            frames = said.setdefault(fields[1].rstrip(":"), [])
        elif line.startswith("#"):
            frames.append(int(fields[1], 16))
    return said


class Stops:
    """Where the stops are written to."""

    def __init__(self, job):
        self.job = job
        self.file = open(job["out"], "w", encoding="utf-8")

    def write(self, phase, number, said_by_unwind, said_by_eu_stack):
        """Writes down a stop of the process that gdb holds."""
        objects = Objects()
        stop = {
            "phase": phase,
            "number": number,
            "code": objects.code,
            "threads": threads(objects),
            "unwind": said_by_unwind,
            "eu_stack": said_by_eu_stack,
        }
        self.file.write(json.dumps(stop) + "\n")
        self.file.flush()

    def by_core(self, phase, number):
        """Writes down a stop, which the others see as a core file."""
        core = os.path.join(self.job["scratch"], "core")
        command(f"gcore {core}")
        target = ["--core", core, "--exe", self.job["program"]]
        said_by_eu_stack = eu_stack(self.job, ["--core", core, "-e", self.job["program"]])
        self.write(phase, number, unwind(self.job, target), said_by_eu_stack)
        os.unlink(core)


def is_alive():
    return gdb.selected_inferior().pid != 0


def step_to_main():
    command("tbreak *main")
    command("continue")


def count_steps_of_main():
    """Runs the program once: how many instructions run from the first one of
    `main` until it has returned, with all that it calls."""
    command("starti")
    step_to_main()
    entry = register(gdb.newest_frame(), "rsp", "esp")
    steps = 0
    while is_alive() and register(gdb.newest_frame(), "rsp", "esp") <= entry:
        command("stepi")
        steps += 1
    command("kill")
    return steps


def stop_at(stops, phase, numbers, is_over):
    """Stops at each of the step numbers, ascending, counted from here on."""
    done = 0
    for number in numbers:
        if number != done:
            command(f"stepi {number - done}")
            done = number
        if not is_alive() or is_over():
            return
        stops.by_core(phase, number)


def run_steps(job):
    rng = random.Random(job["seed"])
    command(f"file {job['program']}")
    in_main = count_steps_of_main()
    counts = job["phases"]

    def choose(phase, steps):
        """Random numbers below `steps`, or all if that is not many more."""
        if steps <= 2 * counts[phase]:
            return list(range(steps))
        return sorted(rng.sample(range(steps), counts[phase]))

    stops = Stops(job)
    command("starti")
    command("tbreak *main")
    main = int(gdb.parse_and_eval("(unsigned long)&main"))
    numbers = choose("start-up", STARTUP_STEPS)
    if numbers:
        stop_at(stops, "start-up", numbers, lambda: gdb.newest_frame().pc() == main)
    if gdb.newest_frame().pc() != main:
        command("continue")
    entry = register(gdb.newest_frame(), "rsp", "esp")
    has_returned = lambda: register(gdb.newest_frame(), "rsp", "esp") > entry
    stop_at(stops, "main", choose("main", in_main), has_returned)
    while not has_returned():
        command("stepi")
    stop_at(stops, "exit", choose("exit", EXIT_STEPS), lambda: False)
    if is_alive():
        command("kill")


def run_each(job):
    """Stops at each instruction from the first one of a function on."""
    command(f"file {job['program']}")
    stops = Stops(job)
    command("starti")
    step_to_main()
    command(f"tbreak *{job['from']}")
    command("continue")
    stop_at(stops, "each", range(job["stops"]), lambda: False)
    if is_alive():
        command("kill")


def states(pid):
    """The scheduler states of all threads, as a set of letters."""
    found = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat", encoding="utf-8", errors="replace") as stat:
            found.add(stat.read().rpartition(")")[2].split()[0])
    return found


def wait_until_stopped(pid):
    deadline = time.monotonic() + 10
    while states(pid) - {"T"}:
        if time.monotonic() > deadline:
            raise gdb.GdbError(f"process {pid} does not stop: {states(pid)}")
        time.sleep(0.001)


def cpu_time(pid):
    """How many seconds of CPU time a process has used."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_live(job):
    rng = random.Random(job["seed"])
    pid = job["pid"]
    stops = Stops(job)
    while cpu_time(pid) < job["head"]:
        time.sleep(0.01)
    for number in range(job["stops"]):
        os.kill(pid, signal.SIGCONT)
        time.sleep(rng.uniform(0.001, job["gap"]))
        # A process in SIGSTOP stands still for one tracer after the other.
        os.kill(pid, signal.SIGSTOP)
        wait_until_stopped(pid)
        said_by_unwind = unwind(job, ["--pid", str(pid)])
        wait_until_stopped(pid)
        said_by_eu_stack = eu_stack(job, ["-p", str(pid)])
        wait_until_stopped(pid)
        command(f"attach {pid}")
        stops.write("live", number, said_by_unwind, said_by_eu_stack)
        command("detach")
    os.kill(pid, signal.SIGCONT)


def main():
    with open(os.environ["UNWIND_ORACLE_JOB"], encoding="utf-8") as file:
        job = json.load(file)
    for setting in (
        "pagination off",
        "confirm off",
        "backtrace past-main on",
        "backtrace limit unlimited",
        "print thread-events off",
        "auto-load off",
        "debuginfod enabled off",
    ):
        command(f"set {setting}")
    if "from" in job:
        run_each(job)
    elif "program" in job:
        run_steps(job)
    else:
        run_live(job)


main()
