//! Why an event is not opened.

use core::fmt;

use crate::Errno;
use crate::aux_trace::AuxError;

/// Why a kernel refuses an attr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttrError {
    /// The attr has this size; the kernel knows one of `known` bytes.
    Size {
        /// What the attr says, in bytes.
        size: u32,
        /// What the kernel knows, in bytes.
        known: u32,
    },
    /// Bytes are set past the last field that the kernel knows.
    NewerFields {
        /// What the kernel knows, in bytes.
        known: u32,
    },
    /// A reserved field is set, or these flags, which the kernel does not know.
    Reserved(u64),
    /// Samples are to have fields that the kernel does not know.
    SampleType(u64),
    /// Counter values are to have parts that the kernel does not know.
    ReadFormat(u64),
    /// The filter of branches has bits that the kernel does not know.
    BranchSampleType(u64),
    /// The filter of branches names modes, and no kind of branch.
    NoBranches,
    /// The set of registers is empty, or has some that this machine's samples do not have.
    Registers(u64),
    /// The size of the stack copy is no multiple of 8, or 65,535 bytes or more.
    StackSize(u32),
    /// Both forms of weights in one sample.
    TwoWeights,
    /// Threads inherit what is not inherited.
    InheritThread,
    /// Enabled and removed on exec.
    EnableAndRemove,
    /// A signal of an event that outlives an exec, or of no task.
    Signal,
    /// The caller may not see what the kernel does.
    KernelNotAllowed,
    /// The caller may not see namespaces of others.
    NamespacesNotAllowed,
    /// The frequency is above the system's limit.
    Frequency(u64),
    /// The period has its highest bit set.
    Period(u64),
    /// Counter values of inherited events in samples that do not name the thread.
    ReadInherited,
    /// The PMU does not record branches.
    BranchesNotSupported,
    /// The PMU has no vector registers.
    VectorRegistersNotSupported,
    /// The PMU counts in all modes, and one is to be left out.
    ModesNotSupported,
    /// The PMU only counts.
    SamplesNotSupported,
    /// What it asks of AUX tracing.
    Aux(AuxError),
    /// The call chain is to be longer than the system's limit.
    MaxStack(u16),
    /// A clock that does not exist, or that cannot be read in an NMI.
    Clock(i32),
}

impl AttrError {
    /// What Linux gives back.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::Size { .. } | Self::NewerFields { .. } => Errno::TooBig,
            Self::KernelNotAllowed | Self::NamespacesNotAllowed => Errno::AccessDenied,
            Self::BranchesNotSupported
            | Self::VectorRegistersNotSupported
            | Self::SamplesNotSupported => Errno::NotSupported,
            Self::MaxStack(_) => Errno::Overflow,
            Self::Aux(error) => error.errno(),
            _ => Errno::InvalidArgument,
        }
    }
}

impl fmt::Display for AttrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { size, known } => {
                write!(f, "an attr of {size} bytes; the kernel knows {known}")
            }
            Self::NewerFields { known } => {
                write!(f, "fields past the {known} bytes that the kernel knows")
            }
            Self::Reserved(flags) => write!(f, "reserved fields or flags are set: {flags:#x}"),
            Self::SampleType(bits) => write!(f, "unknown fields of samples: {bits:#x}"),
            Self::ReadFormat(bits) => write!(f, "unknown parts of counter values: {bits:#x}"),
            Self::BranchSampleType(bits) => {
                write!(f, "unknown bits of branch_sample_type: {bits:#x}")
            }
            Self::NoBranches => f.write_str("the branch filter names no kind of branch"),
            Self::Registers(mask) => write!(f, "no such set of registers: {mask:#x}"),
            Self::StackSize(size) => {
                write!(f, "a stack copy of {size} bytes: not a multiple of 8 below 65,535")
            }
            Self::TwoWeights => f.write_str("both forms of weights in one sample"),
            Self::InheritThread => f.write_str("threads are to inherit what is not inherited"),
            Self::EnableAndRemove => f.write_str("enabled and removed on exec"),
            Self::Signal => {
                f.write_str("a signal of an event that outlives an exec or has no task")
            }
            Self::KernelNotAllowed => f.write_str("the caller may not see what the kernel does"),
            Self::NamespacesNotAllowed => f.write_str("the caller may not see namespaces"),
            Self::Frequency(hertz) => write!(f, "{hertz} samples a second are too many"),
            Self::Period(period) => write!(f, "a period of {period} is too long"),
            Self::ReadInherited => {
                f.write_str("counter values of inherited events in samples without the thread")
            }
            Self::BranchesNotSupported => f.write_str("the PMU records no branches"),
            Self::VectorRegistersNotSupported => f.write_str("the PMU has no vector registers"),
            Self::ModesNotSupported => f.write_str("the PMU cannot leave out a mode"),
            Self::SamplesNotSupported => f.write_str("the PMU takes no samples"),
            Self::Aux(error) => error.fmt(f),
            Self::MaxStack(addresses) => write!(f, "call chains of {addresses} addresses"),
            Self::Clock(id) => write!(f, "clock {id} is none, or cannot be read in an NMI"),
        }
    }
}

impl core::error::Error for AttrError {}
