//! How a command fails: what the user is told, and the exit code.

use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};

use unwind_profile::collected::error::{ReadingError, SeveralEvents};
use unwind_profile::engine::EngineError;
use unwind_profile::engine::bpf_error::{BpfError, LoadError};
use unwind_profile::engine::module_error::ModuleError;
use unwind_profile::engine::requested::TracepointError;
use unwind_profile::engine::subject::{StartError, UserError};
use unwind_profile::recording::error::{PerfError, RecordingError};
use unwind_profile::session::SessionError;
use unwind_profile::session::ledger::LedgerError;
use unwind_profile::session::parts::DrainFailed;
use unwind_profile::session::rings::NoProcess;
use unwind_profile::walks::chosen_event::listed;
use unwind_target::{ElfError, InputError, TargetError};

/// Why a command failed, as one line, and its exit code. Each error says in its own file
/// what it comes to.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Box<dyn Error + Send + Sync>,
    exit_code: u8,
    kind: Kind,
}

/// What else there is to know of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing.
    Plain,
    /// Standard output cannot be written to.
    Output(io::ErrorKind),
    /// The user was told when it came.
    Told,
}

/// Standard output cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the output: {0}")]
struct OutputError(#[source] io::Error);

impl Failure {
    /// A failure for this reason, with the exit code that `--help` documents.
    pub(crate) fn new(error: impl Into<Box<dyn Error + Send + Sync>>, exit_code: u8) -> Self {
        Self { error: error.into(), exit_code, kind: Kind::Plain }
    }

    /// The first of failures, if there is one. Of the others the user is told.
    ///
    /// # Errors
    ///
    /// That one.
    pub(crate) fn first_of(failures: impl IntoIterator<Item = Self>) -> Result<(), Self> {
        let mut failures = failures.into_iter();
        let Some(first) = failures.next() else { return Ok(()) };
        for failure in failures {
            // With standard error gone there is no other place to tell it.
            let _ = writeln!(io::stderr(), "unwind: {failure}");
        }
        Err(first)
    }

    /// Standard output cannot be written to.
    pub(crate) fn output(error: io::Error) -> Self {
        let kind = Kind::Output(error.kind());
        Self { error: OutputError(error).into(), exit_code: 1, kind }
    }

    /// The same, of which the user has been told.
    pub(crate) fn told(self) -> Self {
        Self { kind: Kind::Told, ..self }
    }

    /// Whether standard output cannot be written to.
    pub(crate) const fn is_of_output(&self) -> bool {
        matches!(self.kind, Kind::Output(_))
    }

    /// Whether the reader of standard output has closed it.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.kind == Kind::Output(io::ErrorKind::BrokenPipe)
    }

    /// Whether the user has been told.
    pub(crate) fn is_told(&self) -> bool {
        self.kind == Kind::Told
    }

    /// The reason, if it is of this kind.
    pub(crate) fn reason<E: Error + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }

    /// The exit code, as `--help` documents it.
    pub(crate) const fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

/// The exit code, as `--help` documents it.
#[must_use]
pub fn exit_code_of_target(error: &TargetError) -> u8 {
    match error {
        TargetError::Input(error) => exit_code_of_input(error),
        TargetError::NoSuchProcess(_) | TargetError::NoSuchThread(_) => 3,
        TargetError::NotPermitted { .. }
        | TargetError::NotReadable { .. }
        | TargetError::AlreadyTraced { .. }
        | TargetError::OwnProcess => 4,
        TargetError::KernelThread(_)
        | TargetError::Unstoppable(_)
        | TargetError::NotACore { .. }
        | TargetError::CoreMachine { .. }
        | TargetError::CompressedCore { .. }
        | TargetError::WrongProgram { .. }
        | TargetError::NoThreads { .. } => 5,
        TargetError::Ended(_) => 6,
        _ => 1,
    }
}

/// The same of a file.
pub(crate) fn exit_code_of_input(error: &InputError) -> u8 {
    match error {
        InputError::Read { error, .. } => exit_code_of(error),
        InputError::Elf { error: ElfError::Read { .. }, .. } => 1,
        InputError::Elf { .. } => 5,
        _ => 1,
    }
}

impl Failure {
    /// Why a target cannot be looked at, and what to do next by this command.
    pub(crate) fn text_of_target(error: &TargetError) -> String {
        format!("{error}{}", hint_of_target(error))
    }
}

/// What to do next by this command.
fn hint_of_target(error: &TargetError) -> &'static str {
    match error {
        TargetError::LetGo { .. } => "; --hold-limit says how long it may be held",
        TargetError::NotACore { .. } => {
            "; give a program by --exe, or start it by `unwind stack -- PROGRAM`"
        }
        TargetError::NotPermitted { owner, ptrace_scope, .. }
        | TargetError::NotReadable { owner, ptrace_scope, .. } => {
            permission_hint(*owner, *ptrace_scope)
        }
        _ => "",
    }
}

