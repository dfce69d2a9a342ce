//! One of two sides that are compared.

use unwind_target::Untrusted;

use crate::collected::call_tree::CallTree;
use crate::session::ledger::Ledger;

/// What was recorded before, or after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side<'s> {
    /// To be shown as it is.
    pub(crate) title: &'s str,
    pub(crate) profile: &'s CallTree,
    pub(crate) ledger: &'s Ledger,
    /// By recording: how many samples end at each node of the profile.
    pub(crate) recordings: &'s [&'s [u64]],
    /// Whether the text names options of the command.
    pub(crate) names_options: bool,
}

/// The name of a file for comparisons: programs of two releases may be in other folders, and files
/// that JIT compilers write have the number of their process.
pub(crate) fn compared_file(file: &Untrusted) -> Untrusted {
    let path = file.as_bytes();
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    for (before, after) in [(&b"perf-"[..], &b".map"[..]), (b"jit-", b".dump")] {
        let number = name.strip_prefix(before).and_then(|name| name.strip_suffix(after));
        if number.is_some_and(|number| number.iter().all(u8::is_ascii_digit)) {
            return [before, b"PID", after].concat().into();
        }
    }
    Untrusted::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d16_files_are_compared_without_their_folders_and_the_numbers_of_processes() {
        for (file, compared) in [
            (&b"/opt/1.0/server"[..], &b"server"[..]),
            (b"server", b"server"),
            (b"[vdso]", b"[vdso]"),
            (b"/tmp/perf-1234.map", b"perf-PID.map"),
            (b"/tmp/jit-1234.dump", b"jit-PID.dump"),
            (b"/tmp/perf-x.map", b"perf-x.map"),
            (b"/", b""),
            (b"", b""),
        ] {
            assert_eq!(compared_file(&Untrusted::from(file)), Untrusted::from(compared));
        }
    }
}
