//! Files in which compilers tell of their code, by whom they belong to: each user of a machine can
//! write such a file for the process of another.
#![cfg(test)]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::*;
use test_support::skip;

/// Users that own nothing else here.
const OWNER: u32 = 23_456;
const OTHER: u32 = 23_457;

/// The names in the map and the dump of `compiled.c`.
const NAMES: [&str; 2] = ["named_by_map", "named_by_dump"];

/// A program of a user, its map and its dump.
struct Compiled {
    target: Option<Target>,
    id: u32,
    folder: PathBuf,
    map: PathBuf,
    dump: PathBuf,
}

impl Compiled {
    fn start(test: &str, user: u32) -> Option<Self> {
        if !is_root() {
            skip("only root can give files away");
            return None;
        }
        let program = compile(test, "compiled.c", FRAME_POINTERS)?;
        let folder = public_directory(test);
        chown(&folder, Some(user), None).unwrap();
        let copy = folder.join("program");
        fs::copy(program, &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        let target = Target::start_command(Command::new(copy).uid(user).current_dir(&folder));
        let id = target.id();
        let map = PathBuf::from(format!("/tmp/perf-{id}.map"));
        let dump = folder.join(format!("jit-{id}.dump"));
        Some(Self { target: Some(target), id, folder, map, dump })
    }

    /// Records the program while it runs. `None` where that may not be.
    fn record(&self) -> Option<PathBuf> {
        let data = self.folder.join("perf.data");
        let pid = self.id.to_string();
        let mut command = unwind(["record", "--keep-stacks", "--pid", &pid, "-o"]);
        command.arg(&data).arg("--").args(wait_for_cpu(self.id, 500));
        let output = command.output().unwrap();
        if stderr(&output).contains("lets no sampling event be opened") {
            skip(&stderr(&output));
            return None;
        }
        assert!(output.status.success(), "{}", stderr(&output));
        Some(data)
    }

    /// What `unwind top` reports of it. On a busy machine its screens may not have all; what they are not
    /// to have they never have. `None` where that may not be.
    fn top(&self, names: [bool; 2], unused: usize) -> Option<([bool; 2], usize)> {
        let pid = self.id.to_string();
        let mut found = ([false; 2], 0);
        for _ in 0..5 {
            let mut top = unwind(["top", "--batch", "2", "--interval", "1", "--pid", &pid]);
            let output = top.output().unwrap();
            if stderr(&output).contains("lets no sampling event be opened") {
                skip(&stderr(&output));
                return None;
            }
            found = reported(&output);
            let is_too_much = |(found, wanted): (bool, bool)| found && !wanted;
            let has_more = found.0.into_iter().zip(names).any(is_too_much) || found.1 > unused;
            if has_more || found == (names, unused) {
                break;
            }
        }
        Some(found)
    }

    fn give_away(&self, user: u32) {
        for file in [&self.map, &self.dump] {
            chown(file, Some(user), None).unwrap();
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.map);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:\t0\t0\t"))
}

/// Which of the names a report has, and how many files it says are not used.
fn reported(output: &Output) -> ([bool; 2], usize) {
    assert!(output.status.success(), "{}", stderr(output));
    let text = String::from_utf8_lossy(&output.stdout);
    let told = stderr(output);
    let told = told.lines().filter(|line| line.contains(" is not used: it belongs to user "));
    (NAMES.map(|name| text.contains(name)), told.count())
}

fn report(data: &Path) -> ([bool; 2], usize) {
    reported(&unwind(["report", "--format", "folded"]).arg(data).output().unwrap())
}

#[test]
fn d14_maps_and_dumps_of_the_user_and_of_root_are_used_and_those_of_others_are_not() {
    let Some(compiled) = Compiled::start("compiled_by_root", 0) else { return };
    let Some(data) = compiled.record() else { return };
    assert_eq!(report(&data), ([true, true], 0));
    // The process is root's: another user cannot tell of it.
    compiled.give_away(OTHER);
    assert_eq!(report(&data), ([false, false], 2));
    let output = unwind(["report"]).arg(&data).output().unwrap();
    let (id, told) = (compiled.id, stderr(&output));
    let expected = format!(
        "unwind: /tmp/perf-{id}.map is not used: it belongs to user {OTHER}, not to root or to you \
         (user 0), and process {id} belongs to user 0; "
    );
    assert!(told.contains(&expected), "{told}");
    for command in ["script", "merge"] {
        let mut run = unwind([command]);
        if command == "merge" {
            run.arg("-o").arg(compiled.folder.join("merged"));
        }
        let (_, told) = reported(&run.arg(&data).output().unwrap());
        assert!(told > 0, "{command}");
    }
}

#[test]
fn d14_a_map_and_a_dump_of_the_owner_of_a_process_are_used_as_long_as_that_is_known() {
    let Some(mut compiled) = Compiled::start("compiled_by_a_user", OWNER) else { return };
    let Some(top) = compiled.top([true, true], 0) else { return };
    assert_eq!(top, ([true, true], 0));
    let Some(data) = compiled.record() else { return };
    assert_eq!(report(&data), ([true, true], 0), "the process runs");
    compiled.give_away(OTHER);
    assert_eq!(report(&data), ([false, false], 2));
    assert_eq!(compiled.top([false, false], 2), Some(([false, false], 2)));
    compiled.give_away(OWNER);
    assert_eq!(report(&data), ([true, true], 0));
    // A link would have the owner of what it leads to.
    let kept = compiled.folder.join("kept.map");
    fs::rename(&compiled.map, &kept)
        .or_else(|_| fs::copy(&compiled.map, &kept).map(|_| ()))
        .unwrap();
    let _ = fs::remove_file(&compiled.map);
    symlink(&kept, &compiled.map).unwrap();
    assert_eq!(report(&data), ([false, true], 0));
    fs::remove_file(&compiled.map).unwrap();
    fs::copy(&kept, &compiled.map).unwrap();
    compiled.give_away(OWNER);
    // Another process may have the number once it has ended.
    compiled.target = None;
    assert_eq!(report(&data), ([false, false], 2), "nothing tells whose process it was");
    chown(&compiled.map, Some(0), None).unwrap();
    assert_eq!(report(&data), ([true, false], 1));
}
