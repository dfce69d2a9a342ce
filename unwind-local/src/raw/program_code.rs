//! Code that the program has made itself and told of, as a JIT compiler's.

use core::num::NonZero;
use core::ops::Range;
use core::slice;

use unwind_cfi::{CfiAbi, CfiSection, CfiTable, RemoteCfiError};
use unwind_core::{FrameContext, Memory, Row, RowSource};
use unwind_x86::{InstructionAnalysis, TrustedFramePointers, X86_64, X86_64Regs};

use super::rows::sframe_row;
use super::slot::Slot;
use super::sync::{AtomicU64, AtomicUsize, Ordering};

/// How many ranges there can be at a time.
pub(crate) const MOST: usize = 256;

/// The bits of a range's number that say which slot. The others are the version there, which
/// does not get near to using them up.
const SLOT_BITS: u32 = MOST.ilog2();
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// How many words are kept of a range.
const WORDS: usize = 5;

static SLOTS: [Slot<WORDS>; MOST] =
    [const { Slot::new(AtomicU64::new(0), [const { AtomicU64::new(0) }; WORDS]) }; MOST];

/// How many of the slots were ever full: those after them are empty.
static USED: AtomicUsize = AtomicUsize::new(0);

/// How often ranges came and went.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// What tells of the frames of such code.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    FramePointers,
    Sframe,
    EhFrame,
}

impl Kind {
    const ALL: [Self; 3] = [Self::FramePointers, Self::Sframe, Self::EhFrame];

    const fn number(self) -> u64 {
        match self {
            Self::FramePointers => 0,
            Self::Sframe => 1,
            Self::EhFrame => 2,
        }
    }
}

/// Code, and the table that tells of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code {
    kind: Kind,
    table_addr: u64,
    table_len: u64,
}

/// Tells of code. Returns a number by which it is taken out; `None` if there are too many
/// ranges.
///
/// # Safety
///
/// Until the range is [taken out](take) the table stays and does not change. No function of the
/// range has a frame on any stack when it is taken out.
pub(crate) unsafe fn put(code: &Range<usize>, kind: Kind, table: &[u8]) -> Option<NonZero<u64>> {
    let word = |value: usize| u64::try_from(value).unwrap_or(0);
    let (addr, len) = (word(table.as_ptr().expose_provenance()), word(table.len()));
    let words = [word(code.start), word(code.end), kind.number(), addr, len];
    let (slot, version) = SLOTS
        .iter()
        .enumerate()
        .find_map(|(at, slot)| slot.put(words).map(|version| (at, version)))?;
    USED.fetch_max(slot.saturating_add(1), Ordering::Relaxed);
    changed();
    // A version of what is full is not zero.
    NonZero::new(version.rotate_left(SLOT_BITS) | word(slot))
}

/// Takes a range out; `false` if it is not there, or no longer.
pub(crate) fn take(number: u64) -> bool {
    let slot = usize::try_from(number & SLOT_MASK).ok().and_then(|slot| SLOTS.get(slot));
    let version = (number & !SLOT_MASK).rotate_right(SLOT_BITS);
    let is_taken = slot.is_some_and(|slot| slot.take(version));
    if is_taken {
        changed();
    }
    is_taken
}

/// After it, a walk that sees the new number sees the change, too.
fn changed() {
    CHANGES.fetch_add(1, Ordering::Release);
}

/// A number that changes with the ranges.
#[inline]
pub(crate) fn generation() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// The code with this address.
///
/// The code of a frame on this thread's stack stays, so a range that changes meanwhile is that
/// of other code.
#[inline]
pub(crate) fn find(addr: u64) -> Option<Code> {
    match USED.load(Ordering::Relaxed) {
        0 => None,
        used => find_among(SLOTS.get(..used)?, addr),
    }
}

#[cold]
#[inline(never)]
fn find_among(slots: &[Slot<WORDS>], addr: u64) -> Option<Code> {
    slots.iter().filter_map(Slot::read).find_map(|[start, end, kind, table_addr, table_len]| {
        let kind = Kind::ALL.into_iter().find(|known| known.number() == kind)?;
        (addr >= start && addr < end).then_some(Code { kind, table_addr, table_len })
    })
}

impl Code {
    /// The row of a frame; `None` if nothing proves one.
    pub(crate) fn row<M: Memory>(
        self,
        frame: &FrameContext<'_, X86_64Regs>,
        is_guessed: bool,
        mem: &mut M,
    ) -> Result<Option<Row>, RemoteCfiError> {
        let addr = frame.lookup_addr().get();
        match self.kind {
            Kind::FramePointers => {
                // Where it was interrupted, the function may have none yet, or no longer.
                let here = RowSource::<X86_64>::row(&mut InstructionAnalysis, frame, mem)?;
                let mut kept = || RowSource::<X86_64>::row(&mut TrustedFramePointers, frame, mem);
                Ok(if here.is_some() { here } else { kept()? })
            }
            // A guess has led here: the code may be anyone's, and its table may go.
            Kind::Sframe | Kind::EhFrame if is_guessed => Ok(None),
            Kind::Sframe => Ok(sframe_row(self.table(), self.table_addr, addr)),
            Kind::EhFrame => {
                let section = CfiSection::eh_frame(self.table(), self.table_addr);
                Ok(CfiTable::with_entries(section, CfiAbi::X86_64).find_row(addr)?)
            }
        }
    }

    fn table<'t>(self) -> &'t [u8] {
        let len = usize::try_from(self.table_len).unwrap_or(0);
        let addr = usize::try_from(self.table_addr).unwrap_or(0);
        let first = core::ptr::with_exposed_provenance::<u8>(addr);
        // SAFETY: it stays until the range is taken out, which is not before the code has no
        // frames on a stack.
        unsafe { slice::from_raw_parts(first, len) }
    }
}
