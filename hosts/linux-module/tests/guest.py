#!/usr/bin/env python3
"""guest.py PACKAGES MODULE PROGRAMS SCENE...: boots a Debian kernel with the module, and holds what it records
against what is known of the victims. PACKAGES is what .ci/debian-module-headers prints, PROGRAMS has what
tests/run has compiled. Exit status 1: something is not as it should be."""

import collections
import contextlib
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

import chains
import engine

# QEMU 7.2 may leave wrong flags after cmpxchg16b where an interrupt follows it: so the CPU is without.
BOOT_SECONDS = 100
BAD = re.compile(r"BUG|Oops|WARNING|Call Trace|\bstall|general protection|Unable to handle|unreferenced|panic:")

INIT = """#!/busybox sh
/busybox mkdir -p /proc /sys /dev /tmp
/busybox mount -t proc p /proc; /busybox mount -t sysfs s /sys; /busybox mount -t devtmpfs d /dev
export PATH=/; for name in sh cat stty sleep dmesg wc kill rmmod insmod poweroff echo seq; do /busybox ln -s /busybox /$name; done
stty -F /dev/ttyS1 raw -echo
send() { echo "FILE $1 $(wc -c </$1)" >/dev/ttyS1; cat /$1 >/dev/ttyS1; }
echo "KERNEL $(cat /proc/sys/kernel/osrelease)"
insmod /unwind.ko && echo LOADED
. /scene
rmmod unwind && echo UNLOADED
dmesg | /busybox grep -iE 'unwind|BUG|Oops|WARNING|Call Trace|stall'
echo DONE
poweroff -f
"""


def archive(files):
    """The bytes of a cpio archive, as a kernel takes it as its first file system."""
    out = bytearray()
    for number, (name, data, mode) in enumerate([*files, ("TRAILER!!!", b"", 0)], 1):
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def with_libraries(program):
    """A program as the guest has it, with the shared objects that it is loaded with and their folders."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    paths = [pathlib.Path(word) for word in told.split() if word.startswith("/")]
    folders = sorted({str(folder)[1:] for path in paths for folder in path.parents} - {""})
    files = [(str(path)[1:], path.read_bytes(), 0o100755) for path in paths]
    return [(folder, b"", 0o040755) for folder in folders] + files + [(program.name, program.read_bytes(), 0o100755)]


# Debian's, without frame pointers, and as much of its library as it starts with.
PYTHON = pathlib.Path("/usr/bin/python3")
ENCODINGS = pathlib.Path("/usr/lib/python3.11/encodings")


def python():
    """The files of Python as the guest has them."""
    folders = [str(folder)[1:] for folder in reversed(ENCODINGS.parents)][1:] + [str(ENCODINGS)[1:]]
    files = [(str(path)[1:], path.read_bytes(), 0o100644) for path in sorted(ENCODINGS.glob("*.py"))]
    return with_libraries(PYTHON) + [(folder, b"", 0o040755) for folder in folders] + files


def inject(path, hertz, stop):
    """NMIs, until `stop`. Returns how many there were."""
    sent = 0
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as monitor:
        monitor.connect(str(path))
        lines = monitor.makefile("rw")
        lines.readline()
        for command in ["qmp_capabilities"] + ["inject-nmi"] * 1_000_000:
            lines.write(json.dumps({"execute": command}) + "\n")
            lines.flush()
            if stop.is_set() or not lines.readline():
                break
            sent += 1
            time.sleep(1 / hertz)
    return sent


# One CPU, whose clock advances by a nanosecond with each instruction.
COUNTED = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-smp", "1"]


def boot(packages, module, programs, scene, nmis=0, machine=("-accel", "tcg,thread=multi", "-smp", "2"), seconds=BOOT_SECONDS):
    """What the guest has printed, the files that it has sent, and how many NMIs it got."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        stripped = folder / "module"
        subprocess.run(["strip", "--strip-debug", "-o", stripped, module], check=True)
        files = [("init", INIT.encode(), 0o100755), ("scene", scene.encode(), 0o100644)]
        files += [("dev", b"", 0o040755)]
        files += [("busybox", (packages / "busybox").read_bytes(), 0o100755), ("unwind.ko", stripped.read_bytes(), 0o100644)]
        for path in sorted(programs.iterdir()):
            if path.name != "unwind":
                files.append((path.name, path.read_bytes(), 0o100755))
            elif "/unwind " in scene:
                files += with_libraries(path)
        if "/python3 " in scene:
            files += python()
        (folder / "initrd").write_bytes(archive(files))
        command = ["qemu-system-x86_64", "-machine", "q35", "-cpu", "max,cx16=off", "-m", "384M", *machine]
        command += ["-display", "none", "-nodefaults", "-no-reboot", "-kernel", packages / "vmlinuz"]
        command += ["-initrd", folder / "initrd", "-append", "console=ttyS0 panic=-1 no_timer_check quiet"]
        command += ["-serial", f"file:{folder}/console", "-serial", f"file:{folder}/files"]
        command += ["-qmp", f"unix:{folder}/monitor,server=on,wait=off"]
        qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        stop, sent = threading.Event(), []
        (folder / "console").touch()
        if nmis:
            def send():
                while not stop.is_set() and b"READY" not in (folder / "console").read_bytes():
                    time.sleep(0.05)
                sent.append(inject(folder / "monitor", nmis, stop))
            time.sleep(0.5)
            threading.Thread(target=send).start()
        end = time.monotonic() + seconds
        while qemu.poll() is None and time.monotonic() < end:
            # A kernel that has failed once tells no more of use.
            if BAD.search((folder / "console").read_text(errors="replace")):
                end = min(end, time.monotonic() + 3)
            time.sleep(0.2)
        qemu.kill()
        qemu.wait()
        stop.set()
        time.sleep(0.1)
        console = (folder / "console").read_bytes().decode(errors="replace")
        return console, sent_files((folder / "files").read_bytes()), sum(sent)


