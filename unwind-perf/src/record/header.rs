//! The eight bytes in front of every record, and the split of a stream.

use super::bytes::{Cursor, offset};
use super::{Endian, Error};

/// What a record is about: the `type` of `perf_event_header`.
///
/// Values from 64 up are written by a tool, not by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordType(pub u32);

impl RecordType {
    /// A mapping, in the old layout (`PERF_RECORD_MMAP`).
    pub const MMAP: Self = Self(1);
    /// A count of records for which the ring had no room (`PERF_RECORD_LOST`).
    pub const LOST: Self = Self(2);
    /// A thread's name, set by itself or by exec (`PERF_RECORD_COMM`).
    pub const COMM: Self = Self(3);
    /// The end of a thread (`PERF_RECORD_EXIT`).
    pub const EXIT: Self = Self(4);
    /// Samples stop: there were too many in one tick (`PERF_RECORD_THROTTLE`).
    pub const THROTTLE: Self = Self(5);
    /// Samples come again (`PERF_RECORD_UNTHROTTLE`).
    pub const UNTHROTTLE: Self = Self(6);
    /// The start of a thread (`PERF_RECORD_FORK`).
    pub const FORK: Self = Self(7);
    /// A sample (`PERF_RECORD_SAMPLE`).
    pub const SAMPLE: Self = Self(9);
    /// A mapping (`PERF_RECORD_MMAP2`).
    pub const MMAP2: Self = Self(10);
    /// A piece of a trace in the AUX area (`PERF_RECORD_AUX`).
    pub const AUX: Self = Self(11);
    /// A trace of a thread begins (`PERF_RECORD_ITRACE_START`).
    pub const ITRACE_START: Self = Self(12);
    /// Samples that the hardware dropped (`PERF_RECORD_LOST_SAMPLES`).
    pub const LOST_SAMPLES: Self = Self(13);
    /// A CPU switches to a thread, or away from it, as the header says; of an event that
    /// follows a thread (`PERF_RECORD_SWITCH`).
    pub const SWITCH: Self = Self(14);
    /// The same of an event that follows a CPU (`PERF_RECORD_SWITCH_CPU_WIDE`).
    pub const SWITCH_CPU_WIDE: Self = Self(15);
    /// The user part of earlier call chains
    /// (`PERF_RECORD_CALLCHAIN_DEFERRED`).
    pub const CALLCHAIN_DEFERRED: Self = Self(22);

    /// Returns whether the kernel writes this type; the others come from
    /// tools.
    #[must_use]
    pub const fn is_kernel(self) -> bool {
        self.0 < 64
    }
}

/// The `misc` bits of a record's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Misc(pub u16);

impl Misc {
    /// Neither kernel nor user is known (`PERF_RECORD_MISC_CPUMODE_UNKNOWN`).
    pub const UNKNOWN: Self = Self(0);
    /// The CPU was in the kernel (`PERF_RECORD_MISC_KERNEL`).
    pub const KERNEL: Self = Self(1);
    /// The CPU was in user mode (`PERF_RECORD_MISC_USER`).
    pub const USER: Self = Self(2);
    /// The addresses are a hypervisor's (`PERF_RECORD_MISC_HYPERVISOR`).
    pub const HYPERVISOR: Self = Self(3);
    /// The addresses are those of a guest's kernel (`PERF_RECORD_MISC_GUEST_KERNEL`).
    pub const GUEST_KERNEL: Self = Self(4);
    /// The addresses are those of a guest's user code (`PERF_RECORD_MISC_GUEST_USER`).
    pub const GUEST_USER: Self = Self(5);
    /// An MMAP of data, not code (`PERF_RECORD_MISC_MMAP_DATA`).
    pub const MMAP_DATA: Self = Self(1 << 13);
    /// An MMAP2 with a build id in the place of an inode
    /// (`PERF_RECORD_MISC_MMAP_BUILD_ID`).
    pub const MMAP_BUILD_ID: Self = Self(1 << 14);
    /// A COMM that comes from an exec (`PERF_RECORD_MISC_COMM_EXEC`).
    pub const COMM_EXEC: Self = Self(1 << 13);
    /// A switch away from a thread (`PERF_RECORD_MISC_SWITCH_OUT`).
    pub const SWITCH_OUT: Self = Self(1 << 13);

