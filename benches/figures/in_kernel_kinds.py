#!/usr/bin/env python3
"""Prints the table of benches/figures/measured/kinds.md: what both engines of `unwind record` see of each.

    benches/figures/in_kernel_kinds.py [--unwind FILE] [--seconds N] [--rate HZ] [PROGRAM...]

Each program is started and recorded for some seconds, by one engine and then by the other. A share is that of
the samples with a stack of user code. Programs whose tools are not installed are left out, and told.

Needs root, Linux from 6.18 on, gcc with -m32, and what the programs are made of: g++, go, node, java, rustc,
python3, openssl.
"""

import argparse
import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import tempfile

from record import command_of

BENCHES = os.path.abspath("benches/programs")
TESTS = os.path.abspath("unwind-cli/tests/programs")
PLAIN = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
# A program that maps a library, calls it and takes it away, all the time.
LOADS = r"""
#include <dlfcn.h>
int main(int argc, char **argv) {
    for (;;) {
        void *library = dlopen(argv[argc - 1], RTLD_NOW);
        if (!library) return 1;
        ((void (*)(void))dlsym(library, "works"))();
        dlclose(library);
    }
}
"""
LIBRARY = r"""
static volatile long sum;
__attribute__((noinline)) static void inner(long n) { for (long i = 0; i < n; i++) sum += i; sum++; }
void works(void) { inner(100000); sum++; }
"""
# 1,000 processes that compute for 5 ms each, or a program that is interrupted all the time. It seldom asks for the
# time: the 32-bit vDSO has no call frame information for that.
LIVES = r"""
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile long sum;
__attribute__((noinline)) static void computes(long rounds) { while (rounds--) sum += rounds; sum++; }
static void on_alarm(int number) { computes(1000000); sum += number; }
static void on_told(int number, siginfo_t *info, void *context) { on_alarm(number + !info + !context); }
int main(int argc, char **argv) {
    if (argc > 1) {
        struct sigaction told = {.sa_sigaction = on_told, .sa_flags = SA_SIGINFO};
        if (argc > 2) sigaction(SIGALRM, &told, NULL);
        else signal(SIGALRM, on_alarm);
        struct itimerval each = {{0, 5000}, {0, 5000}};
        setitimer(ITIMER_REAL, &each, NULL);
        for (;;) computes(1000);
    }
    for (int i = 0; i < 1000; i++) {
        if (fork() == 0) { computes(3000000); _exit(0); }
        wait(NULL);
    }
}
"""
JAVA = """
public class Work {
    static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    public static void main(String[] a) {
        long sum = 0;
        for (;;) {
            StringBuilder b = new StringBuilder();
            for (int i = 0; i < 1000; i++) b.append(fib(15) + i);
            sum += b.toString().hashCode();
            if (sum == 42) System.out.println(sum);
        }
    }
}
"""


