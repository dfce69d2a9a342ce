//! `perf_event_attr`: what an event was asked to record.

use core::ops::BitOr;

use super::bytes::Cursor;
use super::{Endian, Error};

/// The fields of a sample, as bits (`sample_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampleType(pub u64);

impl SampleType {
    /// The interrupted pc.
    pub const IP: Self = Self(1 << 0);
    /// Process and thread id.
    pub const TID: Self = Self(1 << 1);
    /// When, in nanoseconds of the event's clock.
    pub const TIME: Self = Self(1 << 2);
    /// A data address.
    pub const ADDR: Self = Self(1 << 3);
    /// Counter values, laid out by `read_format`.
    pub const READ: Self = Self(1 << 4);
    /// The call chain.
    pub const CALLCHAIN: Self = Self(1 << 5);
    /// The id of the event.
    pub const ID: Self = Self(1 << 6);
    /// The CPU.
    pub const CPU: Self = Self(1 << 7);
    /// How many events the sample stands for.
    pub const PERIOD: Self = Self(1 << 8);
    /// The id of the inherited copy of the event.
    pub const STREAM_ID: Self = Self(1 << 9);
    /// Raw data, as tracepoints have.
    pub const RAW: Self = Self(1 << 10);
    /// Branches that the CPU recorded.
    pub const BRANCH_STACK: Self = Self(1 << 11);
    /// The user registers.
    pub const REGS_USER: Self = Self(1 << 12);
    /// A copy of the user stack.
    pub const STACK_USER: Self = Self(1 << 13);
    /// The id of the event, at a place that no other field moves.
    pub const IDENTIFIER: Self = Self(1 << 16);

    /// The fields that also follow other records if the attr sets
    /// [`AttrFlags::SAMPLE_ID_ALL`].
    pub const ID_FIELDS: Self = Self(
        Self::TID.0
            | Self::TIME.0
            | Self::ID.0
            | Self::STREAM_ID.0
            | Self::CPU.0
            | Self::IDENTIFIER.0,
    );

    /// Returns whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bits that `other` does not have.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for SampleType {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The one-bit switches of an attr, numbered as on a little-endian machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttrFlags(pub u64);

impl AttrFlags {
    /// Samples in user mode are left out.
    pub const EXCLUDE_USER: Self = Self(1 << 4);
    /// Samples in the kernel are left out.
    pub const EXCLUDE_KERNEL: Self = Self(1 << 5);
    /// Samples in a hypervisor are left out.
    pub const EXCLUDE_HV: Self = Self(1 << 6);
    /// The sampling period is a frequency.
    pub const FREQ: Self = Self(1 << 10);
    /// Records other than samples end in the [`SampleType::ID_FIELDS`].
    pub const SAMPLE_ID_ALL: Self = Self(1 << 18);
    /// The host is left out.
    pub const EXCLUDE_HOST: Self = Self(1 << 19);
    /// Guests are left out.
    pub const EXCLUDE_GUEST: Self = Self(1 << 20);
    /// Call chains have no kernel part.
    pub const EXCLUDE_CALLCHAIN_KERNEL: Self = Self(1 << 21);
    /// Call chains have no user part.
    pub const EXCLUDE_CALLCHAIN_USER: Self = Self(1 << 22);
    /// Call chains leave the user part to a later record.
    pub const DEFER_CALLCHAIN: Self = Self(1 << 38);
    /// The event receives the later records.
    pub const DEFER_OUTPUT: Self = Self(1 << 39);

    /// Returns whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bits that `other` does not have.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for AttrFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The shape of counter values in a sample, as bits (`read_format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadFormat(pub u64);

impl ReadFormat {
    const TOTAL_TIME_ENABLED: u64 = 1 << 0;
    const TOTAL_TIME_RUNNING: u64 = 1 << 1;
    const ID: u64 = 1 << 2;
    const GROUP: u64 = 1 << 3;
    const LOST: u64 = 1 << 4;

    /// Steps over the counter values at `c`.
    pub(super) fn skip(self, c: &mut Cursor<'_>) -> Result<(), Error> {
        let words = |mask: u64| (self.0 & mask).count_ones();
        let times = words(Self::TOTAL_TIME_ENABLED | Self::TOTAL_TIME_RUNNING);
        // A value, and what tells whose it is.
        let per_value = words(Self::ID | Self::LOST).saturating_add(1);
        if self.0 & Self::GROUP == 0 {
            return skip_words(c, times.saturating_add(per_value).into());
        }
        let at = c.at();
        let count = c.u64()?;
        skip_words(c, times.into())?;
        let room = u64::try_from(c.left().len()).unwrap_or(u64::MAX) / 8;
        match count.checked_mul(per_value.into()).filter(|&words| words <= room) {
            Some(words) => skip_words(c, words),
            None => Err(Error::BadCount {
                at,
                room: u32::try_from(room.checked_div(per_value.into()).unwrap_or(0))
                    .unwrap_or(u32::MAX),
                count,
            }),
        }
    }
}

fn skip_words(c: &mut Cursor<'_>, words: u64) -> Result<(), Error> {
    let len = usize::try_from(words.saturating_mul(8)).unwrap_or(usize::MAX);
    c.take(len).map(drop)
}

/// What is recorded of branches, as bits (`branch_sample_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BranchSampleType(pub u64);

impl BranchSampleType {
    /// The calls that have not returned, and not the last branches.
    pub const CALL_STACK: Self = Self(1 << 11);
    /// The cycles between branches are left out.
    pub const NO_CYCLES: Self = Self(1 << 15);
    /// A sample says which register held the newest branch.
    pub const HW_INDEX: Self = Self(1 << 17);
    /// A sample has counts of events for each branch.
    pub const COUNTERS: Self = Self(1 << 19);

