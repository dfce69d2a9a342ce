//! The other unwinders.

mod frame_pointer;
mod framehop;
mod gimli;
mod simple_frame;

pub use frame_pointer::FramePointerLoop;
pub use framehop::Framehop;
pub use gimli::Gimli;
pub use simple_frame::SimpleFrame;

use unwind_snapshot::Snapshot;

/// The word at an address of a captured stack.
#[inline]
#[must_use]
pub fn stack_word(snapshot: &Snapshot<'_>, addr: u64) -> Option<u64> {
    let at = usize::try_from(addr.checked_sub(snapshot.stack_start)?).ok()?;
    snapshot.stack.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}
