//! `perf_event_attr`: what an event was asked to record.

use bitflags::bitflags;

use super::bytes::Cursor;
use super::{Endian, Error};

bitflags! {
    /// The fields of a sample (`sample_type`). Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SampleType: u64 {
        /// The interrupted pc.
        const IP = 1 << 0;
        /// Process and thread id.
        const TID = 1 << 1;
        /// When, in nanoseconds of the event's clock.
        const TIME = 1 << 2;
        /// A data address.
        const ADDR = 1 << 3;
        /// Counter values, laid out by `read_format`.
        const READ = 1 << 4;
        /// The call chain.
        const CALLCHAIN = 1 << 5;
        /// The id of the event.
        const ID = 1 << 6;
        /// The CPU.
        const CPU = 1 << 7;
        /// How many events the sample stands for.
        const PERIOD = 1 << 8;
        /// The id of the inherited copy of the event.
        const STREAM_ID = 1 << 9;
        /// Raw data, as tracepoints have.
        const RAW = 1 << 10;
        /// Branches that the CPU recorded.
        const BRANCH_STACK = 1 << 11;
        /// The user registers.
        const REGS_USER = 1 << 12;
        /// A copy of the user stack.
        const STACK_USER = 1 << 13;
        /// What the sampled instruction cost.
        const WEIGHT = 1 << 14;
        /// The id of the event, at a place that no other field moves.
        const IDENTIFIER = 1 << 16;
        /// The registers where the interrupt came.
        const REGS_INTR = 1 << 18;
        /// A physical data address.
        const PHYS_ADDR = 1 << 19;
        /// What the sampled instruction cost, in three parts.
        const WEIGHT_STRUCT = 1 << 24;

        /// The fields that also follow other records if the attr sets
        /// [`AttrFlags::SAMPLE_ID_ALL`].
        const ID_FIELDS = Self::TID.bits()
            | Self::TIME.bits()
            | Self::ID.bits()
            | Self::STREAM_ID.bits()
            | Self::CPU.bits()
            | Self::IDENTIFIER.bits();
    }
}

bitflags! {
    /// The one-bit switches of an attr, numbered as on a little-endian machine. Bits
    /// without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AttrFlags: u64 {
        /// The event waits until it is enabled.
        const DISABLED = 1 << 0;
        /// Children of the task have the event, too.
        const INHERIT = 1 << 1;
        /// Samples in user mode are left out.
        const EXCLUDE_USER = 1 << 4;
        /// Samples in the kernel are left out.
        const EXCLUDE_KERNEL = 1 << 5;
        /// Samples in a hypervisor are left out.
        const EXCLUDE_HV = 1 << 6;
        /// Samples of an idle CPU are left out.
        const EXCLUDE_IDLE = 1 << 7;
        /// Mappings of code are recorded.
        const MMAP = 1 << 8;
        /// Names of threads are recorded.
        const COMM = 1 << 9;
        /// The sampling period is a frequency.
        const FREQ = 1 << 10;
        /// The event begins when its task executes another program.
        const ENABLE_ON_EXEC = 1 << 12;
        /// Starts and ends of threads are recorded.
        const TASK = 1 << 13;
        /// A reader is woken by bytes, not by samples.
        const WATERMARK = 1 << 14;
        /// Mappings of data are recorded, too.
        const MMAP_DATA = 1 << 17;
        /// Records other than samples end in the [`SampleType::ID_FIELDS`].
        const SAMPLE_ID_ALL = 1 << 18;
        /// The host is left out.
        const EXCLUDE_HOST = 1 << 19;
        /// Guests are left out.
        const EXCLUDE_GUEST = 1 << 20;
        /// Call chains have no kernel part.
        const EXCLUDE_CALLCHAIN_KERNEL = 1 << 21;
        /// Call chains have no user part.
        const EXCLUDE_CALLCHAIN_USER = 1 << 22;
        /// Mappings say which file it is.
        const MMAP2 = 1 << 23;
        /// Names say whether they come from an exec.
        const COMM_EXEC = 1 << 24;
        /// The attr names the clock of the times.
        const USE_CLOCKID = 1 << 25;
        /// Switches of the CPU from and to threads are recorded.
        const CONTEXT_SWITCH = 1 << 26;
        /// The ring is written from its end to its front.
        const WRITE_BACKWARD = 1 << 27;
        /// Changes of namespaces are recorded.
        const NAMESPACES = 1 << 28;
        /// The event writes its records into its leader's AUX buffer.
        const AUX_OUTPUT = 1 << 31;
        /// Changes of the kernel's code are recorded.
        const TEXT_POKE = 1 << 33;
        /// Mappings say the build id of their file.
        const BUILD_ID = 1 << 34;
        /// Only threads that the task makes have the event, no processes.
        const INHERIT_THREAD = 1 << 35;
        /// The event ends when its task executes another program.
        const REMOVE_ON_EXEC = 1 << 36;
        /// The task gets a signal at each overflow.
        const SIGTRAP = 1 << 37;
        /// Call chains leave the user part to a later record.
        const DEFER_CALLCHAIN = 1 << 38;
        /// The event receives the later records.
        const DEFER_OUTPUT = 1 << 39;
    }
}