class Programs:
    """How each is started, made in a folder when it is asked for."""

    def __init__(self, folder):
        self.folder = folder
        gcc = self.gcc
        self.all = {
            "C without frame pointers": lambda: [gcc("nofp", "recursion.c", *PLAIN), "10000000"],
            "the same, 32-bit": lambda: [gcc("ia32", "recursion.c", "-m32", *PLAIN), "10000000"],
            "the same, linked statically": lambda: [gcc("static", "recursion.c", "-static", *PLAIN), "10000000"],
            "the same, stripped": lambda: [gcc("stripped", "recursion.c", "-s", *PLAIN), "10000000"],
            "the same, its file removed": self.removed,
            "the same, its file rebuilt": self.rebuilt,
            "the same, in a container": self.contained,
            "python3": lambda: [sys.executable, f"{BENCHES}/work.py", "1000000"],
            "node": lambda: ["node", f"{BENCHES}/work.js", "1000000"],
            "node, --perf-basic-prof": lambda: ["node", "--perf-basic-prof", f"{BENCHES}/work.js", "1000000"],
            "node, with a dump": lambda: ["node", "--perf-prof", "--perf-prof-unwinding-info",
                                          f"{BENCHES}/work.js", "1000000"],
            "java": self.java,
            "java, -XX:+PreserveFramePointer": lambda: self.java("-XX:+PreserveFramePointer"),
            "cc1plus": self.compiler,
            "rustc": self.rustc,
            "Go": self.go,
            "openssl speed rsa2048": lambda: ["openssl", "speed", "-seconds", "9", "rsa2048"],
            "openssl speed ecdsap256": lambda: ["openssl", "speed", "-seconds", "9", "ecdsap256"],
            "threads that come and go": lambda: ["sh", "-c", 'while :; do "$0" threads 8; done',
                                                 gcc("many", f"{TESTS}/many.c", "-pthread", *PLAIN)],
            "forks and execs": lambda: [gcc("deferral", f"{TESTS}/deferral.c", "-pthread", *PLAIN),
                                        "executes", "1000000"],
            "a shell's children": lambda: ["sh", "-c", "while :; do ls /usr/bin | sort | wc -l; done >/dev/null"],
            "signals": lambda: [self.own("lives", LIVES), "signals"],
            "signals with SA_SIGINFO": lambda: [self.own("lives", LIVES), "signals", "told"],
            "signals, 32-bit": lambda: [self.own("lives32", LIVES, "-m32"), "signals"],
            "signals with SA_SIGINFO, 32-bit": lambda: [self.own("lives32", LIVES, "-m32"), "signals", "told"],
            "1,000 processes of 5 ms": lambda: [self.own("lives", LIVES)],
            "the vDSO": lambda: [self.clock()],
            "dlopen and dlclose": lambda: [self.own("loads", LOADS),
                                           self.own("library.so", LIBRARY, "-shared", "-fPIC")],
        }

    def path(self, name):
        return os.path.join(self.folder, name)

    def gcc(self, name, source, *flags):
        source = source if os.path.isabs(source) else f"{BENCHES}/{source}"
        subprocess.run(["gcc", *flags, "-o", self.path(name), source], check=True)
        return self.path(name)

    def own(self, name, text, *flags):
        with open(self.path(f"{name}.c"), "w") as file:
            file.write(text)
        return self.gcc(name, self.path(f"{name}.c"), *PLAIN, *flags)

    def script(self, text, *more):
        return ["sh", "-c", text, self.gcc("moved", "recursion.c", *PLAIN), *more]

    def removed(self):
        return self.script('"$0" 10000000 & sleep 0.02; rm "$0"; wait')

    def rebuilt(self):
        return self.script('"$0" 10000000 & sleep 0.02; rm "$0"; cp /bin/true "$0"; wait')

    def contained(self):
        folder = self.path("root")
        os.makedirs(f"{folder}/bin", exist_ok=True)
        self.gcc("root/bin/program", "recursion.c", "-O2", "-fomit-frame-pointer", "-static",
                 "-fno-optimize-sibling-calls")
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--root={folder}", "/bin/program",
                "10000000"]

    def java(self, *options):
        with open(self.path("Work.java"), "w") as file:
            file.write(JAVA)
        subprocess.run(["javac", "-d", self.folder, self.path("Work.java")], check=True)
        return ["java", *options, "-cp", self.folder, "Work"]

    def compiler(self):
        compiler = subprocess.run(["gcc", "-print-prog-name=cc1plus"], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout.strip()
        subprocess.run(["g++", "-std=c++17", "-E", f"{BENCHES}/templates.cc", "-o", self.path("templates.ii")],
                       check=True)
        return ["sh", "-c", 'while :; do "$0" -fpreprocessed -quiet -O2 -std=c++17 "$1" -o /dev/null; done',
                compiler, self.path("templates.ii")]

    def rustc(self):
        sysroot = subprocess.run(["rustc", "--print", "sysroot"], check=True, text=True,
                                 stdout=subprocess.PIPE).stdout.strip()
        return ["sh", "-c", 'while :; do "$0" --edition 2024 --crate-type lib --emit obj=/dev/null '
                '-C opt-level=1 "$1"; done', f"{sysroot}/bin/rustc", f"{BENCHES}/generic.rs"]

    def go(self):
        subprocess.run(["env", "GO111MODULE=off", "go", "build", "-o", self.path("go"), f"{BENCHES}/work.go"],
                       check=True)
        return [self.path("go"), "10000000"]

    def clock(self):
        text = "#include <time.h>\nint main(void) { struct timespec t; for (;;) clock_gettime(CLOCK_MONOTONIC, &t); }"
        return self.own("clock", text)


def ledger(asked, engine, command, folder):
    """The ledger of a recording; `None` if the engine is refused."""
    record = [asked.unwind, "record", "--engine", engine, "--json", "-F", str(asked.rate), "--duration",
              str(asked.seconds), "-o", os.path.join(folder, f"{engine}.data"), "--", *command]
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+") as told:
        done = subprocess.Popen(record, cwd=folder, stdout=out, stderr=told, start_new_session=True)
        done.wait()
        # The program does not end with its recording.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(done.pid, signal.SIGKILL)
        out.seek(0)
        told.seek(0)
        lines = [line for line in out if line.startswith('{"')]
        if not lines:
            sys.exit(f"{record}: {done.returncode}\n{told.read()}")
        return json.loads(lines[-1])


def share(told):
    """Complete stacks of those with user code, and why the others are not."""
    stacks = told["written"] - told["kernel_only"]
    reasons = sorted(told["incomplete"].items(), key=lambda item: -item[1])
    others = {name: told[name] for name in ("unmatched", "unchecked", "damaged", "dropped", "lost") if told[name]}
    why = ", ".join(f"{count} `{name}`" for name, count in [*reasons, *others.items()] if count)
    return f"{100 * told['complete'] / stacks:.1f} %" if stacks else "-", why or "-"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--unwind")
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=999)
    parser.add_argument("programs", nargs="*")
    asked = parser.parse_args()
    asked.unwind = command_of(asked.unwind)
    print("| program | samples | complete | at once, in the task, shared, copied | not complete "
          "| `--engine perf`: samples | complete | not complete |\n|---|--:|--:|--:|---|--:|--:|---|")
    before = set(glob.glob("/tmp/perf-*.map"))
    with tempfile.TemporaryDirectory() as folder:
        for name, command in Programs(folder).all.items():
            if asked.programs and name not in asked.programs:
                continue
            try:
                ours = ledger(asked, "bpf", command(), folder)
                perf = ledger(asked, "perf", command(), folder)
            except (FileNotFoundError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            walks = ours["walks"]
            ways = ", ".join(f"{walks[way]:,}" for way in ("at_once", "deferred", "shared", "copied"))
            print(f"| {name} | {ours['written']:,} | {share(ours)[0]} | {ways} | {share(ours)[1]} "
                  f"| {perf['written']:,} | {share(perf)[0]} | {share(perf)[1]} |", flush=True)
            for path in set(glob.glob("/tmp/perf-*.map")) - before:
                os.unlink(path)


if __name__ == "__main__":
    main()
