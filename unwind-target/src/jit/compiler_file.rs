//! A file in which a compiler tells of the code that it makes: `/tmp/perf-PID.map` or
//! `jit-PID.dump`. Each user of a machine can write one for the process of another, so it is used
//! only if it belongs to one who may tell of the process.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::files::regular_file;
use crate::notices::Notices;
use crate::target::processes::Processes;
use crate::target::status::Status;
use crate::untrusted::escaped;

/// Whom a file belongs to that belongs to a user of another user namespace.
const OTHER_NAMESPACE: u32 = 65_534;

/// Opens the file that tells of a process. `None` if there is none, or it belongs to one who may
/// not tell of that, which is a notice.
pub(crate) fn open(
    path: &Path,
    process: u32,
    processes: Processes,
    notices: &Notices,
) -> Option<File> {
    let file = regular_file::open_no_link(path).ok()?;
    checked(file, path, process, processes, notices)
}

/// The same of a file that a process has in a container: below its root.
pub(crate) fn open_below_root(
    path: &Path,
    process: u32,
    processes: Processes,
    notices: &Notices,
) -> Option<File> {
    // Whose root it would be is not known of one that has ended.
    processes.owner(process)?;
    let root = PathBuf::from(format!("/proc/{process}/root"));
    let file = regular_file::open_below(&root, path.strip_prefix("/").ok()?).ok()?;
    checked(file, path, process, processes, notices)
}

/// The id that a process has in its container itself, by which such files are called there; `None`
/// of one that has ended.
pub(crate) fn inner_id(process: u32, processes: Processes) -> Option<u32> {
    processes.owner(process)?;
    let status = Status::read(i32::try_from(process).ok()?).ok()?;
    u32::try_from(status.inner_id).ok()
}

/// The process that has made another one without an exec since, whose code that has, too; `None` if
/// there is none any more.
pub(crate) fn forked_from(process: u32, processes: Processes) -> Option<u32> {
    processes.owner(process)?;
    let parent = Status::read(i32::try_from(process).ok()?).ok()?.parent;
    let parent = u32::try_from(parent).ok().filter(|&parent| parent > 0)?;
    // What the kernel has given a program at its start has random addresses in it.
    let given = |process| fs::read(format!("/proc/{process}/auxv")).ok();
    let own = given(process).filter(|own| !own.is_empty())?;
    (given(parent)? == own).then_some(parent)
}

/// A file that is there, if it belongs to one who may tell of the process.
fn checked(
    file: File,
    path: &Path,
    process: u32,
    processes: Processes,
    notices: &Notices,
) -> Option<File> {
    let owner = file.metadata().ok()?.uid();
    let user = rustix::process::geteuid().as_raw();
    let of_process = processes.owner(process);
    if is_trusted(owner, user, of_process, has_all_users) {
        return Some(file);
    }
    let path = escaped(path);
    let whose = match of_process {
        Some(other) => format!("process {process} belongs to user {other}"),
        None => format!("it is not known any more whose process {process} was"),
    };
    notices.add(format!(
        "{path} is not used: it belongs to user {owner}, not to root or to you (user {user}), and \
         {whose}; code that a compiler has made there goes without what it says"
    ));
    None
}

/// Whether the owner of a file may tell of a process: root, the user who asks, and the owner of
/// the process.
fn is_trusted(
    owner: u32,
    user: u32,
    of_process: Option<u32>,
    has_all_users: impl FnOnce() -> bool,
) -> bool {
    let is_one = owner == 0 || owner == user || Some(owner) == of_process;
    // In a namespace of a few users all others are the same one.
    is_one && (owner != OTHER_NAMESPACE || has_all_users())
}

/// Whether this process is in a namespace that has all users.
fn has_all_users() -> bool {
    let map = fs::read("/proc/self/uid_map").unwrap_or_default();
    let words = map.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.eq([&b"0"[..], b"0", b"4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_root_the_user_and_the_owner_of_the_process_may_tell_of_its_code() {
        let is_trusted = |owner, of_process| is_trusted(owner, 1000, of_process, || true);
        assert!(is_trusted(0, None) && is_trusted(1000, None) && is_trusted(1001, Some(1001)));
        assert!(!is_trusted(1001, None) && !is_trusted(1001, Some(1000)));
        let in_namespace =
            |user, of_process| super::is_trusted(OTHER_NAMESPACE, user, of_process, || false);
        assert!(!in_namespace(1000, Some(OTHER_NAMESPACE)) && !in_namespace(OTHER_NAMESPACE, None));
        assert!(is_trusted(OTHER_NAMESPACE, Some(OTHER_NAMESPACE)));
    }
}
