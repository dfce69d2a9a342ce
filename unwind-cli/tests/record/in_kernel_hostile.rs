//! `unwind record --engine bpf` of programs that mislead it, change under it or have it wait, beside another and
//! killed at any moment: it ends, its memory is bounded, its ledger adds up, and nothing stays in the kernel.

use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::in_kernel::{ALONE, walks};
use super::*;

/// What a recorder may have in memory, in KiB. Those of these tests have 30 to 60 MiB.
const MEMORY: u64 = 128 << 10;

/// Longer than any of these takes, also on a machine that is busy.
const SOON: Duration = Duration::from_secs(120);

/// A recorder that runs.
struct Recorder {
    child: Child,
    data: PathBuf,
}

impl Recorder {
    fn start(directory: &Path, name: &str, arguments: &[&str]) -> Self {
        let data = directory.join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_unwind"));
        command.args(["record", "--engine", "bpf", "--json", "-o", data.to_str().unwrap()]);
        command.args(arguments).current_dir(directory).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, data }
    }

    /// Waits for its end, and for no more of its memory than it may have. Returns the ledger; `None` where the kernel
    /// does not load the program.
    fn finish(mut self) -> Option<Value> {
        let (process, begun) = (self.child.id(), Instant::now());
        while self.child.try_wait().unwrap().is_none() {
            let most = most_memory(process);
            if begun.elapsed() > SOON || most > MEMORY {
                self.child.kill().unwrap();
                panic!("{:?}, {most} KiB: {:?}", begun.elapsed(), self.child.wait_with_output());
            }
            sleep(Duration::from_millis(20));
        }
        let output = self.child.wait_with_output().unwrap();
        let told = text(&output.stderr);
        if told.contains("stacks cannot be walked in the kernel") {
            skip(&told);
            return None;
        }
        if told.contains("exit status: 1") {
            skip(&format!("the program cannot do this here: {told}"));
            return None;
        }
        let ledger = ledger_of(&[], output)?;
        if walks(&ledger, "deferred") == 0 && walks(&ledger, "copied") == 0 {
            skip("this kernel walks no stack later");
            return None;
        }
        Some(ledger)
    }
}

/// The most memory that a process has had, in KiB.
fn most_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}

fn hostile(test: &str) -> Option<PathBuf> {
    support::compile(test, "hostile_stacks.c", &["-O1", "-fomit-frame-pointer", "-pthread"])
}

/// Records what the program does for some seconds, alone.
fn recorded(program: &Path, arguments: &[&str]) -> Option<Value> {
    let _alone = ALONE.lock();
    let command = [&["--", program.to_str().unwrap()], arguments].concat();
    Recorder::start(program.parent().unwrap(), "perf.data", &command).finish()
}

#[test]
fn registers_that_lead_to_no_stack_and_frames_without_end_have_a_reason() {
    let Some(program) = hostile("in_kernel_registers") else { return };
    let Some(ledger) = recorded(&program, &["registers", "1"]) else { return };
    let absent = ledger["incomplete"]["stack-not-resident"].as_u64().unwrap_or(0);
    assert!(absent > 20, "{ledger}");
    let Some(ledger) = recorded(&program, &["loops", "1"]) else { return };
    let cut = ledger["incomplete"]["frame-limit"].as_u64().unwrap_or(0);
    assert!(cut > 20 && number(&ledger, "complete") * 10 < cut, "{ledger}");
}

#[test]
fn a_walk_does_not_wait_for_pages_that_another_program_has_to_bring_in() {
    let Some(program) = hostile("in_kernel_faults") else { return };
    let Some(ledger) = recorded(&program, &["faults", "2"]) else { return };
    // A thread that waits once has no more samples.
    let absent = ledger["incomplete"]["stack-not-resident"].as_u64().unwrap_or(0);
    assert!(absent > 20, "{ledger}");
}

#[test]
fn a_page_that_goes_while_it_is_copied_holds_up_no_other_record() {
    let Some(program) = hostile("in_kernel_drops") else { return };
    let Some(ledger) = recorded(&program, &["drops", "2"]) else { return };
    let written = number(&ledger, "written");
    assert!(written > 20 && number(&ledger, "lost") == 0, "{ledger}");
    assert!(number(&ledger, "unmatched") * 50 < written, "{ledger}");
}

#[test]
fn more_files_than_there_is_room_for_and_60_000_mappings_take_bounded_memory() {
    let Some(program) = hostile("in_kernel_mappings") else { return };
    for arguments in [&["files", "4", "4500"][..], &["mappings", "1", "60000"], &["remaps", "1"]] {
        let Some(ledger) = recorded(&program, arguments) else { return };
        assert!(number(&ledger, "written") > 30, "{ledger}");
        // A recorder that has no CPU for a while loses records of mappings, and says how many.
        let (lost, told) = (number(&ledger, "lost"), number(&ledger, "lost_told"));
        assert_eq!((lost, number(&ledger, "unmatched")), (told, 0), "{ledger}");
    }
}

