//! Why a process or a core file cannot be looked at.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::input_error::InputError;
use crate::target::compressed_core::CompressedError;
use crate::untrusted::escaped;

/// Why a process or a core file cannot be looked at. The text says what to do next where
/// that is not plain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// A file cannot be read, or is no ELF file.
    #[error(transparent)]
    Input(#[from] InputError),
    /// No process has this id.
    #[error("there is no process {0}; `ps -e` lists those that run")]
    NoSuchProcess(i32),
    /// The process or core file has no such thread.
    #[error("there is no thread {0} in it")]
    NoSuchThread(i32),
    /// A process has this id, but `/proc` tells nothing of it.
    #[error("process {0} is there, but /proc does not show it: it is not mounted, or with hidepid")]
    NotShown(i32),
    /// The process has ended before or while it was stopped.
    #[error("process {0} has ended")]
    Ended(i32),
    /// The process was held for as long as it may be.
    #[error("process {process} was let go after {seconds} s, before its stacks were read")]
    LetGo {
        /// Which process.
        process: i32,
        /// For how long it was held.
        seconds: u64,
    },
    /// No thread can be started, to hold a process by.
    #[error("cannot start a thread: {0}")]
    NoThread(#[source] io::Error),
    /// A kernel thread.
    #[error("process {0} is a kernel thread, which has no user stack")]
    KernelThread(i32),
    /// This very process.
    #[error("a process cannot stop itself; name another one")]
    OwnProcess,
    /// Another tracer holds the process.
    #[error("process {process} is traced by process {tracer} already; end that one first")]
    AlreadyTraced {
        /// Whose stack was asked for.
        process: i32,
        /// Who traces it.
        tracer: i32,
    },
    /// The kernel refuses.
    #[error(
        "not permitted to stop process {process}{}",
        why_not(*owner, *ptrace_scope)
    )]
    NotPermitted {
        /// Whose stack was asked for.
        process: i32,
        /// The user id that it runs under.
        owner: u32,
        /// `kernel.yama.ptrace_scope`, where the kernel has it.
        ptrace_scope: Option<u8>,
    },
    /// The kernel refuses to show it.
    #[error(
        "not permitted to read the stacks of process {process}{}",
        why_not(*owner, *ptrace_scope)
    )]
    NotReadable {
        /// Whose stack was asked for.
        process: i32,
        /// The user id that it runs under.
        owner: u32,
        /// `kernel.yama.ptrace_scope`, where the kernel has it.
        ptrace_scope: Option<u8>,
    },
    /// Tracing failed in another way.
    #[error("cannot stop process {process}: {}", errno.desc())]
    Trace {
        /// Whose stack was asked for.
        process: i32,
        /// What the kernel says.
        errno: Errno,
    },
    /// All threads sleep where signals do not wake them.
    #[error("process {0} cannot be stopped: it waits inside the kernel; try again later")]
    Unstoppable(i32),

    /// An ELF file, but no core file.
    #[error("{} is not a core file", escaped(path))]
    NotACore {
        /// Which file.
        path: PathBuf,
    },
    /// A core file is compressed, and cannot be decompressed.
    #[error("{}: {error}", escaped(path))]
    CompressedCore {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: CompressedError,
    },
    /// A core file of a CPU whose stacks this program does not walk.
    #[error(
        "{} is a core file of another machine ({machine}); only x86-64 and i386 are known",
        escaped(path)
    )]
    CoreMachine {
        /// Which file.
        path: PathBuf,
        /// Its machine, by name or number.
        machine: String,
    },
    /// The program that the user names is not that of the core file.
    #[error("{} was not made by {}: the build ids differ", escaped(core), escaped(program))]
    WrongProgram {
        /// The core file.
        core: PathBuf,
        /// The file that the user names.
        program: PathBuf,
    },
    /// A core file in which no thread has registers.
    #[error("{} has no thread in it; it was cut off or is damaged", escaped(path))]
    NoThreads {
        /// Which file.
        path: PathBuf,
    },
}

impl TargetError {
    /// What it means that `/proc` has nothing of a process.
    #[must_use]
    pub fn not_in_proc(process: i32) -> Self {
        // Signal 0 is never sent: the kernel says whether a process would get it.
        match kill(Pid::from_raw(process), None) {
            Err(Errno::ESRCH) => Self::NoSuchProcess(process),
            _ => Self::NotShown(process),
        }
    }

    /// Whether the process or its thread has ended.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::NoSuchProcess(_) | Self::NoSuchThread(_))
    }
}

/// Why tracing may have been refused.
fn why_not(owner: u32, ptrace_scope: Option<u8>) -> String {
    let own = nix::unistd::geteuid().as_raw();
    match ptrace_scope {
        Some(3) => {
            " (kernel.yama.ptrace_scope is 3, which forbids it to all until a reboot)".into()
        }
        Some(2) => " (kernel.yama.ptrace_scope is 2)".into(),
        Some(1) if own == owner => " (kernel.yama.ptrace_scope is 1)".into(),
        _ if own != owner => format!(", which runs under user id {owner}"),
        _ if own == 0 => ", not even as root; a container needs CAP_SYS_PTRACE for it".into(),
        _ => String::new(),
    }
}
