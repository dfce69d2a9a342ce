//! What the caller of a program does with signals: a command that it starts does the same.

#![expect(unsafe_code, reason = "code between fork and exec")]

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;

/// The signals that are blocked in a thread, and whether `SIGPIPE` is ignored by the caller of this
/// program. All others are inherited: this program changes nothing of them.
#[derive(Clone, Copy)]
pub struct CallerSignals {
    blocked: libc::sigset_t,
    ignores_pipe: bool,
}

impl CallerSignals {
    /// Of this thread, before it blocks signals of its own. `ignores_pipe` says whether the caller of this
    /// program ignores `SIGPIPE`: the standard library ignores it before `main`, and has a command that it
    /// starts end by it, whatever the caller did.
    #[must_use]
    pub fn of_this_thread(ignores_pipe: bool) -> Self {
        let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: no mask is set; the one there is is written to `blocked`, which has room for it.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), blocked.as_mut_ptr()) };
        // SAFETY: it is a struct of integers, for which zeroes are a value.
        Self { blocked: unsafe { blocked.assume_init() }, ignores_pipe }
    }

    /// Gives them to this thread, of a process that is about to execute a command. It makes system
    /// calls alone: no lock, no allocation.
    ///
    /// # Errors
    ///
    /// What the system calls fail with.
    pub(crate) fn restore(&self) -> io::Result<()> {
        if self.ignores_pipe {
            // SAFETY: to ignore a signal calls no code.
            let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            if before == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: the mask is read, and no former one is written.
        let set = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.blocked, ptr::null_mut())
        };
        if set == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(set)) }
    }
}

/// A command that will have the signals of the caller of this program, and those of this thread
/// blocked.
#[must_use]
pub fn command_with_signals(
    program: &OsStr,
    arguments: &[OsString],
    ignores_pipe: bool,
) -> Command {
    let signals = CallerSignals::of_this_thread(ignores_pipe);
    let mut command = Command::new(program);
    // SAFETY: the closure makes system calls alone: no lock, no allocation.
    unsafe { command.args(arguments).pre_exec(move || signals.restore()) };
    command
}

impl std::fmt::Debug for CallerSignals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallerSignals").finish_non_exhaustive()
    }
}
