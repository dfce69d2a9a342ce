//! What `/proc/PID/status` and `/proc/PID/stat` say about a task.

use std::io;

use memchr::{memchr, memchr_iter, memrchr};

use crate::target::proc_text::read_text;
use crate::untrusted::plain;

/// The state of one task, as far as it decides whether and how to trace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The process that the task is a thread of.
    pub(crate) process: i32,
    /// The letter of `proc(5)`: `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`.
    pub(crate) state: u8,
    /// Who traces the task, or 0.
    pub(crate) tracer: i32,
    /// The process that has started it, or takes care of it since that has ended.
    pub(crate) parent: i32,
    /// The effective user id.
    pub(crate) user: u32,
    /// It runs in the kernel only.
    pub(crate) is_kernel_thread: bool,
    /// The id that it has in the innermost namespace of ids that it is in.
    pub(crate) inner_id: i32,
    /// How often it has left a CPU, of its own will or not.
    pub(crate) switches: u64,
}

impl Status {
    /// Reads the state of the task with this id, be it a process or a thread.
    ///
    /// # Errors
    ///
    /// As reading a file: `NotFound` where there is no such task.
    pub fn read(task: i32) -> io::Result<Self> {
        let status = read_text(format!("/proc/{task}/status"))?;
        let stat = read_text(format!("/proc/{task}/stat"))?;
        Self::parse(&status, &stat)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unknown form of status"))
    }

    /// It has ended, and only its entry in the process table is left.
    #[must_use]
    pub fn is_dead(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Reads the text of `status` and `stat`.
    pub(super) fn parse(status: &[u8], stat: &[u8]) -> Option<Self> {
        let number = |name| plain(field(status, name)?)?.parse().ok();
        let count = |name| plain(field(status, name)?)?.parse::<u64>().ok();
        // Real, effective, saved and file system id.
        let mut users = field(status, "Uid")?.split(u8::is_ascii_whitespace);
        Some(Self {
            process: number("Tgid")?,
            state: *field(status, "State")?.first()?,
            tracer: number("TracerPid")?,
            parent: number("PPid")?,
            user: plain(users.nth(1)?)?.parse().ok()?,
            is_kernel_thread: flags(stat)? & PF_KTHREAD != 0,
            // From the outermost namespace to the innermost; kernels before 4.1 do not say it.
            inner_id: field(status, "NSpid")
                .and_then(|ids| ids.split(u8::is_ascii_whitespace).next_back())
                .and_then(|id| plain(id)?.parse().ok())
                .unwrap_or(number("Tgid")?),
            switches: count("voluntary_ctxt_switches")?
                .wrapping_add(count("nonvoluntary_ctxt_switches")?),
        })
    }
}

/// `PF_KTHREAD` of the kernel's task flags.
const PF_KTHREAD: u32 = 0x0020_0000;

/// When a process began, in ticks of the clock since the machine was started: the 22nd field of
/// `/proc/PID/stat`.
pub(crate) fn start_ticks(stat: &[u8]) -> Option<u64> {
    let after_name = stat.get(memrchr(b')', stat)?.checked_add(1)?..)?;
    plain(after_name.trim_ascii())?.split(' ').nth(19)?.parse().ok()
}

/// The ninth field of `/proc/PID/stat`. The second, the name in parentheses,
/// may hold anything, so the count starts after its last parenthesis.
fn flags(stat: &[u8]) -> Option<u32> {
    let behind_name = stat.get(memrchr(b')', stat)?.checked_add(1)?..)?;
    plain(behind_name.trim_ascii())?.split(' ').nth(6)?.parse().ok()
}

/// The value on the line `Name:\tvalue`.
fn field<'a>(status: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let line_starts =
        std::iter::once(0).chain(memchr_iter(b'\n', status).map(|at| at.saturating_add(1)));
    let rest = line_starts
        .filter_map(|start| status.get(start..))
        .find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
    let line = rest.get(..memchr(b'\n', rest).unwrap_or(rest.len()))?;
    Some(line.trim_ascii())
}

/// Whether texts are those of a task's `status` and `stat`, for a fuzz target.
#[must_use]
pub fn has_status(status: &[u8], stat: &[u8]) -> bool {
    Status::parse(status, stat).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let status = b"Name:\tx\nTgid:\t12\nNgid:\t0\nTracerPid:\t99";
        assert_eq!(field(status, "Tgid"), Some(&b"12"[..]));
        assert_eq!(field(status, "TracerPid"), Some(&b"99"[..]));
        assert_eq!(field(status, "Tracer"), None);
        assert_eq!(field(status, "gid"), None);
    }

    #[test]
    fn a_name_with_a_parenthesis_and_spaces_does_not_shift_the_flags() {
        let stat = b"7 (a) S 2 b) S 1 7 7 0 -1 2097216 0 0";
        assert_eq!(flags(stat), Some(0x0020_0040));
    }

    #[test]
    fn this_process_is_alive_untraced_and_no_kernel_thread() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let status = Status::read(pid).unwrap();
        assert_eq!((status.process, status.tracer), (pid, 0));
        assert!(!status.is_dead() && !status.is_kernel_thread);
        assert_eq!(Status::read(i32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