def sent_files(data):
    files, at = {}, 0
    while (end := data.find(b"\n", at)) >= 0 and data[at:end].startswith(b"FILE "):
        _, name, size = data[at:end].split()
        files[name.decode()] = data[end + 1 : end + 1 + int(size)]
        at = end + 1 + int(size)
    return files


def record(name, program, arguments, hertz=1000, options=""):
    return f"unwind-record -F {hertz} -u {options} -o /{name} /{program} {arguments} && send {name}\n"


STORM = """
for turn in $(seq 3); do
 /victim-eh 100 forks 3 & /victim-sframe 5 execs 20 & /victim-eh 30 threads 8 & /hostile >/dev/null & H=$!
 unwind-record -F 5000 -a -o /storm & R=$!
 sleep 2; rmmod unwind && echo MUST-NOT
 kill -INT $R; wait $R; kill -9 $H; wait
 for try in $(seq 50); do rmmod unwind 2>/dev/null && break; sleep 0.1; done
 insmod /unwind.ko && echo AGAIN
done
"""

ENGINE = """
RECORD='/unwind record --engine module -F 500 --no-buildid-cache --json'
report() { /unwind report --format folded -o /$1.folded /$1 && send $1.json && send $1.folded && send $1; }
run() { $RECORD -o /$1 -- $2 >/$1.json && report $1; }
"""

SCENES = {
    # Victims by each kind of table; threads, children, execs; a task of 32 bits.
    "chains": (
        record("eh", "victim-eh", "600") + record("sframe", "victim-sframe", "600")
        + record("pie", "victim-pie", "600") + record("threads", "victim-eh", "150 threads 6") + record("forks", "victim-eh", "150 forks 4")
        + record("execs", "victim-sframe", "60 execs 8") + record("narrow", "victim-32", "600")
        + "unwind-record -F 500 -a -o /all /victim-eh 200 forks 2 && send all\n", 0),
    "nmi": ("unwind-record -F 200 -o /nmi /victim-eh 20 forks 3 && echo READY\n"
            + "unwind-record -F 200 -o /nmi /victim-eh 1500 forks 1 && send nmi\n", 500),
    "hostile": (
        "/hostile & H=$!; sleep 0.2\nunwind-record -F 2000 -o /other -p $H & R=$!\nsleep 3\nrmmod unwind || echo REFUSED\n"
        "kill -INT $R; wait $R; kill -9 $H; wait $H\nsleep 0.3\n" + record("after", "victim-eh", "400"), 0),
    "unload": (
        "for turn in $(seq 6); do\n unwind-record -F 3000 -o /load /victim-eh 4000 forks 3 & R=$!\n sleep 0.5\n"
        " rmmod unwind && echo MUST-NOT\n kill -INT $R; wait $R\n"
        " for try in $(seq 50); do rmmod unwind 2>/dev/null && break; sleep 0.1; done\n"
        " insmod /unwind.ko && echo AGAIN\n /busybox killall victim-eh\ndone\n", 0),
    # A program without a table in its memory, whose table is handed in.
    "held": (record("held", "victim-bare", "600", options="-t /victim-bare:/bare.sframe:0"), 0),
    # `unwind record --engine module` of programs without tables: a command with its threads, one that executes itself,
    # one that loads a library, a process that runs, all CPUs.
    "engine": (
        ENGINE + "rmmod unwind; $RECORD -o /none -- /victim-dynamic 1; insmod /unwind.ko\n"
        "run command '/victim-dynamic 400 threads 3'; run execs '/victim-dynamic 600 execs 2'; run library '/loads /libvictim.so 800'\n"
        "/victim-dynamic 100000 threads 3 & V=$!; sleep 0.3; $RECORD -o /process -p $V --duration 2 >/process.json && report process\n"
        "kill $V; $RECORD -o /system --all -- /victim-dynamic 300 forks 2 >/system.json && report system\n", 0),
    # The same of Python.
    "python": (ENGINE + "export PYTHONHOME=/usr; run python '/python3 -S /levels.py 60'\n", 0),
    # All of it at once, of the whole system.
    "storm": (STORM, 0),
    # Instructions of a sample, by the difference of a long and a short run; what the kernel does once is over by then.
    "costs": ("sleep 20; costs module /victim-eh 100 >/dev/null\n"
              + "".join(f"costs {kind} /{victim} {rounds}\n" for victim in ("victim-eh", "victim-sframe")
                        for kind in ("none", "perf", "chain", "module") for rounds in (500, 2500)), 0),
}


