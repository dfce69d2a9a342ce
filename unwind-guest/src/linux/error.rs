//! Why something was not found in a guest.

use core::fmt;

use unwind_core::{ReadError, VirtAddr};

/// Why something was not found in a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinuxError {
    /// What is needed could not be read.
    Unreadable {
        /// Where.
        addr: VirtAddr,
        /// Why not.
        error: ReadError,
    },
    /// Nothing is mapped where Linux has its kernel.
    NoKernel,
    /// The kernel has no symbols in a known form.
    NoSymbols,
    /// What is at this address is not as Linux makes it.
    Malformed(VirtAddr),
}

impl fmt::Display for LinuxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { addr, error } => write!(f, "{error} at {addr}"),
            Self::NoKernel => f.write_str("there is no Linux kernel in memory"),
            Self::NoSymbols => f.write_str("the kernel has no symbols (kallsyms) in a known form"),
            Self::Malformed(addr) => write!(f, "what is at {addr} is not as Linux makes it"),
        }
    }
}

impl core::error::Error for LinuxError {}
