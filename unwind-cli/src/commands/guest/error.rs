//! What can go wrong while a guest is looked at.

use std::io;
use std::path::PathBuf;

use unwind_target::elf::kernel_image::KernelImageError;
use unwind_target::loaded::module_error::ModuleError;
use unwind_target::untrusted::escaped;
use unwind_target::{ElfError, Untrusted};

use crate::commands::guest::registers::MissingRegister;
use crate::failure::Failure;

/// Why a guest's stacks cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum GuestError {
    /// The socket cannot be connected to.
    #[error("cannot connect to {}: {error}", escaped(path))]
    Connect {
        /// Which socket.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// Nothing came in time.
    #[error(
        "no answer on the socket within {seconds} s; QEMU serves one QMP client at a time, \
         another one may hold it"
    )]
    Silent {
        /// How long was waited.
        seconds: u64,
    },
    /// Nothing came in time from a stub for gdb.
    #[error(
        "no answer of the stub for gdb within {seconds} s; it serves one client at a time, another one may \
         hold it"
    )]
    StubSilent {
        /// How long was waited.
        seconds: u64,
    },
    /// What came is not gdb's protocol, or was damaged again and again.
    #[error("what came from the stub is not gdb's remote protocol")]
    NotGdb,
    /// The stub does not do what is needed.
    #[error("the stub refuses `{command}`: {text}")]
    StubRefuses {
        /// Which packet.
        command: String,
        /// What it says.
        text: Untrusted,
    },
    /// The connection broke.
    #[error("the connection to the guest's monitor broke: {0}")]
    Broken(#[source] io::Error),
    /// QEMU closed the connection.
    #[error("the guest's monitor closed the connection; the guest may have ended")]
    Closed,
    /// What came is not QMP.
    #[error("what came from the socket is not QMP")]
    NotQmp,
    /// What came before the end of an answer is longer than any.
    #[error("what came from the guest's monitor is longer than any of its answers")]
    TooLong,
    /// No machine has that many.
    #[error("QEMU says that the guest has {0} vCPUs, more than any has")]
    TooManyVcpus(usize),
    /// QEMU refuses a command.
    #[error("QEMU refuses `{command}`: {text}")]
    Refused {
        /// Which command.
        command: String,
        /// What QEMU says.
        text: Untrusted,
    },
    /// The registers of a vCPU cannot be made out.
    #[error("vCPU {vcpu}: {missing}")]
    Registers {
        /// Which one.
        vcpu: u64,
        /// What is missing.
        #[source]
        missing: MissingRegister,
    },
    /// QEMU does not say where the guest's memory lies.
    #[error("`info mtree -f` shows no memory of the guest")]
    NoMemoryMap,
    /// The dump of a machine has no registers.
    #[error("{} is the dump of a machine and says nothing of its CPUs", escaped(path))]
    NoCpus {
        /// Which file.
        path: PathBuf,
    },
    /// The file is not the guest's memory.
    #[error(
        "{} has {len:#x} bytes, but the guest's memory goes to {end:#x}; is it the mem-path of \
         this guest?",
        escaped(path)
    )]
    MemoryFile {
        /// Which file.
        path: PathBuf,
        /// How long it is.
        len: u64,
        /// Where the memory would end in it.
        end: u64,
    },
    /// The memory of QEMU cannot be read.
    #[error(
        "cannot read the memory of QEMU, process {pid}: {error}; `--mem` takes the file of a guest \
         whose memory is in one"
    )]
    Process {
        /// Which process.
        pid: i32,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// QEMU does not say where it has the guest's memory.
    #[error("QEMU does not say where it has the guest's memory: `gpa2hva` says: {0}")]
    NoAddress(Untrusted),
    /// A Linux image cannot be unpacked.
    #[error("{}: {error}", escaped(path))]
    KernelImage {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: KernelImageError,
    },
    /// A file of symbols cannot be used.
    #[error("{}: {error}", escaped(path))]
    Symbols {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: ModuleError,
    },
}

impl GuestError {
    /// The exit code, as `--help` documents it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Connect { error, .. } => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => 3,
                io::ErrorKind::PermissionDenied => 4,
                _ => 1,
            },
            Self::Symbols { error: ModuleError::Elf(ElfError::Read { .. }), .. } => 1,
            Self::Symbols { error: ModuleError::Open(error), .. } => match error.kind() {
                io::ErrorKind::NotFound => 3,
                io::ErrorKind::PermissionDenied => 4,
                _ => 1,
            },
            Self::Process { error, .. } => match error.kind() {
                io::ErrorKind::PermissionDenied => 4,
                _ => 1,
            },
            Self::Silent { .. } | Self::StubSilent { .. } | Self::Broken(_) => 1,
            Self::Closed => 6,
            Self::NotQmp
            | Self::NotGdb
            | Self::StubRefuses { .. }
            | Self::TooLong
            | Self::TooManyVcpus(_)
            | Self::Refused { .. }
            | Self::Registers { .. }
            | Self::NoMemoryMap
            | Self::NoCpus { .. }
            | Self::MemoryFile { .. }
            | Self::NoAddress(_)
            | Self::KernelImage { .. }
            | Self::Symbols { .. } => 5,
        }
    }
}

impl From<GuestError> for Failure {
    fn from(error: GuestError) -> Self {
        let exit_code = error.exit_code();
        Self::new(error, exit_code)
    }
}
