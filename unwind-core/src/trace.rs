//! The result of one walk, in a fixed amount of memory.

use core::convert::Infallible;
use core::fmt;

use crate::addr::{FramePc, VirtAddr};
use crate::end::{End, PackedEnd};
use crate::origin::Origin;
use crate::table_error::TableError;

/// How one frame of a walk was found, in a byte.
///
/// | bits | meaning |
/// |---|---|
/// | 0-2 | the [`Origin`] of the row that led here |
/// | 3 | the pc is exact, not a return address |
/// | 4 | the fallback took over from a row that failed |
/// | 5 | the return address was a trampoline's |
/// | 6 | callers may be missing before this frame |
/// | 7 | the frame pointer was taken as unchanged against the row |
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Provenance(u8);

impl Provenance {
    const EXACT: u8 = 1 << 3;
    const FAILURE: u8 = 1 << 4;
    const TRAMPOLINE: u8 = 1 << 5;
    const GAP: u8 = 1 << 6;
    const ASSUMED_FP: u8 = 1 << 7;

    #[inline]
    pub(crate) const fn new(origin: Origin, pc: FramePc) -> Self {
        let exact = if pc.is_exact() { Self::EXACT } else { 0 };
        Self(origin.code() | exact)
    }

    /// Of a return address to which a row of this origin led. A row that says that it is
    /// the sample's registers is the host's.
    #[inline]
    pub(crate) const fn of_row(origin: Origin, is_guess: bool) -> Self {
        let found = match origin {
            Origin::Registers => Self(Origin::Host.code()),
            _ => Self(origin.code()),
        };
        if is_guess { found.with_gap() } else { found }
    }

    /// The byte, for records and other languages. What a bit means stays the same in later
    /// versions.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The inverse of [`bits`](Self::bits).
    #[inline]
    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The same of a frame with this pc.
    #[inline]
    pub(crate) const fn at(self, pc: FramePc) -> Self {
        if pc.is_exact() { Self(self.0 | Self::EXACT) } else { self }
    }

    pub(crate) const fn with_failure(self) -> Self {
        Self(self.0 | Self::FAILURE)
    }

    pub(crate) const fn with_trampoline(self) -> Self {
        Self(self.0 | Self::TRAMPOLINE)
    }

    pub(crate) const fn with_gap(self) -> Self {
        Self(self.0 | Self::GAP)
    }

    pub(crate) const fn with_assumed_fp(self) -> Self {
        Self(self.0 | Self::ASSUMED_FP)
    }

    /// Who found the row that led to this frame.
    #[inline]
    #[must_use]
    pub const fn origin(self) -> Origin {
        Origin::from_code(self.0)
    }

    /// Whether the pc is the interrupted one and not a return address.
    #[inline]
    #[must_use]
    pub const fn is_exact(self) -> bool {
        self.0 & Self::EXACT != 0
    }

    /// Whether the row that covers the callee's pc was malformed or could not
    /// be applied, so that the fallback found this frame.
    #[inline]
    #[must_use]
    pub const fn is_after_failure(self) -> bool {
        self.0 & Self::FAILURE != 0
    }

    /// Whether the saved return address was a trampoline's and the pc is the
    /// real one.
    #[inline]
    #[must_use]
    pub const fn is_after_trampoline(self) -> bool {
        self.0 & Self::TRAMPOLINE != 0
    }

    /// Whether callers may be missing between the frame before (its callee, as far as
    /// the walk can tell) and this one: a [guess](crate::Row::is_guess) led here, or the
    /// fallback after a failure of a row that is none. A stack with such a frame does not count as complete.
    #[inline]
    #[must_use]
    pub const fn is_after_gap(self) -> bool {
        self.0 & Self::GAP != 0
    }

    /// Whether the frame pointer was taken as unchanged although the row says that it
    /// was saved: the slot lies below the stack pointer, where it could not be read or
    /// is not preserved. It is right after the register was restored, and wrong in the
    /// rare function that saves it there and changes it.
    #[inline]
    #[must_use]
    pub const fn is_fp_assumed(self) -> bool {
        self.0 & Self::ASSUMED_FP != 0
    }
}

impl fmt::Debug for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provenance")
            .field("origin", &self.origin())
            .field("exact", &self.is_exact())
            .field("after_failure", &self.is_after_failure())
            .field("after_trampoline", &self.is_after_trampoline())
            .field("after_gap", &self.is_after_gap())
            .field("fp_assumed", &self.is_fp_assumed())
            .finish()
    }
}

/// One frame of a finished walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceFrame {
    /// Where its execution stands.
    pub pc: FramePc,
    /// How it was found.
    pub provenance: Provenance,
}