    /// Returns the part that says where the CPU was, as one of
    /// [`UNKNOWN`](Self::UNKNOWN), [`KERNEL`](Self::KERNEL), [`USER`](Self::USER),
    /// [`HYPERVISOR`](Self::HYPERVISOR), [`GUEST_KERNEL`](Self::GUEST_KERNEL) or
    /// [`GUEST_USER`](Self::GUEST_USER).
    #[must_use]
    pub const fn cpu_mode(self) -> Self {
        Self(self.0 & 7)
    }

    /// Returns whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The header of a record (`perf_event_header`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What the record is about.
    pub kind: RecordType,
    /// Where the CPU was, and flags that depend on the type.
    pub misc: Misc,
    /// Bytes of the record, this header included.
    pub size: u16,
}

impl RecordHeader {
    /// The encoded size in bytes.
    pub const SIZE: usize = 8;

    /// Parses the header at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if `bytes` is shorter than a header,
    /// [`Error::BadSize`] if no record can have this size.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Self, Error> {
        let mut c = Cursor::new(bytes, 0, endian);
        let header = Self { kind: RecordType(c.u32()?), misc: Misc(c.u16()?), size: c.u16()? };
        // Tools do write records of odd sizes (compressed data, for one).
        let odd = header.kind.is_kernel() && header.size.trailing_zeros() < 3;
        if usize::from(header.size) < Self::SIZE || odd {
            return Err(Error::BadSize(header.size));
        }
        Ok(header)
    }

    /// Bytes of the record after the header.
    #[must_use]
    pub fn body_len(self) -> usize {
        usize::from(self.size).saturating_sub(Self::SIZE)
    }
}

/// One record, its body not decoded.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    header: RecordHeader,
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> Record<'a> {
    /// Splits the first record off `bytes`.
    ///
    /// # Errors
    ///
    /// As [`RecordHeader::parse`], and [`Error::Truncated`] if `bytes` ends
    /// inside the record.
    pub fn parse(bytes: &'a [u8], endian: Endian) -> Result<Self, Error> {
        let header = RecordHeader::parse(bytes, endian)?;
        let bytes = Cursor::new(bytes, 0, endian).take(header.size.into())?;
        Ok(Self { header, bytes, endian })
    }

    /// A record of which only the first bytes are known: fields after them seem cut off.
    pub(super) fn of_start(bytes: &'a [u8], endian: Endian) -> Result<Self, Error> {
        let header = RecordHeader::parse(bytes, endian)?;
        let bytes = bytes.get(..header.size.into()).unwrap_or(bytes);
        Ok(Self { header, bytes, endian })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> RecordHeader {
        self.header
    }

    /// What the record is about.
    #[must_use]
    pub const fn kind(&self) -> RecordType {
        self.header.kind
    }

    /// The whole record, header included.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes after the header.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(RecordHeader::SIZE..).unwrap_or_default()
    }

    /// The byte order of the record.
    #[must_use]
    pub const fn endian(&self) -> Endian {
        self.endian
    }

    /// A cursor on the body, if the record has the type `kind`.
    pub(super) fn body_of(&self, kind: RecordType) -> Result<Cursor<'a>, Error> {
        if self.kind() != kind {
            return Err(Error::WrongType { expected: kind.0, found: self.kind().0 });
        }
        Ok(Cursor::new(self.body(), offset(RecordHeader::SIZE), self.endian))
    }
}

/// The records in a run of bytes, such as what was drained from a ring.
///
/// After an error the iterator is at its end, and [`offset`](Self::offset)
/// tells where the record starts that could not be split off.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    left: &'a [u8],
    at: usize,
    endian: Endian,
}

impl<'a> Records<'a> {
    /// The records in `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { left: bytes, at: 0, endian }
    }

    /// Where the next record starts, in bytes from the start.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.at
    }

    /// Returns the next record.
    ///
    /// # Errors
    ///
    /// As [`Record::parse`].
    pub fn next(&mut self) -> Result<Option<Record<'a>>, Error> {
        let left = core::mem::take(&mut self.left);
        if left.is_empty() {
            return Ok(None);
        }
        let record = Record::parse(left, self.endian)?;
        let size = usize::from(record.header.size);
        self.left = left.get(size..).unwrap_or_default();
        self.at = self.at.saturating_add(size);
        Ok(Some(record))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        Self::next(self).transpose()
    }
}

impl core::iter::FusedIterator for Records<'_> {}
