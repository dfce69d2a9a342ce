//! Why stacks cannot be walked in the kernel.

pub use unwind_bpf::LoadError;

/// Why the program does not take samples.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The kernel does not load it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its tables cannot be reached.
    #[error("the program's tables cannot be opened once more: {0}")]
    Tables(#[source] std::io::Error),
    /// The kernel does not run it for an event.
    #[error("the kernel runs no program for samples of this event: {0}")]
    Attach(#[source] std::io::Error),
}