impl TraceFrame {
    /// A frame that was found so, with the pc at this address.
    #[inline]
    pub(crate) const fn new(addr: VirtAddr, provenance: Provenance) -> Self {
        let exact = provenance.is_exact();
        let pc = if exact { FramePc::Exact(addr) } else { FramePc::Return(addr) };
        Self { pc, provenance }
    }
}

/// The frames of one walk, and why there are no more.
///
/// Of each frame it keeps the pc and a byte that says where it comes from: at most
/// `9 * N + 48` bytes in all. 510 frames are what Linux keeps.
///
/// A trace is made with room for `N` frames, `Trace<[PackedFrame; N]>`, and used as a
/// `Trace`, whose room is known at run time: `&mut Trace<[PackedFrame; N]>` coerces to
/// `&mut Trace`.
///
/// ```
/// use unwind_core::Trace;
///
/// fn fill(trace: &mut Trace) {
///     trace.clear();
/// }
/// let mut trace = Trace::<[_; 510]>::new();
/// fill(&mut trace);
/// assert!(trace.is_empty());
/// ```
///
/// # All zeroes
///
/// A trace whose bytes are all zero is a [new](Trace::new) one. So a large one can be made
/// where it is to live, by memory that comes zeroed, and never is on a stack.
#[derive(Clone)]
#[repr(C)]
pub struct Trace<F: ?Sized = [PackedFrame]> {
    /// How many of the entries are frames.
    len: usize,
    end: PackedEnd,
    entries: F,
}

/// A frame of a [`Trace`] in nine bytes, at any address.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PackedFrame {
    pc: [u8; 8],
    provenance: Provenance,
}

impl PackedFrame {
    const NONE: Self = Self { pc: [0; 8], provenance: Provenance(0) };

    #[inline]
    pub(crate) const fn new(pc: VirtAddr, provenance: Provenance) -> Self {
        Self { pc: pc.get().to_le_bytes(), provenance }
    }

    #[inline]
    const fn addr(&self) -> VirtAddr {
        VirtAddr::new(u64::from_le_bytes(self.pc))
    }

    const fn frame(&self) -> TraceFrame {
        TraceFrame::new(self.addr(), self.provenance)
    }
}

impl fmt::Debug for PackedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.frame().fmt(f)
    }
}

const _: () = {
    assert!(size_of::<Trace<[PackedFrame; 510]>>() <= 9 * 510 + 48, "the documented size");
    assert!(size_of::<Trace<[PackedFrame; 16]>>() <= 9 * 16 + 48, "the documented size");
};

impl<const N: usize> Trace<[PackedFrame; N]> {
    /// A trace without a walk.
    #[must_use]
    pub const fn new() -> Self {
        Self { len: 0, end: PackedEnd::NONE, entries: const { [PackedFrame::NONE; N] } }
    }
}

impl<F: ?Sized> Trace<F> {
    /// Forgets the walk.
    pub const fn clear(&mut self) {
        self.len = 0;
        self.end = PackedEnd::NONE;
    }

    /// How many frames there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no frames: no walk was done, or it found none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<F: AsRef<[PackedFrame]> + ?Sized> Trace<F> {
    /// Why the walk has no more frames; `None` if none was done.
    ///
    /// Of a malformed table it says which address it was asked for, that of the last
    /// frame, and the [code](crate::TableError::code) of the error.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end.unpack(|| self.last_lookup_addr())
    }

    /// How many frames it has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.entries.as_ref().len()
    }

    /// Whether these are all frames of the stack: the last one is known to be the
    /// outermost one, and none comes [after a gap](Provenance::is_after_gap). It looks
    /// at each frame.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        // A frame after a gap is rare, so that a loop which does not look for the first one is faster.
        let any = |any: u8, entry: &PackedFrame| any | entry.provenance.bits();
        self.end.is_outermost() && !Provenance(self.used().iter().fold(0, any)).is_after_gap()
    }

    /// The addresses of the frames as the target has them, innermost first, each a
    /// [`VirtAddr`].
    pub fn pcs(&self) -> impl DoubleEndedIterator<Item = VirtAddr> + ExactSizeIterator + Clone {
        self.used().iter().map(PackedFrame::addr)
    }

    /// The frames, innermost first, each a [`TraceFrame`].
    pub fn frames(
        &self,
    ) -> impl DoubleEndedIterator<Item = TraceFrame> + ExactSizeIterator + Clone {
        self.used().iter().map(PackedFrame::frame)
    }

    fn used(&self) -> &[PackedFrame] {
        self.entries.as_ref().get(..self.len).unwrap_or_default()
    }

    fn last_lookup_addr(&self) -> VirtAddr {
        self.frames().next_back().map_or(VirtAddr::new(0), |frame| frame.pc.lookup_addr())
    }
}

