//! What is code in the target, and what only looks like it.

use crate::addr::VirtAddr;

/// What a host knows of the target's code.
pub trait ReturnAddresses {
    /// Returns the real return address if `ra` is a trampoline's.
    ///
    /// A tracer that wants to see a function return (a uretprobe and the like)
    /// replaces its return address by that of a trampoline and remembers the
    /// real one. A walk would show the trampoline in place of the caller.
    ///
    /// `slot` is where `ra` was saved, if it was in memory: it tells apart the
    /// frames that return to the same trampoline. Calls come in the order of
    /// the frames, innermost first. The answer is used without further checks.
    #[inline]
    fn resolve(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        let _ = (ra, slot);
        None
    }

    /// Whether the target has code at `call`, the last byte of what must have
    /// been a call. A return address for which it says no is none, and the
    /// walk ends with [`StepError::NotCode`](crate::StepError::NotCode).
    #[inline]
    fn is_code(&mut self, call: VirtAddr) -> bool {
        let _ = call;
        true
    }

    /// Whether `ra`, which is not [code](Self::is_code) and has no [real](Self::resolve)
    /// address, is that of a tracer's trampoline: the walk then ends with
    /// [`StepError::ReturnProbe`](crate::StepError::ReturnProbe), and no fallback is asked, since
    /// the row that led here was right.
    #[inline]
    fn is_trampoline(&mut self, ra: VirtAddr) -> bool {
        let _ = ra;
        false
    }

    /// A number that changes whenever an answer given before may no longer be
    /// right. `None` if there is none, as where an answer depends on the calls
    /// before: then no frame is asked about twice.
    #[inline]
    fn generation(&self) -> Option<u64> {
        None
    }
}

/// Nothing is known of the target's code: every return address is what it
/// seems.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unchecked;

impl ReturnAddresses for Unchecked {
    #[inline]
    fn generation(&self) -> Option<u64> {
        Some(0)
    }
}
