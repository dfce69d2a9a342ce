//! The branches of a sample: where the CPU has been, by its own record.

use super::bytes::{Cursor, offset};
use super::encode::{Encode, Encoder, Output};
use super::header::{Misc, Record, RecordType};
use super::sample::chain_place;
use super::{BranchSampleType, Endian, Error, EventFormat, Sample, SampleType, Words};

/// A branch that the CPU has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BranchEntry {
    /// The address of the instruction that branched.
    pub from: u64,
    /// Where it went.
    pub to: u64,
    /// What else is known of it.
    pub flags: BranchFlags,
    /// Counts of events since the branch before it, in fields whose width the
    /// PMU decides; zero if the event does not ask for them.
    pub counters: u64,
}

/// What is known of a branch besides its addresses, numbered as on a
/// little-endian machine.
///
/// | bits | meaning |
/// |---|---|
/// | 0, 1 | it was mispredicted; it was predicted |
/// | 2, 3 | it was in a transaction; it aborted one |
/// | 4-19 | cycles since the branch before it |
/// | 20-23 | its [kind](Self::kind) |
/// | 24, 25 | how its speculation ended (`PERF_BR_SPEC_…`) |
/// | 26-29 | its kind, where bits 20-23 refer to these |
/// | 30-32 | its privilege (`PERF_BR_PRIV_…`) |
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct BranchFlags(pub u64);

impl BranchFlags {
    /// Lowest bit and width of each field. The last one is not in use.
    const FIELDS: [(u32, u32); 10] =
        [(0, 1), (1, 1), (2, 1), (3, 1), (4, 16), (20, 4), (24, 2), (26, 4), (30, 3), (33, 31)];

    /// The kind that says that [`new_kind`](Self::new_kind) has it
    /// (`PERF_BR_EXTEND_ABI`).
    pub const KIND_IS_NEW: u8 = 15;

    const fn field(self, at: u32, mask: u16) -> u16 {
        let [low, high, ..] = self.0.wrapping_shr(at).to_le_bytes();
        u16::from_le_bytes([low, high]) & mask
    }

    const fn small_field(self, at: u32, mask: u16) -> u8 {
        let [low, _] = self.field(at, mask).to_le_bytes();
        low
    }

    /// Whether it was mispredicted.
    #[must_use]
    pub const fn is_mispredicted(self) -> bool {
        self.field(0, 1) != 0
    }

    /// Whether it was predicted. Neither this nor
    /// [`is_mispredicted`](Self::is_mispredicted) if that is not known.
    #[must_use]
    pub const fn is_predicted(self) -> bool {
        self.field(1, 1) != 0
    }

    /// Whether it was in a transaction.
    #[must_use]
    pub const fn is_in_transaction(self) -> bool {
        self.field(2, 1) != 0
    }

    /// Whether it aborted a transaction.
    #[must_use]
    pub const fn is_abort(self) -> bool {
        self.field(3, 1) != 0
    }

    /// Cycles since the branch before it, as far as 16 bits go; zero if they are
    /// not counted.
    #[must_use]
    pub const fn cycles(self) -> u16 {
        self.field(4, u16::MAX)
    }

    /// The kind of branch (`PERF_BR_…`), at most 15; zero if it is not known.
    #[must_use]
    pub const fn kind(self) -> u8 {
        self.small_field(20, 15)
    }

    /// How its speculation ended (`PERF_BR_SPEC_…`), at most 3; zero if that is
    /// not known.
    #[must_use]
    pub const fn speculation(self) -> u8 {
        self.small_field(24, 3)
    }

    /// The kind of branch (`PERF_BR_NEW_…`), at most 15, if [`kind`](Self::kind) is
    /// [`KIND_IS_NEW`](Self::KIND_IS_NEW).
    #[must_use]
    pub const fn new_kind(self) -> u8 {
        self.small_field(26, 15)
    }

    /// The privilege of its target (`PERF_BR_PRIV_…`), at most 7; zero if that is
    /// not known.
    #[must_use]
    pub const fn privilege(self) -> u8 {
        self.small_field(30, 7)
    }

    /// The flags in a word of a record. They are C bit fields: a big-endian machine
    /// fills their word from the other end, each field by itself.
    fn from_word(word: u64, endian: Endian) -> Self {
        match endian {
            Endian::Little => Self(word),
            Endian::Big => Self(Self::moved(word, Endian::Little)),
        }
    }

    fn word(self, endian: Endian) -> u64 {
        match endian {
            Endian::Little => self.0,
            Endian::Big => Self::moved(self.0, Endian::Big),
        }
    }

    /// Moves each field of a word to where a machine of byte order `to` has it.
    #[expect(clippy::arithmetic_side_effects, reason = "places inside of a word")]
    fn moved(word: u64, to: Endian) -> u64 {
        let field = |(at, len)| {
            let from_the_other_end = 64 - at - len;
            let (from, to) = match to {
                Endian::Little => (from_the_other_end, at),
                Endian::Big => (at, from_the_other_end),
            };
            (word >> from & (u64::MAX >> (64 - len))) << to
        };
        Self::FIELDS.into_iter().map(field).fold(0, |all, field| all | field)
    }
}

impl core::fmt::Debug for BranchFlags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The branches of a sample, in place.
#[derive(Clone, Copy, Debug)]
pub struct BranchStack<'a> {
    /// Which register held the newest branch, if the sample says so. All ones if
    /// the hardware moves branches from register to register.
    pub hw_index: Option<u64>,
    /// Three words a branch.
    entries: Words<'a>,
    /// A word a branch, or none.
    counters: Words<'a>,
}

