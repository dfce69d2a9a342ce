//! What can go wrong, in one line each, and the exit code of each.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::commands::demo::SampleError;
use crate::commands::guest::GuestError;
use crate::commands::perf::PerfError;
use crate::commands::sframe::SframeError;
use crate::commands::stack::StackEnd;
use crate::counted::counted;
use crate::elf::ElfError;
use crate::untrusted::escaped;

/// Why a command failed. The text says what to do next where that is not plain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// Standard output cannot be written to.
    #[error("cannot write the output: {0}")]
    Output(#[source] io::Error),
    /// A file cannot be opened or read.
    #[error("cannot read {}: {error}", escaped(path))]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// A file is not ELF, or is damaged.
    #[error("{}: {error}", escaped(path))]
    Elf {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        error: ElfError,
    },

    /// Nothing is named whose stack could be shown.
    #[error("name a process, a core file or a command")]
    NoTarget,
    /// No process has this id.
    #[error("there is no process {0}; `ps -e` lists those that run")]
    NoSuchProcess(i32),
    /// A process has this id, but `/proc` tells nothing of it.
    #[error("process {0} is there, but /proc does not show it: it is not mounted, or with hidepid")]
    NotShown(i32),
    /// The process has ended before or while it was stopped.
    #[error("process {0} has ended")]
    Ended(i32),
    /// The process was held for as long as it may be.
    #[error(
        "process {process} was let go after {seconds} s, before its stacks were read; --hold-limit \
         says how long it may be held"
    )]
    LetGo {
        /// Which process.
        process: i32,
        /// For how long it was held.
        seconds: u64,
    },
    /// No thread can be started, to hold a process by.
    #[error("cannot start a thread: {0}")]
    NoThread(#[source] io::Error),
    /// Of a command that was started; it was told when it came, since the command
    /// was then waited for.
    #[error(transparent)]
    Told(Box<Error>),
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
        permission_hint(*owner, *ptrace_scope)
    )]
    NotPermitted {
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

    /// A command cannot be started.
    #[error("cannot start {}: {error}", escaped(command))]
    Start {
        /// Which command.
        command: OsString,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// The command has ended before its stack was to be taken.
    #[error(
        "{} ended ({status}) before {after_ms} ms were over; give a shorter --after",
        escaped(command)
    )]
    EndedEarly {
        /// Which command.
        command: OsString,
        /// How it ended.
        status: ExitStatus,
        /// When its stack was to be taken, in milliseconds.
        after_ms: u64,
    },

    /// An ELF file, but no core file.
    #[error(
        "{} is not a core file; give a program by --exe, or start it by `unwind stack -- PROGRAM`",
        escaped(path)
    )]
    NotACore {
        /// Which file.
        path: PathBuf,
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
    /// The SFrame tables of a file cannot be shown.
    #[error(transparent)]
    Sframe(#[from] SframeError),
    /// A recording of perf cannot be read whole, or a merge of it not be
    /// written.
    #[error("{}: {error}", escaped(path))]
    Perf {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        error: PerfError,
    },
    /// A guest cannot be looked at.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// A core file in which no thread has registers.
    #[error("{} has no thread in it; it was cut off or is damaged", escaped(path))]
    NoThreads {
        /// Which file.
        path: PathBuf,
    },

    /// Stacks are incomplete, which the user wants to be a failure.
    #[error(
        "{incomplete} of {} {} incomplete",
        counted(*stacks, "stack", "stacks"),
        if *incomplete == 1 { "is" } else { "are" }
    )]
    Incomplete {
        /// How many are.
        incomplete: u64,
        /// How many were taken.
        stacks: u64,
    },
    /// The sample failed.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

impl Error {
    /// Whether stacks with these ends are all complete.
    ///
    /// # Errors
    ///
    /// [`Error::Incomplete`] if one is not.
    pub(crate) fn check_complete<'e>(
        ends: impl IntoIterator<Item = &'e StackEnd>,
    ) -> Result<(), Self> {
        let (mut stacks, mut incomplete) = (0_u64, 0_u64);
        for end in ends {
            stacks = stacks.saturating_add(1);
            incomplete = incomplete.saturating_add(u64::from(!end.complete));
        }
        if incomplete == 0 { Ok(()) } else { Err(Self::Incomplete { incomplete, stacks }) }
    }

    /// What it means that `/proc` has nothing of a process.
    pub(crate) fn not_in_proc(process: i32) -> Self {
        // Signal 0 is never sent: the kernel says whether there is somebody to get it.
        match kill(Pid::from_raw(process), None) {
            Err(Errno::ESRCH) => Self::NoSuchProcess(process),
            _ => Self::NotShown(process),
        }
    }

    /// The exit code, as `--help` documents it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Output(_) | Self::Trace { .. } | Self::LetGo { .. } | Self::NoThread(_) => 1,
            Self::Told(error) => error.exit_code(),
            Self::NoTarget => 2,
            Self::Read { error, .. } | Self::Start { error, .. } => match error.kind() {
                io::ErrorKind::NotFound => 3,
                io::ErrorKind::PermissionDenied => 4,
                _ => 1,
            },
            Self::NoSuchProcess(_) => 3,
            Self::NotShown(_) => 1,
            Self::NotPermitted { .. } | Self::AlreadyTraced { .. } | Self::OwnProcess => 4,
            Self::Elf { error: ElfError::Read { .. }, .. } => 1,
            Self::Elf { .. }
            | Self::KernelThread(_)
            | Self::Unstoppable(_)
            | Self::NotACore { .. }
            | Self::CoreMachine { .. }
            | Self::WrongProgram { .. }
            | Self::NoThreads { .. } => 5,
            Self::Ended(_) | Self::EndedEarly { .. } => 6,
            Self::Sframe(error) => error.exit_code(),
            Self::Perf { error, .. } => error.exit_code(),
            Self::Guest(error) => error.exit_code(),
            Self::Sample(SampleError::Differs(_)) => 8,
            Self::Incomplete { .. } => 9,
            Self::Sample(_) => 1,
        }
    }
}

/// Why tracing may have been refused, and what helps.
fn permission_hint(owner: u32, ptrace_scope: Option<u8>) -> String {
    let own = nix::unistd::geteuid().as_raw();
    match ptrace_scope {
        Some(3) => {
            " (kernel.yama.ptrace_scope is 3, which forbids it to all until a reboot)".into()
        }
        Some(2) => " (kernel.yama.ptrace_scope is 2); run unwind as root".into(),
        Some(1) if own == owner => {
            " (kernel.yama.ptrace_scope is 1); run unwind as root, or start the program by \
             `unwind stack -- PROGRAM`"
                .into()
        }
        _ if own != owner => {
            format!(", which runs under user id {owner}; run unwind as that user or as root")
        }
        _ if own == 0 => ", not even as root; a container needs CAP_SYS_PTRACE for it".into(),
        _ => "; run unwind as root".into(),
    }
}
