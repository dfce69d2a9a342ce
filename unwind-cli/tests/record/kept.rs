//! Programs that are rebuilt, removed, or were never where a report looks for them keep their names.

use std::os::unix::fs::MetadataExt as _;

use super::*;

/// Where a test's files are: what it records, the recording, and what is kept.
struct Place {
    program: PathBuf,
    data: PathBuf,
    kept: PathBuf,
}

impl Place {
    fn new(test: &str) -> Option<Self> {
        let program = nested(test)?;
        let beside = |name| program.with_file_name(name);
        Some(Self { data: beside("perf.data"), kept: beside("kept"), program })
    }

    fn unwind(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unwind"));
        command.env("PERF_BUILDID_DIR", &self.kept);
        command
    }

    /// Records a command; `None` where the kernel allows no samples.
    fn record(&self, options: &[&str], command: &[&str]) -> Option<Value> {
        let data = self.data.to_str().unwrap();
        let before = if command.is_empty() { &[][..] } else { &["--"] };
        let arguments = [&["record", "--json", "-o", data], options, before, command].concat();
        ledger_of(&arguments, run(self.unwind(), &arguments))
    }

    /// Records what is left of a program's time.
    fn record_rest(&self, target: &support::Target) -> Option<Value> {
        let process = target.id().to_string();
        let arguments = ["record", "--json", "-o", self.data.to_str().unwrap(), "--pid", &process];
        ledger_of(&arguments, target.sampled_by(self.unwind().args(arguments)))
    }

