//! What is known of the user code that has entered a kernel.

use unwind_core::StepError;

/// What is known of the user code of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UserCode {
    /// The vCPU executes it: there is no kernel part.
    Running,
    /// It has entered the kernel, by a system call, an interrupt or an exception.
    Entered,
    /// There is none: a thread of the kernel's own.
    None,
    /// It has entered the kernel, which has saved its registers where they cannot be read.
    Unreadable(StepError),
    /// It has entered the kernel from a code segment with this selector, of which the kind and
    /// the base are not known.
    Segment(u16),
    /// Not known: the kernel's part does not lead to its outermost frame, or that has not saved
    /// registers yet. Also below 16-bit code, of which the first frame alone is told.
    Unknown,
}