    /// Returns whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What decides the layout of an event's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EventFormat {
    /// The fields of a sample.
    pub sample_type: SampleType,
    /// The shape of [`SampleType::READ`].
    pub read_format: ReadFormat,
    /// The switches.
    pub flags: AttrFlags,
    /// The shape of [`SampleType::BRANCH_STACK`].
    pub branch_sample_type: BranchSampleType,
}

impl EventFormat {
    /// Returns the fields that follow each record which is not a sample.
    #[must_use]
    pub const fn trailer(self) -> SampleType {
        if self.flags.contains(AttrFlags::SAMPLE_ID_ALL) {
            SampleType(self.sample_type.0 & SampleType::ID_FIELDS.0)
        } else {
            SampleType(0)
        }
    }
}

/// The parts of a `perf_event_attr` that a reader of records needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attr {
    /// The kind of event (`PERF_TYPE_…`): 0 hardware, 1 software, and so on.
    pub kind: u32,
    /// Bytes of the attr.
    pub size: u32,
    /// Which event of that kind.
    pub config: u64,
    /// Events, or nanoseconds, or hertz, between samples.
    pub sample_period: u64,
    /// The layout of the event's records.
    pub format: EventFormat,
    /// Which user registers samples have, as bits (`sample_regs_user`).
    pub user_registers: u64,
}

impl Attr {
    /// Bytes of the first published attr (`PERF_ATTR_SIZE_VER0`).
    pub const MIN_SIZE: u32 = 64;

    /// Where the switches are in an attr, in bytes.
    pub const FLAGS_AT: usize = 40;

    /// Where the fields of a sample are in an attr, in bytes.
    pub const SAMPLE_TYPE_AT: usize = 24;

    /// Where an attr has what is recorded of branches, in bytes.
    pub const BRANCH_SAMPLE_TYPE_AT: usize = 72;

    /// Where an attr has which user registers samples have, and how much of the
    /// stack after them (`sample_stack_user`, 32 bits), in bytes.
    pub const USER_REGISTERS_AT: usize = 80;

    /// Parses the attr at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if `bytes` is shorter than the attr says, and
    /// [`Error::BadAttrSize`] if that is less than any attr has.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Self, Error> {
        let mut c = Cursor::new(bytes, 0, endian);
        let kind = c.u32()?;
        let size = c.u32()?;
        if size < Self::MIN_SIZE {
            return Err(Error::BadAttrSize(size));
        }
        let size_in_bytes = usize::try_from(size).unwrap_or(usize::MAX);
        let whole = Cursor::new(bytes, 0, endian).take(size_in_bytes)?;
        // Fields that a shorter attr does not have are zero.
        let word_at = |at| {
            let word = whole.get(at..).and_then(<[u8]>::first_chunk);
            word.map_or(0, |&word| endian.u64(word))
        };
        let branch_sample_type = word_at(Self::BRANCH_SAMPLE_TYPE_AT);
        Ok(Self {
            kind,
            size,
            config: c.u64()?,
            sample_period: c.u64()?,
            format: EventFormat {
                sample_type: SampleType(c.u64()?),
                read_format: ReadFormat(c.u64()?),
                flags: flags_from_word(c.u64()?, endian),
                branch_sample_type: BranchSampleType(branch_sample_type),
            },
            user_registers: word_at(Self::USER_REGISTERS_AT),
        })
    }

    /// Returns the word at [`FLAGS_AT`](Self::FLAGS_AT) that stands for
    /// `flags` in an attr of byte order `endian`.
    #[must_use]
    pub const fn flags_word(flags: AttrFlags, endian: Endian) -> u64 {
        flags_from_word(flags.0, endian).0
    }
}

/// The switches are C bit fields: a big-endian machine fills their word from
/// the other end.
const fn flags_from_word(word: u64, endian: Endian) -> AttrFlags {
    match endian {
        Endian::Little => AttrFlags(word),
        Endian::Big => AttrFlags(word.reverse_bits()),
    }
}