bitflags! {
    /// The shape of counter values in a sample (`read_format`). Bits without a name are
    /// kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReadFormat: u64 {
        /// How long the event was enabled, in nanoseconds.
        const TOTAL_TIME_ENABLED = 1 << 0;
        /// How long the event counted, in nanoseconds.
        const TOTAL_TIME_RUNNING = 1 << 1;
        /// With each value the id of its event.
        const ID = 1 << 2;
        /// The values of all events of the group.
        const GROUP = 1 << 3;
        /// With each value how many records of its event were lost.
        const LOST = 1 << 4;
    }
}

impl ReadFormat {
    /// Steps over the counter values at `c`.
    pub(super) fn skip(self, c: &mut Cursor<'_>) -> Result<(), Error> {
        let words = |mask: Self| self.intersection(mask).bits().count_ones();
        let times = words(Self::TOTAL_TIME_ENABLED | Self::TOTAL_TIME_RUNNING);
        // A value, and what tells whose it is.
        let per_value = words(Self::ID | Self::LOST).saturating_add(1);
        if !self.contains(Self::GROUP) {
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

bitflags! {
    /// What is recorded of branches (`branch_sample_type`). Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct BranchSampleType: u64 {
        /// Branches in user mode.
        const USER = 1 << 0;
        /// Branches in the kernel.
        const KERNEL = 1 << 1;
        /// Branches in a hypervisor.
        const HV = 1 << 2;
        /// The calls that have not returned, and not the last branches.
        const CALL_STACK = 1 << 11;
        /// The cycles between branches are left out.
        const NO_CYCLES = 1 << 15;
        /// A sample says which register held the newest branch.
        const HW_INDEX = 1 << 17;
        /// A sample has counts of events for each branch.
        const COUNTERS = 1 << 19;

        /// The modes of the CPU in which branches are recorded; of none, those in which
        /// the event counts.
        const MODES = Self::USER.bits() | Self::KERNEL.bits() | Self::HV.bits();
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
            self.sample_type.intersection(SampleType::ID_FIELDS)
        } else {
            SampleType::empty()
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
                sample_type: SampleType::from_bits_retain(c.u64()?),
                read_format: ReadFormat::from_bits_retain(c.u64()?),
                flags: flags_from_word(c.u64()?, endian),
                branch_sample_type: BranchSampleType::from_bits_retain(branch_sample_type),
            },
            user_registers: word_at(Self::USER_REGISTERS_AT),
        })
    }

    /// Returns the word at [`FLAGS_AT`](Self::FLAGS_AT) that stands for
    /// `flags` in an attr of byte order `endian`.
    #[must_use]
    pub const fn flags_word(flags: AttrFlags, endian: Endian) -> u64 {
        match endian {
            Endian::Little => flags.bits(),
            Endian::Big => with_precise_ip_turned(flags.bits()).reverse_bits(),
        }
    }
}

/// The switches are C bit fields: a big-endian machine fills their word from
/// the other end.
pub(crate) const fn flags_from_word(word: u64, endian: Endian) -> AttrFlags {
    AttrFlags::from_bits_retain(match endian {
        Endian::Little => word,
        Endian::Big => with_precise_ip_turned(word.reverse_bits()),
    })
}

/// The flags with the two bits of `precise_ip` exchanged: a field of several bits keeps their
/// order where the order of the fields is the other.
const fn with_precise_ip_turned(flags: u64) -> u64 {
    const PRECISE_IP: u64 = 3 << 15;
    let precise_ip = flags & PRECISE_IP;
    let turned = (precise_ip >> 1 | precise_ip << 1) & PRECISE_IP;
    flags & !PRECISE_IP | turned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n3_how_precise_an_event_is_reads_alike_in_both_byte_orders() {
        for precise in 0..4_u64 {
            let flags = AttrFlags::from_bits_retain(precise << 15) | AttrFlags::FREQ;
            let word = Attr::flags_word(flags, Endian::Big);
            // The first bit fields are the highest bits: 15 bits, and then the two of this one.
            assert_eq!(word >> 47 & 3, precise);
            let mut bytes = [0; 64];
            bytes[4..8].copy_from_slice(&64_u32.to_be_bytes());
            bytes[Attr::FLAGS_AT..][..8].copy_from_slice(&word.to_be_bytes());
            assert_eq!(Attr::parse(&bytes, Endian::Big).unwrap().format.flags, flags);
            assert_eq!(Attr::flags_word(flags, Endian::Little), flags.bits());
        }
    }
}