    /// The stacks of a report, and what it tells besides.
    fn report(&self) -> (String, String) {
        let data = self.data.to_str().unwrap();
        let output = run(self.unwind(), &["report", "--format", "folded", data]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    }

    fn compile_again(&self) {
        let flags = [WITHOUT_FRAME_POINTERS, &["-Dnested=renamed", "-Dinnermost=other"]].concat();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/nested.c");
        let compiler = test_support::Compiler::find(&flags).unwrap();
        compiler.compile(&source, &self.program, &[]);
    }

    fn program(&self) -> &str {
        self.program.to_str().unwrap()
    }
}

/// Whether folded stacks have a frame of this name; a function of the kernel may have it as a part.
fn has_frame(stacks: &str, name: &str) -> bool {
    stacks
        .lines()
        .any(|line| line.rsplit_once(' ').unwrap().0.split(';').any(|frame| frame == name))
}

/// Whether samples have the functions that the program had, and none that it did not have.
#[track_caller]
fn assert_named(stacks: &str) {
    let counts = |is_wanted: fn(&str) -> bool| -> u64 {
        let lines = stacks.lines().filter(|line| is_wanted(line));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    };
    assert!(counts(|line| line.contains(";main;nested;nested;")) > 50, "{stacks}");
    // It may have been sampled before its first function.
    assert!(counts(|line| line.contains(";main")) * 10 > counts(|_| true) * 9, "{stacks}");
    assert!(!has_frame(stacks, "renamed") && !has_frame(stacks, "other"), "{stacks}");
}

fn build_id(program: &Path) -> String {
    let output = Command::new("readelf").arg("-n").arg(program).output().unwrap();
    let notes = text(&output.stdout);
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.unwrap_or_else(|| panic!("{notes}")).to_owned()
}

#[test]
fn k4_a_program_that_is_built_anew_or_removed_has_the_names_that_it_had() {
    let Some(place) = Place::new("k4_built_anew") else { return };
    let Some(ledger) = place.record(&[], &[place.program(), "0.5"]) else { return };
    assert!(number(&ledger, "complete") > 100, "{ledger}");
    place.compile_again();
    let (stacks, told) = place.report();
    assert_named(&stacks);
    assert!(!told.contains("have no names"), "{told}");
    fs::remove_file(&place.program).unwrap();
    assert_named(&place.report().0);
    // Every command finds it.
    let script = run(place.unwind(), &["script", "-F", "ip,sym", place.data.to_str().unwrap()]);
    assert!(text(&script.stdout).contains(" nested\n"), "{}", text(&script.stderr));
}

#[test]
fn k4_a_program_that_is_written_over_has_the_names_that_it_had() {
    let Some(place) = Place::new("k4_written_over") else { return };
    if place.record(&[], &[place.program(), "0.5"]).is_none() {
        return;
    }
    // The same file with other bytes: another name of it would have these, too.
    let old = place.program.with_file_name("old");
    fs::hard_link(&place.program, &old).unwrap();
    let inode = fs::metadata(&old).unwrap().ino();
    fs::remove_file(&place.program).unwrap();
    place.compile_again();
    let new = fs::read(&place.program).unwrap();
    fs::rename(&old, &place.program).unwrap();
    fs::write(&place.program, new).unwrap();
    assert_eq!(fs::metadata(&place.program).unwrap().ino(), inode);
    assert_named(&place.report().0);
}

#[test]
fn k4_a_program_that_is_removed_while_it_runs_is_kept() {
    let Some(place) = Place::new("k4_removed") else { return };
    // It says that it runs, which a busy machine may let it do late.
    let shell = "cp \"$1\" \"$1.copy\"; mkfifo \"$1.says\"; \"$1.copy\" 0.6 > \"$1.says\" & \
        read ready < \"$1.says\"; sleep 0.3; rm \"$1.copy\"; wait";
    if place.record(&[], &["sh", "-c", shell, "sh", place.program()]).is_none() {
        return;
    }
    assert!(!place.program.with_extension("copy").exists());
    fs::remove_file(&place.program).unwrap();
    let (stacks, _) = place.report();
    let own: Vec<&str> = stacks.lines().filter(|line| line.starts_with("program.copy")).collect();
    assert_named(&own.join("\n"));
}

#[test]
fn k4_a_file_that_is_not_found_is_told_once_with_what_was_recorded_what_is_there_and_what_to_do() {
    let Some(place) = Place::new("k4_told") else { return };
    if place.record(&["-N"], &[place.program(), "0.3"]).is_none() {
        return;
    }
    let recorded = build_id(&place.program);
    place.compile_again();
    let now = build_id(&place.program);
    assert_ne!(recorded, now);
    let (stacks, told) = place.report();
    assert!(!has_frame(&stacks, "nested") && !has_frame(&stacks, "renamed"), "{stacks}");
    let lines: Vec<&str> = told.lines().filter(|line| line.contains(place.program())).collect();
    let [line] = lines[..] else { panic!("{told}") };
    for part in [recorded.as_str(), now.as_str(), "perf buildid-cache --add"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    fs::remove_file(&place.program).unwrap();
    let (_, told) = place.report();
    assert!(told.contains("there is no such file now") && told.contains(&recorded), "{told}");
}

#[test]
fn k4_the_symbols_of_the_kernel_are_those_of_the_moment() {
    let Some(place) = Place::new("k4_kernel") else { return };
    let list = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let is_told = |line: &str| line.ends_with(" T _text") && !line.starts_with("0000000000000000");
    let Some(text) = list.lines().find(|line| is_told(line)) else {
        return skip("addresses of the kernel are not told");
    };
    // In what is compressed a byte that is changed has other records damaged.
    let Some(_) = place.record(&["-z0"], &[place.program(), "0.5"]) else { return };
    let folders = fs::read_dir(place.kept.join("[kernel.kallsyms]")).unwrap();
    let [folder] = &folders.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()[..] else {
        panic!("not one kernel")
    };
    let kept = fs::read_to_string(folder.join("kallsyms")).unwrap();
    assert!(kept.lines().any(|line| line == text), "{text}");
    let of_kernel = |stacks: &str| stacks.matches("do_syscall_64").count();
    assert!(of_kernel(&place.report().0) > 0);
    // As if another kernel ran here by now: the recording has another build id.
    let id = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let bytes: Vec<u8> = (0..id.len() / 2)
        .map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let mut data = fs::read(&place.data).unwrap();
    let places: Vec<usize> =
        (0..data.len() - bytes.len()).filter(|&at| data[at..].starts_with(&bytes)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| data[at] ^= 0xff);
    fs::write(&place.data, data).unwrap();
    let (stacks, told) = place.report();
    assert_eq!(of_kernel(&stacks), 0, "{stacks}");
    assert!(told.contains("functions of the kernel have no names"), "{told}\n{stacks}");
    let links = place.kept.join(".build-id").join(format!("{:02x}", bytes[0] ^ 0xff));
    fs::create_dir(&links).unwrap();
    std::os::unix::fs::symlink(folder, links.join(&id[2..])).unwrap();
    let (stacks, told) = place.report();
    assert!(of_kernel(&stacks) > 0 && !told.contains("kernel"), "{told}");
}

#[test]
fn k4_the_tests_keep_nothing_among_the_files_of_their_user() {
    let kept = std::env::var_os("PERF_BUILDID_DIR").map(PathBuf::from);
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    assert!(kept.is_some_and(|kept| kept.is_absolute() && kept != home.join(".debug")));
}

#[test]
fn k4_what_is_kept_is_where_perf_has_it_and_nothing_is_where_the_user_wants_none() {
    let Some(place) = Place::new("k4_layout") else { return };
    if place.record(&["--no-buildid-cache"], &[place.program(), "0.3"]).is_none() {
        return;
    }
    assert!(!place.kept.exists());
    let Some(_) = place.record(&[], &[place.program(), "0.5"]) else { return };
    let id = build_id(&place.program);
    let link = place.kept.join(".build-id").join(&id[..2]).join(&id[2..]);
    let folder = place.kept.join(place.program.strip_prefix("/").unwrap()).join(&id);
    assert_eq!(fs::canonicalize(link).unwrap(), fs::canonicalize(&folder).unwrap());
    let elf = folder.join("elf");
    assert_eq!(fs::read(&elf).unwrap(), fs::read(&place.program).unwrap());
    // A second recording makes nothing again.
    let made = fs::metadata(&elf).unwrap().ino();
    let Some(_) = place.record(&["-F", "99"], &[place.program(), "0.2"]) else { return };
    assert_eq!(fs::metadata(&elf).unwrap().ino(), made);
    let Some(perf) = tool("perf") else { return };
    let data = place.data.to_str().unwrap();
    fs::remove_file(&place.program).unwrap();
    let perf = |arguments: &[&str]| {
        let kept = place.kept.to_str().unwrap();
        let output = run(Command::new(&perf), &[&["--buildid-dir", kept], arguments].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let listed = perf(&["buildid-list", "-i", data]);
    assert!(listed.contains(&format!("{id} {}", place.program())), "{listed}");
    let shown = perf(&["script", "--no-inline", "-F", "ip,sym", "-i", data]);
    assert!(shown.contains(" nested\n"), "{shown}");
}

#[test]
fn k5_a_program_that_was_executed_from_memory_has_whole_stacks_and_names() {
    let Some(place) = Place::new("k5_memory") else { return };
    let Some(starter) = support::compile("k5_starter", "from_memory.c", &["-O1"]) else { return };
    let command = [starter.to_str().unwrap(), place.program(), "0.5"];
    let Some(ledger) = place.record(&[], &command) else { return };
    let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
    assert!(written > 100 && complete * 100 > written * 95, "{ledger}");
    // It is in no file but the one that is kept.
    fs::remove_file(&place.program).unwrap();
    assert_named(&place.report().0);
}

#[test]
fn k5_a_process_of_a_program_in_memory_is_recorded_by_its_id() {
    let Some(place) = Place::new("k5_attached") else { return };
    let Some(starter) = support::compile("k5_starter_2", "from_memory.c", &["-O1"]) else { return };
    let mut command = Command::new(starter);
    let target = support::Target::start_command(command.args([place.program(), "1"]));
    let Some(ledger) = place.record_rest(&target) else { return };
    let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
    assert!(written > 100 && complete * 100 > written * 95, "{ledger}");
    drop(target);
    fs::remove_file(&place.program).unwrap();
    assert_named(&place.report().0);
}

#[test]
fn k6_a_process_with_files_of_its_own_has_names_after_its_end() {
    let Some(place) = Place::new("k6_mounted") else { return };
    let folder = support::scratch("k6_mounted_folder");
    let inside = folder.join("program");
    // Another program has the name outside.
    fs::copy("/bin/true", &inside).unwrap();
    let shell = "mount -t tmpfs none \"$2\" && cp \"$1\" \"$2/program\" && exec \"$2/program\" 1";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", shell, "sh", place.program(), folder.to_str().unwrap()]);
    if !nix::unistd::geteuid().is_root() || !unshares() {
        return skip("another mount namespace needs root");
    }
    let target = support::Target::start_command(&mut command);
    let Some(ledger) = place.record_rest(&target) else { return };
    let (written, complete) = (number(&ledger, "written"), number(&ledger, "complete"));
    assert!(written > 100 && complete * 100 > written * 95, "{ledger}");
    drop(target);
    fs::remove_file(&place.program).unwrap();
    assert_named(&place.report().0);
}

fn unshares() -> bool {
    Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success())
}