impl Trace {
    /// Adds the frames of another walk after those that are here, and takes its end: for a stack of several parts,
    /// such as a guest's kernel and user code. Where there is too little room the end is
    /// [`FrameLimit`](End::FrameLimit).
    pub fn append(&mut self, part: &Self) {
        self.end = part.end;
        for frame in part.used() {
            if !self.push(frame.addr(), frame.provenance) {
                self.finish(End::<Infallible>::FrameLimit);
                return;
            }
        }
    }

    /// Adds a frame; `false` if there is no room.
    #[inline]
    pub(crate) fn push(&mut self, pc: VirtAddr, provenance: Provenance) -> bool {
        let Some(entry) = self.entries.get_mut(self.len) else { return false };
        *entry = PackedFrame::new(pc, provenance);
        self.len = self.len.wrapping_add(1);
        true
    }

    /// The entries after the last frame, `most` of them at most.
    #[inline]
    pub(crate) fn room(&mut self, most: usize) -> &mut [PackedFrame] {
        let room = self.entries.get_mut(self.len..).unwrap_or_default();
        let most = most.min(room.len());
        room.get_mut(..most).unwrap_or_default()
    }

    /// Makes the first `count` entries of the [`room`](Self::room) frames, and returns
    /// the address of the last of them, and how it was found.
    #[inline]
    pub(crate) fn fill(&mut self, count: usize) -> Option<(VirtAddr, Provenance)> {
        if count == 0 {
            return None;
        }
        let end = self.len.wrapping_add(count);
        let last = self.entries.get(end.wrapping_sub(1))?;
        self.len = end;
        Some((last.addr(), last.provenance))
    }

    /// Makes this the last frame in place of the one that is.
    pub(crate) fn replace_last(&mut self, pc: VirtAddr, provenance: Provenance) {
        self.len = self.len.saturating_sub(1);
        self.push(pc, provenance);
    }

    #[inline]
    pub(crate) fn finish<E: TableError>(&mut self, end: End<E>) {
        self.end = PackedEnd::new(end);
    }
}

impl<const N: usize> Default for Trace<[PackedFrame; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: AsRef<[PackedFrame]> + ?Sized> fmt::Debug for Trace<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("frames", &self.used()).field("end", &self.end()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_frame_is_not_taken_back_when_it_is_said_again() {
        let plain = Provenance::new(Origin::Table, FramePc::Return(VirtAddr::new(0x1000)));
        let failed = plain.with_failure();
        let both = failed.with_trampoline();
        assert!(!plain.is_after_failure() && !failed.is_after_trampoline());
        assert!(both.is_after_failure() && both.is_after_trampoline());
        assert_eq!(both.with_failure().with_trampoline(), both);
        assert_eq!((both.origin(), both.is_exact()), (Origin::Table, false));
    }

    #[test]
    fn each_bit_of_a_provenance_is_the_documented_one() {
        let origins = [
            Origin::Registers,
            Origin::Table,
            Origin::CallFrames,
            Origin::FramePointer,
            Origin::Instructions,
            Origin::SignalContext,
            Origin::BranchRecord,
            Origin::Host,
        ];
        assert_eq!(origins.map(Origin::code), [0, 1, 2, 3, 4, 5, 6, 7]);
        let pc = VirtAddr::new(0x1000);
        for (origin, code) in origins.into_iter().zip(0..) {
            assert_eq!(Provenance::new(origin, FramePc::Return(pc)).bits(), code);
            assert_eq!(Provenance::new(origin, FramePc::Exact(pc)).bits(), code | 8);
        }
        let plain = Provenance::new(Origin::Table, FramePc::Return(pc));
        let marked = [
            plain.with_failure(),
            plain.with_trampoline(),
            plain.with_gap(),
            plain.with_assumed_fp(),
        ];
        assert_eq!(marked.map(Provenance::bits), [0x11, 0x21, 0x41, 0x81]);
    }

    #[test]
    fn parts_of_a_stack_are_one_trace_with_the_end_of_the_last() {
        let of = |pcs: &[u64], end: End<Infallible>| {
            let mut trace = Trace::<[_; 3]>::new();
            let lent: &mut Trace = &mut trace;
            for &pc in pcs {
                assert!(lent.push(VirtAddr::new(pc), Provenance(0)));
            }
            lent.finish(end);
            trace
        };
        let mut whole = of(&[1, 2], End::NoRow);
        let lent: &mut Trace = &mut whole;
        lent.append(&of(&[3], End::Outermost));
        assert!(lent.pcs().map(VirtAddr::get).eq(1..=3) && lent.is_complete());
        lent.append(&of(&[4], End::Outermost));
        assert_eq!((lent.len(), lent.end(), lent.is_complete()), (3, Some(End::FrameLimit), false));
    }
}