/// Bytes of a branch without its counters.
const ENTRY: usize = 24;
/// Bytes of the counters of a branch.
const COUNTERS: usize = 8;

impl<'a> BranchStack<'a> {
    /// Decodes the branches of a sample of an event with `format`: `None` if the
    /// event does not ask for them.
    ///
    /// Linux leaves out the word with the index of a sample without a record, so
    /// a sample that ends after a count of zero has no index.
    ///
    /// # Errors
    ///
    /// As [`Sample::decode`], and [`Error::BadCount`] if the record has no room
    /// for as many branches as it says.
    pub fn decode(record: &Record<'a>, format: EventFormat) -> Result<Option<Self>, Error> {
        if !format.sample_type.contains(SampleType::BRANCH_STACK) {
            return Ok(None);
        }
        let mut c = after_chain(record, format)?;
        let stack = Self::read_if_asked(&mut c, format)?;
        if format.sample_type.difference(BEFORE) == SampleType::BRANCH_STACK {
            c.finish()?;
        }
        Ok(stack)
    }

    /// Reads the branches at `c`, if the event asks for them.
    pub(super) fn read_if_asked(
        c: &mut Cursor<'a>,
        format: EventFormat,
    ) -> Result<Option<Self>, Error> {
        if !format.sample_type.contains(SampleType::BRANCH_STACK) {
            return Ok(None);
        }
        let asked = |what| format.branch_sample_type.contains(what);
        let at = c.at();
        let count = c.u64()?;
        let is_there = count != 0 || !c.left().is_empty();
        let hw_index = c.u64_if(asked(BranchSampleType::HW_INDEX) && is_there)?;
        let counters = if asked(BranchSampleType::COUNTERS) { COUNTERS } else { 0 };
        let room = c.left().len().checked_div(ENTRY.saturating_add(counters)).unwrap_or(0);
        let Some(count) = usize::try_from(count).ok().filter(|&count| count <= room) else {
            return Err(Error::BadCount { at, room: offset(room), count });
        };
        let mut words =
            |size: usize| Ok(Words::new(c.take(count.saturating_mul(size))?, c.endian()));
        Ok(Some(Self { hw_index, entries: words(ENTRY)?, counters: words(counters)? }))
    }

    /// The branches, the newest first.
    #[must_use]
    pub fn entries(&self) -> impl ExactSizeIterator<Item = BranchEntry> + Clone + use<'a> {
        let Self { mut entries, mut counters, .. } = *self;
        let endian = entries.endian();
        let len = entries.len().checked_div(3).unwrap_or(0);
        (0..len).map(move |_| {
            let mut word = || entries.next().unwrap_or_default();
            BranchEntry {
                from: word(),
                to: word(),
                flags: BranchFlags::from_word(word(), endian),
                counters: counters.next().unwrap_or_default(),
            }
        })
    }
}

/// The fields of a sample up to its branches.
const BEFORE: SampleType =
    SampleType::from_bits_retain(Sample::<()>::UP_TO_CHAIN.bits() | SampleType::RAW.bits());

/// What follows the call chain of a sample and its raw data, which are passed.
pub(super) fn after_chain<'a>(
    record: &Record<'a>,
    format: EventFormat,
) -> Result<Cursor<'a>, Error> {
    let start = chain_place(record, format)?.end;
    let rest = usize::try_from(start).ok().and_then(|start| record.bytes().get(start..));
    let mut c = Cursor::new(rest.unwrap_or_default(), start, record.endian());
    if format.sample_type.contains(SampleType::RAW) {
        let len = usize::try_from(c.u32()?).unwrap_or(usize::MAX);
        c.take(len)?;
    }
    Ok(c)
}

/// A sample with branches, to be written.
#[derive(Clone, Copy, Debug)]
pub struct WithBranches<C, B> {
    /// The rest of the sample.
    pub sample: Sample<C>,
    /// Which register held the newest branch.
    pub hw_index: Option<u64>,
    /// The branches, the newest first.
    pub branches: B,
}

impl<C, B> Encode for WithBranches<C, B>
where
    C: IntoIterator<Item = u64, IntoIter: Clone> + Clone,
    B: IntoIterator<Item = BranchEntry, IntoIter: Clone> + Clone,
{
    fn kind(&self) -> RecordType {
        RecordType::SAMPLE
    }

    fn misc(&self) -> Misc {
        self.sample.misc
    }

    /// Writes the fields that `format` asks for.
    ///
    /// # Errors
    ///
    /// As [`Sample`]'s, and [`Error::MissingFields`] if `format` asks for the index
    /// of a register and there is none.
    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        let before = format.sample_type.difference(SampleType::BRANCH_STACK);
        self.sample.encode_body(EventFormat { sample_type: before, ..format }, e)?;
        if before == format.sample_type {
            return Ok(());
        }
        let asked = |what| format.branch_sample_type.contains(what);
        if asked(BranchSampleType::HW_INDEX) && self.hw_index.is_none() {
            return Err(Error::MissingFields(SampleType::BRANCH_STACK.bits()));
        }
        let branches = || self.branches.clone().into_iter();
        e.u64(u64::try_from(branches().count()).unwrap_or(u64::MAX));
        e.u64_if(self.hw_index, asked(BranchSampleType::HW_INDEX));
        let endian = e.endian();
        for BranchEntry { from, to, flags, .. } in branches() {
            [from, to, flags.word(endian)].into_iter().for_each(|word| e.u64(word));
        }
        if asked(BranchSampleType::COUNTERS) {
            branches().for_each(|branch| e.u64(branch.counters));
        }
        Ok(())
    }
}
