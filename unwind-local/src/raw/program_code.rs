//! Code that the program has made itself and told of, as a JIT compiler's.

use core::num::NonZero;
use core::ops::Range;
use core::slice;

use unwind_cfi::{CfiError, CfiSection, CfiTable, Entries, IndexEntry};
use unwind_core::Row;

use super::late_function::LateFunction;
use super::machine::CFI_ABI;
use super::sframe_rows::sframe_row;
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
    CallerFramePointers,
}

impl Kind {
    const ALL: [Self; 4] =
        [Self::FramePointers, Self::Sframe, Self::EhFrame, Self::CallerFramePointers];

    const fn number(self) -> u64 {
        match self {
            Self::FramePointers => 0,
            Self::Sframe => 1,
            Self::EhFrame => 2,
            Self::CallerFramePointers => 3,
        }
    }
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
    FIND.set(find_among);
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

/// What was told of an address of code.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    /// Its function keeps a frame pointer.
    FramePointer,
    /// It does once it calls another one.
    CallerFramePointer,
    /// The row of a table, if it has one.
    Row(Result<Option<Row>, CfiError>),
}

type Find = fn(u64, bool) -> Option<Told>;

/// [`find_among`], once there was a range.
// SAFETY: a function.
static FIND: LateFunction<Find> = unsafe { LateFunction::new() };

/// What was told of this address of code. After a guess no table is looked at: the code
/// may be anyone's, and its table may go.
#[inline]
pub(crate) fn find(addr: u64, is_guessed: bool) -> Option<Told> {
    FIND.get()?(addr, is_guessed)
}

/// The code of a frame on this thread's stack stays, so a range that changes meanwhile is that
/// of other code.
fn find_among(addr: u64, is_guessed: bool) -> Option<Told> {
    let used = SLOTS.get(..USED.load(Ordering::Relaxed))?;
    let (kind, table_addr, len) =
        used.iter().filter_map(Slot::read).find_map(|[start, end, kind, table, len]| {
            let kind = Kind::ALL.into_iter().find(|known| known.number() == kind)?;
            (addr >= start && addr < end).then_some((kind, table, len))
        })?;
    let table = || {
        let first = usize::try_from(table_addr).unwrap_or(0);
        let first = core::ptr::with_exposed_provenance::<u8>(first);
        // SAFETY: it stays until the range is taken out, which is not before the code has no
        // frames on a stack, as it has by a walk without guesses.
        unsafe { slice::from_raw_parts(first, usize::try_from(len).unwrap_or(0)) }
    };
    Some(match kind {
        Kind::FramePointers => Told::FramePointer,
        Kind::CallerFramePointers => Told::CallerFramePointer,
        Kind::Sframe | Kind::EhFrame if is_guessed => Told::Row(Ok(None)),
        Kind::Sframe => Told::Row(Ok(sframe_row(table(), table_addr, addr))),
        Kind::EhFrame => {
            let section = CfiSection::eh_frame(table(), table_addr);
            let entry = IndexEntry::find(Entries::new(section, CFI_ABI), addr);
            Told::Row(CfiTable::with_index(section, CFI_ABI, entry.as_slice()).find_row(addr))
        }
    })
}