# What a sample of the module may take more than one of perf without a call chain.
MOST_INSTRUCTIONS = 3000


def costs(console):
    """Instructions that a sample takes, by the program and who takes it: in words, and whether they are too many."""
    took = {}
    for kind, program, rounds, time, samples in re.findall(r"COST (\S+) (\S+) (\d+) (\d+) (\d+)", console):
        short, few = took.get((program, kind), (0, 0))
        took[program, kind] = int(time) - short, int(samples) - few
    for (program, kind), (time, samples) in took.items():
        if samples:
            each = (time - took[program, "none"][0]) / samples
            bare, of = took[program, "perf"]
            above = each - (bare - took[program, "none"][0]) / of
            yield f"{program} {kind}: {each:.0f} instructions a sample, of {samples}", above > MOST_INSTRUCTIONS


def run(scene, packages, module, programs):
    """Boots once more if the guest did not get to the module, or hung."""
    script, nmis = SCENES[scene]
    for _ in range(2):
        begun = time.monotonic()
        has_recorder = scene in ("engine", "python")
        how = {"machine": COUNTED} if scene == "costs" else {"seconds": 4 * BOOT_SECONDS} if has_recorder else {}
        console, files, sent = boot(packages, module, programs, script, nmis, **how)
        # What fails before the module is loaded is the emulator's, or the kernel's own. So is a break instruction in code that
        # the kernel patches: while one emulated CPU takes it out, another may translate it once more.
        if "DONE" in console or "LOADED" in console and BAD.search(console) and "Oops: int3" not in console:
            break
    kernel = re.search(r"KERNEL (\S+)", console)
    print(f"{scene}: {kernel and kernel[1]}, {time.monotonic() - begun:.0f} s, {sent} NMIs")
    faults = BAD.findall(console)
    wanted = ["LOADED", "UNLOADED", "DONE"] + ["AGAIN"] * (scene in ("unload", "storm")) + ["REFUSED", "HELD BACK"] * (scene == "hostile")
    faults += [f"no {word}" for word in wanted if word not in console]
    faults += ["unloaded while in use"] * ("MUST-NOT" in console)
    for line in console.splitlines():
        if "COUNTS" in line:
            print("   ", line.strip())
    for line, is_too_many in costs(console):
        print(f"    {line}")
        faults += ["too many instructions"] * is_too_many
    if nmis and sent < 30:
        faults.append("too few NMIs")
    if has_recorder:
        text, wrong = engine.tally(files, programs)
        print(*(f"    {line}" for line in text), sep="\n")
        faults += wrong + [f"recordings: {len(files) // 3}"] * (len(files) != 3 * (5 if scene == "engine" else 1))
        faults += ["no advice where the module is not loaded"] * (scene == "engine" and "`modprobe unwind`" not in console)
        files = {}
    for name, data in files.items():
        tally = chains.tally(data, programs)
        print(f"    {name}: {tally.text}")
        faults += [f"{name}: {fault}" for fault in tally.faults]
    if faults:
        print(re.sub(r"(?s)^.*?\bLOADED", "", console)[:6000])
        print(f"    FAULTS: {collections.Counter(faults)}")
    return not faults


def main():
    packages, module, programs = map(pathlib.Path, sys.argv[1:4])
    results = [run(scene, packages, module, programs) for scene in sys.argv[4:]]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
