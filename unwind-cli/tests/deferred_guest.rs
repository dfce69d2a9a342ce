//! `unwind record --deferred` and `--engine bpf` in a guest whose kernel walks user stacks, and runs BPF
//! programs, when a thread returns to user code.
//!
//! `UNWIND_LINUX_KERNEL=$(.ci/debian-kernel) cargo test -p unwind-cli --test deferred_guest`
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

#[path = "support/archive.rs"]
mod archive;
mod support;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use test_support::{skip, tool};

use archive::Archive;

/// The shared objects that a program is loaded with, its loader among them.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a guest has written to its serial lines.
struct Guest {
    console: String,
    /// Of the kernel's own walks, and of the program's of one program and of the other.
    ledgers: Vec<Value>,
    folded: Vec<String>,
    recording: PathBuf,
}

impl Guest {
    /// The one guest of these tests.
    fn get() -> Option<&'static Self> {
        static GUEST: OnceLock<Option<Guest>> = OnceLock::new();
        GUEST.get_or_init(|| boot("deferred_guest")).as_ref()
    }

    fn ledger(&self, at: usize) -> &Value {
        self.ledgers.get(at).unwrap_or_else(|| panic!("{}", self.console))
    }
}

/// Boots a kernel whose first process records programs; `None` where there is none to boot.
fn boot(test: &str) -> Option<Guest> {
    let Some(kernel) = env::var_os("UNWIND_LINUX_KERNEL") else {
        eprintln!("skipped: UNWIND_LINUX_KERNEL names no kernel: .ci/debian-kernel gets one");
        return None;
    };
    let (qemu, strip) = (tool("qemu-system-x86_64")?, tool("strip")?);
    let framed = ["-O0", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer", "-static"];
    let program = support::compile(&format!("{test}_program"), "nested.c", &framed)?;
    let unframed =
        ["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-static", "-pthread"];
    let deferral = support::compile(&format!("{test}_deferral"), "deferral.c", &unframed)?;
    let first = support::compile(&format!("{test}_first"), "first_process.c", &["-static"])?;
    let directory = support::scratch(test);
    let stripped = directory.join("unwind");
    let arguments = ["-o".as_ref(), stripped.as_os_str(), env!("CARGO_BIN_EXE_unwind").as_ref()];
    assert!(Command::new(strip).args(arguments).status().unwrap().success());
    let mut archive = Archive::default();
    archive.add_program("init", &first);
    archive.add_program("program", &program);
    archive.add_program("deferral", &deferral);
    archive.add_program("unwind", &stripped);
    let cat = Path::new("/bin/cat");
    archive.add("bin", 0o040_755, &[]);
    archive.add_program("bin/cat", cat);
    let files = libraries(&stripped).into_iter().chain(libraries(cat));
    files.for_each(|path| archive.add_file(&path));
    let initrd = directory.join("initrd");
    fs::write(&initrd, archive.finish()).unwrap();

    let line = |at: usize| directory.join(format!("serial{at}"));
    let mut command = Command::new("timeout");
    command.arg("900").arg(qemu);
    // One CPU: the first event of a kind makes the kernel change its code, and under emulation a second
    // CPU has stopped at the breakpoint that it puts there meanwhile ("Oops: int3").
    command.args("-machine q35 -accel tcg -cpu max -m 1G -smp 1 -display none".split(' '));
    command.args("-nodefaults -no-reboot".split(' '));
    command.args(["-append", "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off"]);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(&initrd);
    for at in 0..4 {
        command.arg("-serial").arg(format!("file:{}", line(at).display()));
    }
    // Of all boots under emulation a few hang before the first process.
    let mut output = command.stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        output = command.output().unwrap();
    }
    let console = fs::read_to_string(line(0)).unwrap_or_default();
    assert!(output.status.success(), "{}\n{console}", text(&output.stderr));
    let read = |at| text(&fs::read(line(at)).unwrap());
    let (ledgers, folded) = (read(1), read(2));
    let ledgers = ledgers.lines().filter(|line| line.starts_with('{'));
    let ledgers = ledgers.map(|line| serde_json::from_str(line).unwrap()).collect();
    let folded = folded.split("bpf\n").map(str::to_owned).collect();
    Some(Guest { console, ledgers, folded, recording: line(3) })
}

fn count(ledger: &Value, name: &str) -> u64 {
    ledger[name].as_u64().unwrap_or_else(|| panic!("{name} in {ledger}"))
}

/// Stacks that are complete, and those that are none as their program had ended.
fn settled(ledger: &Value) -> u64 {
    let ended = ["executed-another", "thread-ended"];
    let ended = ended.map(|name| ledger["incomplete"][name].as_u64().unwrap_or(0));
    count(ledger, "complete") + ended.iter().sum::<u64>()
}

/// Stacks of functions, the outermost first, each with how often it was seen.
fn stacks(folded: &str) -> impl Iterator<Item = (Vec<&str>, u64)> {
    folded.lines().map(|line| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        (stack.split(';').collect(), count.parse().unwrap())
    })
}

