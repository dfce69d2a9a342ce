//! A process that is looked at without a stop: `/proc` tells where the threads are that
//! sleep in the kernel, of which those are shown that have not run since.
//!
//! The kernel writes the pc and the stack pointer of a thread that sleeps. They are read again after
//! the stack is copied, and so is the count of the thread's switches, since a thread that has run may
//! sleep at the same place again. Then its frames are of one time. Other threads may write to the stack,
//! and what is mapped may change, so such a stack never counts as complete. No register but the stack
//! pointer is known.

use std::fs::File;
use std::io::{self, Read as _};

use object::elf;

use crate::input_error::InputError;
use crate::target::error::TargetError;
use crate::target::proc_text::read_text;
use crate::target::process::{ptrace_scope, user_task};
use crate::target::registers::{CodeMode, UserRegisters};
use crate::target::status::Status;
use crate::target::thread_list::ThreadList;
use crate::untrusted::plain;

/// Why nothing is known of the stack of a thread that was not stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awake {
    /// It ran, or waited for a CPU.
    Running,
    /// It slept at first, and ran while its stack was copied, or has ended.
    Ran,
    /// Other code was mapped while its stack was copied.
    Remapped,
}

/// The threads of a process at one look.
#[derive(Debug)]
pub(crate) struct SleepingProcess {
    /// The id of the process.
    pub(crate) process: i32,
    /// The id of a thread that is alive.
    pub(crate) some_thread: i32,
    mode: CodeMode,
    /// The first one first, then ascending.
    threads: Vec<(i32, Result<Sleep, Awake>)>,
}

/// Where a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sleep {
    pc: u64,
    sp: u64,
    /// How often it has left a CPU: once more if it has run since.
    switches: u64,
}

impl SleepingProcess {
    /// Looks at the process that has `task` as its id or as that of one of its threads.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if there is no such process, if it may not be read, or if it ends.
    pub(crate) fn look(task: i32) -> Result<Self, TargetError> {
        let status = user_task(task)?;
        let process = status.process;
        // A thread that reads is at its own call each time, and runs in between.
        if i32::try_from(std::process::id()) == Ok(process) {
            return Err(TargetError::OwnProcess);
        }
        let mut ids = ThreadList::open(process)?.ids()?;
        ids.sort_unstable_by_key(|&id| (id != process, id));
        let mut threads = Vec::with_capacity(ids.len());
        for id in ids {
            match find(id) {
                Ok(Some(found)) => threads.push((id, found)),
                Ok(None) => {}
                Err(error) => return Err(refusal(id, status, error)),
            }
        }
        let Some(&(some_thread, _)) = threads.first() else {
            return Err(TargetError::Ended(process));
        };
        let mode = code_mode(some_thread).map_err(|error| refusal(some_thread, status, error))?;
        Ok(Self { process, some_thread, mode, threads })
    }

    /// Looks again at the threads that slept, and notes those that have run since.
    pub(crate) fn check(&mut self) {
        for (id, found) in &mut self.threads {
            if found.is_ok() && find(*id).ok().flatten() != Some(*found) {
                *found = Err(Awake::Ran);
            }
        }
    }

    /// What is known of the registers of each thread.
    pub(crate) fn threads(&self) -> impl Iterator<Item = (i32, Result<UserRegisters, Awake>)> + '_ {
        let registers = |sleep: Sleep| UserRegisters::asleep(self.mode, sleep.pc, sleep.sp);
        self.threads.iter().map(move |&(id, found)| (id, found.map(registers)))
    }
}

/// Where a thread sleeps, if it does; `None` if it has ended.
fn find(thread: i32) -> io::Result<Option<Result<Sleep, Awake>>> {
    // Were it the other way round, the thread could run before its switches are counted.
    let found = Status::read(thread).and_then(|status| {
        // The kernel says that the thread slept from the first word to the last.
        Ok((status, read_text(format!("/proc/{thread}/syscall"))?))
    });
    let (status, place) = match found {
        Ok(found) => found,
        Err(error) if is_end(thread, &error) => return Ok(None),
        Err(error) => return Err(error),
    };
    if status.is_dead() {
        return Ok(None);
    }
    let place = parse(&place).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "unknown form of /proc/PID/syscall")
    })?;
    let switches = status.switches;
    Ok(Some(place.map(|(pc, sp)| Sleep { pc, sp, switches }).ok_or(Awake::Running)))
}

/// Whether a file of a thread cannot be read because it has ended.
fn is_end(thread: i32, error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::ESRCH) => true,
        // A kernel can be built without `syscall`.
        Some(libc::ENOENT) => Status::read(thread).is_err(),
        _ => false,
    }
}

/// Reads what `/proc/PID/syscall` says: the pc and the stack pointer, or nothing of a thread
/// that runs. `None` if it has another form.
fn parse(text: &[u8]) -> Option<Option<(u64, u64)>> {
    let text = plain(text.trim_ascii())?;
    if text == "running" {
        return Some(None);
    }
    // The number of the call and its arguments are before them: -1 alone where it is none.
    let mut words = text.rsplit(' ');
    let mut word = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (pc, sp) = (word()?, word()?);
    Some(Some((pc, sp)))
}

/// Whether `/proc/PID/syscall` has a form that is known.
#[must_use]
pub fn is_place(text: &[u8]) -> bool {
    parse(text).is_some()
}

/// What code the program of a process is of. Whether a thread has changed to code of the
/// other width is not told without a stop.
fn code_mode(thread: i32) -> io::Result<CodeMode> {
    const MACHINE: usize = 18;
    let mut header = [0; MACHINE + 2];
    File::open(format!("/proc/{thread}/exe"))?.read_exact(&mut header)?;
    let [.., low, high] = header;
    let is_narrow = u16::from_le_bytes([low, high]) == elf::EM_386.0;
    Ok(if is_narrow { CodeMode::Ia32 } else { CodeMode::X86_64 })
}

/// Why a thread of a process cannot be read.
fn refusal(thread: i32, status: Status, error: io::Error) -> TargetError {
    if error.kind() == io::ErrorKind::PermissionDenied {
        let (process, owner) = (status.process, status.user);
        return TargetError::NotReadable { process, owner, ptrace_scope: ptrace_scope() };
    }
    InputError::Read { path: format!("/proc/{thread}/syscall").into(), error }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_has_a_pc_and_a_stack_pointer_and_one_that_runs_has_none() {
        let in_call = b"230 0x0 0x0 0x7ffc129af4c0 0x7ffc129af500 0x0 0x0 0x7ffc1298 0x7f836142\n";
        assert_eq!(parse(in_call), Some(Some((0x7f83_6142, 0x7ffc_1298))));
        assert_eq!(parse(b"-1 0x7ffc1298 0x7f836142\n"), Some(Some((0x7f83_6142, 0x7ffc_1298))));
        assert_eq!(parse(b"running\n"), Some(None));
        for other in [&b""[..], b"0x1", b"1 2 3", b"-1 0x1 0xg", b"\xff 0x1 0x2"] {
            assert_eq!(parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn this_process_is_not_looked_at_by_itself() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(SleepingProcess::look(own), Err(TargetError::OwnProcess)));
    }
}
