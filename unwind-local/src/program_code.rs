//! Code that the program has generated itself, such as a JIT compiler's, and how its frames are found.

use core::fmt;
use core::num::NonZero;
use core::ops::Range;

use crate::raw::program_code::{self, Kind};

/// How the frames of code are found that the program has generated.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CodeTable<'t> {
    /// Each function keeps a frame pointer: it begins with `push rbp; mov rbp, rsp` and ends
    /// with `pop rbp; ret` or `leave; ret`. Frames found so count as certain.
    FramePointers,
    /// Each function keeps a frame pointer while it calls another one; one that calls none may
    /// have none. V8's code is such, builtins included. A stack whose innermost frame is of this code
    /// is complete only where its instructions prove who its caller is.
    CallerFramePointers,
    /// An SFrame section. Addresses in it count from where it lies.
    Sframe(&'t [u8]),
    /// An `.eh_frame` section, as programs hand it to `__register_frame`. It is looked through
    /// from its beginning, so that it should be short, or followed by other ranges with their own.
    EhFrame(&'t [u8]),
}

/// A range of code that the program has generated and registered: until this is dropped, walks
/// pass its frames by the [`CodeTable`] that was given.
///
/// Register the ranges that a compiler gets from the operating system, rather than each function:
/// there is room for [`MOST`](Self::MOST), and a walk looks at each.
///
/// ```
/// use unwind_local::{CodeTable, ProgramCode};
///
/// # let start = 0x1000_0000;
/// # let code = start..start + 4096;
/// // SAFETY: the compiler makes no code without frame pointers, and frees it when nothing runs it.
/// let told = unsafe { ProgramCode::tell(code, CodeTable::FramePointers) }?;
/// // No function of it runs any more.
/// drop(told);
/// # Ok::<(), unwind_local::TooMuchCode>(())
/// ```
///
/// Neither registering nor dropping waits for walks, or makes them wait: a walk that reads the
/// list while it changes does without the range that changes.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the range is forgotten when it is dropped"]
pub struct ProgramCode(NonZero<u64>);

impl ProgramCode {
    /// How many ranges there can be at a time.
    pub const MOST: usize = program_code::MOST;

    /// Registers the code in a range of addresses. Of ranges that overlap one is used.
    ///
    /// # Errors
    ///
    /// [`TooMuchCode`] if there are [`MOST`](Self::MOST) already.
    ///
    /// # Safety
    ///
    /// Until the range is forgotten, the bytes of the table stay where they are and do not change.
    /// When it is forgotten, no function in it has a frame on any stack.
    #[expect(unsafe_code, reason = "the caller knows what stays")]
    pub unsafe fn tell(code: Range<usize>, table: CodeTable<'_>) -> Result<Self, TooMuchCode> {
        let (kind, bytes): (_, &[u8]) = match table {
            CodeTable::FramePointers => (Kind::FramePointers, &[]),
            CodeTable::CallerFramePointers => (Kind::CallerFramePointers, &[]),
            CodeTable::Sframe(bytes) => (Kind::Sframe, bytes),
            CodeTable::EhFrame(bytes) => (Kind::EhFrame, bytes),
        };
        // SAFETY: as the caller promises.
        unsafe { program_code::put(&code, kind, bytes) }.map(Self).ok_or(TooMuchCode)
    }

    /// A number to keep in its place, for other languages. The range stays registered.
    #[must_use]
    pub fn into_number(self) -> NonZero<u64> {
        let number = self.0;
        core::mem::forget(self);
        number
    }

    /// Forgets the range with this [number](Self::into_number); `false` if there is none.
    #[must_use]
    pub fn forget(number: u64) -> bool {
        program_code::take(number)
    }
}

impl Drop for ProgramCode {
    fn drop(&mut self) {
        program_code::take(self.0.get());
    }
}

/// There are [as many ranges](ProgramCode::MOST) of code as there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuchCode;

impl fmt::Display for TooMuchCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {} ranges of code", ProgramCode::MOST)
    }
}

impl core::error::Error for TooMuchCode {}