#[test]
fn d14_the_kernels_own_deferred_stacks_are_recorded_and_are_unchecked() {
    let Some(guest) = Guest::get() else { return };
    let (ledger, folded, recording) = (guest.ledger(0), &guest.folded[0], &guest.recording);
    let [written, unchecked] = ["written", "unchecked"].map(|name| count(ledger, name));
    assert!(unchecked > 20 && unchecked * 100 > written * 90, "{ledger}");
    assert_eq!([count(ledger, "complete"), count(ledger, "damaged")], [0, 0], "{ledger}");
    let classes = ["unchecked", "unmatched", "kernel_only", "dropped"];
    assert_eq!(classes.map(|name| count(ledger, name)).iter().sum::<u64>(), written, "{ledger}");

    // Stacks in the program's own functions: those of the kernel's walk along frame pointers.
    let (mut whole, mut at_entries, mut seen) = (0, 0, 0);
    for (stack, samples) in stacks(folded) {
        let times = |name: &str| stack.iter().filter(|&&frame| frame == name).count();
        if times("innermost") > 0 && !folded_note(&stack) {
            seen += samples;
            let is_of_chain = times("innermost") == 1 && times("main") == 1;
            match times("nested") {
                11 if is_of_chain => whole += samples,
                // Before a function has set its frame pointer its caller is left out.
                10 if is_of_chain => at_entries += samples,
                _ => {}
            }
        }
    }
    let right = whole + at_entries;
    assert!(seen > 10 && right * 100 >= seen * 99, "{right} of {seen}\n{folded}");
    assert!(at_entries * 10 < seen, "{at_entries} of {seen}\n{folded}");

    // Others read the file.
    let output = unwind(&["script", "-F", "ip,sym", recording.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let Some(perf) = tool("perf") else { return skip("no perf") };
    let mut script = Command::new(perf);
    let output = script.args(["script", "-F", "ip", "-i"]).arg(recording).output().unwrap();
    let perfs = text(&output.stdout);
    let samples = perfs.split("\n\n").filter(|block| !block.trim().is_empty()).count();
    assert_eq!(u64::try_from(samples).unwrap(), written, "{}", text(&output.stderr));
}

#[test]
fn a_program_in_the_kernel_walks_stacks_without_frame_pointers() {
    let Some(guest) = Guest::get() else { return };
    let (ledger, folded) = (guest.ledger(1), &guest.folded[1]);
    let written = count(ledger, "written");
    let walks = |name: &str| count(&ledger["walks"], name);
    // Before Linux 6.18 all are walked at once, also until the tables are there.
    let least = if walks("deferred") == 0 { 90 } else { 98 };
    assert!(written > 100 && settled(ledger) * 100 >= written * least, "{ledger}");
    assert!(walks("at_once") == written || walks("deferred").min(walks("shared")) > 5, "{ledger}");
    let chain = ["main", "reads_all", "reads"];
    let (mut whole, mut seen) = (0, 0);
    for (stack, samples) in stacks(folded).filter(|(stack, _)| stack.contains(&"reads")) {
        seen += samples;
        let own: Vec<&str> = stack.into_iter().filter(|name| chain.contains(name)).collect();
        whole += if own == chain { samples } else { 0 };
    }
    assert!(seen > 50 && whole == seen, "{whole} of {seen}\n{folded}");
}

#[test]
fn signals_threads_and_programs_that_replace_others_are_all_in_the_programs_ledger() {
    let Some(guest) = Guest::get() else { return };
    let (ledger, folded) = (guest.ledger(2), &guest.folded[2]);
    let reasons = ledger["incomplete"].as_object().unwrap();
    let reasons: u64 = reasons.values().map(|count| count.as_u64().unwrap()).sum();
    let classes = ["complete", "kernel_only", "unmatched", "unchecked", "damaged", "dropped"];
    let classified: u64 = classes.iter().map(|name| count(ledger, name)).sum();
    let written = count(ledger, "written");
    assert_eq!(classified + reasons, written, "{ledger}");
    assert_eq!([count(ledger, "damaged"), count(ledger, "lost")], [0, 0], "{ledger}");
    let least = if count(&ledger["walks"], "deferred") == 0 { 80 } else { 98 };
    assert!(written > 50 && settled(ledger) * 100 >= written * least, "{ledger}");
    // A thread that executes another program has its leader's number from then on.
    assert!(count(ledger, "unmatched") * 100 <= written, "{ledger}");
    for name in ["handles", "works", "mixes"] {
        assert!(stacks(folded).any(|(stack, _)| stack.contains(&name)), "{name} in {folded}");
    }
}

/// Whether a stack stands under a root that says why it is not complete.
fn folded_note(stack: &[&str]) -> bool {
    stack.first().is_some_and(|root| root.starts_with("[incomplete"))
}

fn unwind(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_unwind")).args(arguments).output().unwrap()
}