#[test]
fn a_table_of_random_bytes_costs_its_own_file_the_frames() {
    let Some(program) = hostile("in_kernel_lies") else { return };
    let Some(objcopy) = tool("objcopy") else { return };
    let (lies, table) = (program.with_file_name("lies"), program.with_file_name("table"));
    let noise =
        (0..4_000_u64).flat_map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    fs::write(&table, noise.collect::<Vec<_>>()).unwrap();
    let update = format!(".eh_frame={}", table.display());
    let mut command = Command::new(objcopy);
    command.args(["--update-section", &update]).args([&program, &lies]).stderr(Stdio::null());
    assert!(command.status().unwrap().success());
    // Bytes that are not there: a file of 2 GiB.
    let file = fs::OpenOptions::new().write(true).open(&lies).unwrap();
    file.set_len(2 << 30).unwrap();
    drop(file);
    let code = ["code", "1", lies.to_str().unwrap()];
    let Some(ledger) = recorded(&program, &code) else { return };
    assert!(number(&ledger, "written") > 30, "{ledger}");
    assert_eq!((number(&ledger, "lost"), number(&ledger, "unmatched")), (0, 0), "{ledger}");
}

#[test]
fn two_recorders_of_a_process_have_all_its_stacks_each() {
    let Some(program) = nested("in_kernel_two") else { return };
    let _alone = ALONE.lock();
    let target = support::Target::start_command(Command::new(&program).arg("3"));
    let (directory, process) = (program.parent().unwrap(), target.id().to_string());
    let arguments = ["--duration", "1", "--pid", &process];
    let recorders = ["one", "other"].map(|name| Recorder::start(directory, name, &arguments));
    for recorder in recorders {
        let data = recorder.data.clone();
        let Some(ledger) = recorder.finish() else { return };
        let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
        assert!(written > 30 && complete * 100 >= written * 97, "{ledger}");
        let names = stacks(&data);
        let deep = names.iter().filter(|stack| stack.iter().any(|name| name == "innermost"));
        assert!(deep.count() > 20, "{ledger}");
    }
}

/// The programs of recorders that the kernel has.
fn programs() -> usize {
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let is_ours = |line: &&str| line.contains("_on_exec\t[bpf]");
    symbols.lines().filter(is_ours).count()
}

#[test]
fn a_recorder_that_is_killed_leaves_nothing_in_the_kernel() {
    let Some(program) = hostile("in_kernel_killed") else { return };
    let _alone = ALONE.lock();
    let directory = program.parent().unwrap();
    let mut target = Command::new(&program).args(["loops", "120"]).spawn().unwrap();
    let process = target.id().to_string();
    let before = programs();
    for round in 0..12_u64 {
        let mut recorder = Recorder::start(directory, "killed", &["--pid", &process]);
        // From at once to some time after the program is loaded.
        sleep(Duration::from_millis(5 * round * round));
        recorder.child.kill().unwrap();
        recorder.child.wait().unwrap();
    }
    let mut recorder = Recorder::start(directory, "killed", &["--pid", &process]);
    support::wait_until("its program is loaded", || {
        programs() > before || recorder.child.try_wait().unwrap().is_some()
    });
    let is_loaded = programs() > before;
    recorder.child.kill().unwrap();
    recorder.child.wait().unwrap();
    if !is_loaded {
        target.kill().unwrap();
        target.wait().unwrap();
        return skip("the kernel loads or lists no program of a recorder");
    }
    support::wait_until("its programs are gone", || programs() <= before);
    assert!(!support::has_events(target.id()) && target.try_wait().unwrap().is_none());
    let report = unwind(&["report", directory.join("killed").to_str().unwrap()]);
    // It may have been killed before its first sample.
    assert!(
        report.status.success()
            || text(&report.stderr).contains("all records up to its end were read")
    );
    target.kill().unwrap();
    target.wait().unwrap();
}

/// How many entries a map of a recorder has.
fn entries(bpftool: &Path, recorder: u32, name: &str) -> Option<usize> {
    let run =
        |arguments: &[&str]| text(&Command::new(bpftool).args(arguments).output().unwrap().stdout);
    let files = fs::read_dir(format!("/proc/{recorder}/fdinfo")).ok()?;
    let infos = files.flatten().filter_map(|file| fs::read_to_string(file.path()).ok());
    let ids = infos.filter_map(|info| {
        info.lines().find_map(|line| Some(line.strip_prefix("map_id:")?.trim().to_owned()))
    });
    let is_it = |id: &String| run(&["map", "show", "id", id]).contains(&format!("name {name} "));
    let id = ids.into_iter().find(is_it)?;
    let dump: Value = serde_json::from_str(&run(&["--json", "map", "dump", "id", &id])).ok()?;
    Some(dump.as_array()?.len())
}

#[test]
fn threads_that_execute_and_processes_whose_first_thread_ends_first_leave_no_entry() {
    let Some(program) = hostile("in_kernel_entries") else { return };
    let Some(bpftool) = tool("bpftool") else { return };
    let _alone = ALONE.lock();
    // What is recorded lives on until it was looked at, so that the recorder does.
    let script = "\"$0\" executes 200; \"$0\" leaves 100; echo done > ends; left=300
        while [ ! -e seen ] && [ $left -gt 0 ]; do sleep 0.1; left=$((left - 1)); done";
    let arguments = ["--", "sh", "-c", script, program.to_str().unwrap()];
    let directory = program.parent().unwrap();
    let mut recorder = Recorder::start(directory, "perf.data", &arguments);
    support::wait_until("all have ended", || {
        directory.join("ends").exists() || recorder.child.try_wait().unwrap().is_some()
    });
    let found = ["tasks", "spaces"].map(|name| entries(&bpftool, recorder.child.id(), name));
    fs::write(directory.join("seen"), "").unwrap();
    let Some(_) = recorder.finish() else { return };
    // Those of the shell, and of what is ending.
    assert!(found.iter().all(|found| found.is_some_and(|found| found < 10)), "{found:?}");
}