/// What helps where tracing is refused.
fn permission_hint(owner: u32, ptrace_scope: Option<u8>) -> &'static str {
    let own = nix::unistd::geteuid().as_raw();
    match ptrace_scope {
        Some(3) => "",
        Some(2) => "; run unwind as root",
        Some(1) if own == owner => {
            "; run unwind as root, or start the program by `unwind stack -- PROGRAM`"
        }
        _ if own != owner => "; run unwind as that user or as root",
        _ if own == 0 => "",
        _ => "; run unwind as root",
    }
}

/// An error with what to do next by this command.
#[derive(Debug, thiserror::Error)]
#[error("{error}{hint}")]
struct Hinted {
    #[source]
    error: Box<dyn Error + Send + Sync>,
    hint: &'static str,
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        let exit_code = exit_code_of_target(&error);
        let hint = hint_of_target(&error);
        Self::new(Hinted { error: error.into(), hint }, exit_code)
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        let exit_code = exit_code_of_input(&error);
        Self::new(error, exit_code)
    }
}

/// The exit code if a ledger does not add up.
pub(crate) const LEDGER: u8 = 10;

/// The exit code of what is wrong with a recording.
fn exit_code_of_recording(error: &PerfError) -> u8 {
    match error {
        PerfError::Io(error) => exit_code_of(error),
        PerfError::FileFormOnPipe | PerfError::FileFormToPipe | PerfError::SameFile => 2,
        _ => 5,
    }
}

impl From<RecordingError> for Failure {
    fn from(error: RecordingError) -> Self {
        let exit_code = exit_code_of_recording(&error.error);
        Self::new(error, exit_code)
    }
}

impl From<ReadingError> for Failure {
    /// Of several errors the first. The user is told of the others.
    fn from(error: ReadingError) -> Self {
        match error {
            ReadingError::Recording(error) => error.into(),
            ReadingError::NoRecording(errors) => {
                let none = || Self::new("there is no recording", 3);
                Self::first_of(errors.into_iter().map(Self::from)).err().unwrap_or_else(none)
            }
            ReadingError::MissingSamples(error) => Self::new(error, LEDGER),
            ReadingError::Ledger(error) => error.into(),
            ReadingError::SeveralEvents(error) => error.into(),
            error => Self::new(error, 2),
        }
    }
}

impl From<SeveralEvents> for Failure {
    fn from(error: SeveralEvents) -> Self {
        let SeveralEvents { path, events } = error;
        let events = listed(&events);
        let text = format!(
            "{path}: there are several events, which cannot be added up; choose one by --event: {events}"
        );
        Self::new(text, 2)
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::new(error, LEDGER)
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Engine(error) => error.into(),
            error => Self::new(error, 1),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let exit_code = match &error {
            EngineError::OffCpu | EngineError::KernelEvent { .. } => 4,
            EngineError::WaitsBeside { .. } => 2,
            EngineError::Tracepoint(error) => match error {
                TracepointError::Unreadable { error, .. } => exit_code_of(error),
                _ => 3,
            },
            EngineError::Open { error }
            | EngineError::Event { error, .. }
            | EngineError::OpenAll { error }
            | EngineError::OpenProcess { error }
            | EngineError::Map { error, .. } => match error.raw_os_error() {
                Some(libc::ESRCH) => 3,
                Some(libc::EPERM) => 4,
                _ => exit_code_of(error),
            },
            EngineError::Bpf(BpfError::Load(LoadError::Refused { error, .. })) => {
                match error.raw_os_error() {
                    Some(libc::EPERM) => 4,
                    _ => exit_code_of(error),
                }
            }
            EngineError::Module(ModuleError::Open(error)) => exit_code_of(error),
            EngineError::Module(ModuleError::Unsupported(_)) => 2,
            EngineError::Module(ModuleError::NotLoaded) => 3,
            _ => 1,
        };
        let hint = match &error {
            EngineError::Bpf(_) | EngineError::Module(_) => {
                "; --engine perf walks copies of stacks"
            }
            EngineError::OpenAll { .. } => "; a command or --pid of one's own does without",
            EngineError::Deferral => "; without --deferred stacks are copied and walked by tables",
            EngineError::Map { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                ", or leave --ring-kib out"
            }
            _ => "",
        };
        Self::new(Hinted { error: error.into(), hint }, exit_code)
    }
}

impl From<NoProcess> for Failure {
    fn from(error: NoProcess) -> Self {
        Self::new(error, 3)
    }
}

impl From<UserError> for Failure {
    fn from(error: UserError) -> Self {
        Self::new(error, 3)
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let exit_code = exit_code_of(&error.error);
        Self::new(error, exit_code)
    }
}

impl From<DrainFailed> for Failure {
    fn from(error: DrainFailed) -> Self {
        Self::new(error, 1)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// The exit code for a file, command or socket that cannot be opened or read.
pub(crate) fn exit_code_of(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => 3,
        io::ErrorKind::PermissionDenied => 4,
        _ => 1,
    }
}
