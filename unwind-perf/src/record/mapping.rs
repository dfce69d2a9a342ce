//! Mappings: what code is where in a process.

use core::ops::Range;

use super::encode::{Encode, Encoder, Output};
use super::header::{Misc, Record, RecordType};
use super::sample_id::{SampleId, Task, split_trailer};
use super::{Error, EventFormat};

/// Identifies the file that was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MappedId<'a> {
    /// Nothing: the old record.
    Unknown,
    /// Where the file is.
    Inode {
        /// Of the device.
        major: u32,
        /// Of the device.
        minor: u32,
        /// On the device; 0 for memory without a file.
        inode: u64,
        /// A number that the inode gets when it is used again.
        generation: u64,
    },
    /// The build id of the file.
    BuildId(&'a [u8]),
}

/// A range of addresses became a copy of a file
/// (`PERF_RECORD_MMAP`, `PERF_RECORD_MMAP2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapping<'a> {
    /// The thread that mapped it. The process is `u32::MAX` for the kernel's own.
    pub task: Task,
    /// Its first address.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// Whose content it has: a path, or `[vdso]`, `//anon` and the like, as the
    /// bytes in front of the first zero.
    pub name: &'a [u8],
    /// Which file that was.
    pub id: MappedId<'a>,
    /// Whether code can run there.
    pub executable: bool,
    /// When and where.
    pub sample_id: SampleId,
}

/// The bytes of a record that identify the file, and how many of them a build id may
/// have at most.
const ID_LEN: usize = 24;
const BUILD_ID_LEN: usize = 20;

const PROT_READ: u32 = 1;
const PROT_EXEC: u32 = 4;
const MAP_PRIVATE: u32 = 2;

impl<'a> Mapping<'a> {
    /// Code that was mapped from the start of a file, of which nothing but the name is
    /// known. The other fields can be set.
    #[must_use]
    pub fn of_code(task: Task, range: Range<u64>, name: &'a [u8]) -> Self {
        Self {
            task,
            addr: range.start,
            len: range.end.saturating_sub(range.start),
            offset: 0,
            name,
            id: MappedId::Unknown,
            executable: true,
            sample_id: SampleId::default(),
        }
    }

    /// Decodes a record of either type that an event with `format` received.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] or [`Error::Truncated`] if the record does not
    /// have this layout.
    pub fn decode(record: &Record<'a>, format: EventFormat) -> Result<Self, Error> {
        let is_second = record.kind() == RecordType::MMAP2;
        let kind = if is_second { RecordType::MMAP2 } else { RecordType::MMAP };
        let (mut c, sample_id) = split_trailer(record.body_of(kind)?, format)?;
        let misc = record.header().misc;
        let task = Task { pid: c.u32()?, tid: c.u32()? };
        let (addr, len, offset) = (c.u64()?, c.u64()?, c.u64()?);
        let mut id = MappedId::Unknown;
        let mut executable = !misc.contains(Misc::MMAP_DATA);
        if is_second {
            id = if misc.contains(Misc::MMAP_BUILD_ID) {
                let place = c.take(ID_LEN)?;
                let (head, bytes) = place.split_at_checked(4).unwrap_or_default();
                let size = head.first().copied().map_or(0, usize::from);
                MappedId::BuildId(bytes.get(..size).unwrap_or(bytes))
            } else {
                let (major, minor) = (c.u32()?, c.u32()?);
                MappedId::Inode { major, minor, inode: c.u64()?, generation: c.u64()? }
            };
            let (protection, _flags) = (c.u32()?, c.u32()?);
            executable = protection & PROT_EXEC != 0;
        }
        let name = c.left().split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(Self { task, addr, len, offset, name, id, executable, sample_id })
    }
}

/// The type of the record depends on what is known of the file: `PERF_RECORD_MMAP`
/// if only the name is known. Of a build id the first 20 bytes are written, as Linux
/// does.
impl Encode for Mapping<'_> {
    fn kind(&self) -> RecordType {
        match self.id {
            MappedId::Unknown => RecordType::MMAP,
            MappedId::Inode { .. } | MappedId::BuildId(_) => RecordType::MMAP2,
        }
    }

    fn misc(&self) -> Misc {
        let data = if self.executable { 0 } else { Misc::MMAP_DATA.0 };
        let mode = Misc::USER.0 | data;
        match self.id {
            MappedId::Unknown | MappedId::Inode { .. } => Misc(mode),
            MappedId::BuildId(_) => Misc(mode | Misc::MMAP_BUILD_ID.0),
        }
    }

    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        e.u32(self.task.pid);
        e.u32(self.task.tid);
        for word in [self.addr, self.len, self.offset] {
            e.u64(word);
        }
        match self.id {
            MappedId::Unknown => {}
            MappedId::Inode { major, minor, inode, generation } => {
                e.u32(major);
                e.u32(minor);
                e.u64(inode);
                e.u64(generation);
            }
            MappedId::BuildId(id) => {
                let id = id.get(..BUILD_ID_LEN).unwrap_or(id);
                e.bytes(&[u8::try_from(id.len()).unwrap_or(0), 0, 0, 0]);
                e.bytes(id);
                e.bytes([0; BUILD_ID_LEN].get(id.len()..).unwrap_or_default());
            }
        }
        if self.id != MappedId::Unknown {
            e.u32(if self.executable { PROT_READ | PROT_EXEC } else { PROT_READ });
            e.u32(MAP_PRIVATE);
        }
        let name = self.name.split(|&byte| byte == 0).next().unwrap_or_default();
        e.bytes(name);
        let padding = [0; size_of::<u64>()];
        e.bytes(padding.get(name.len() & 7..).unwrap_or_default());
        self.sample_id.encode(format, e)
    }
}

#[cfg(all(test, feature = "alloc"))]
#[expect(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::record::{Endian, ReadFormat, SampleType};

    fn record(kind: RecordType, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.0.to_le_bytes().to_vec();
        bytes.extend(misc.to_le_bytes());
        bytes.extend(u16::try_from(8 + body.len()).unwrap().to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    const FORMAT: EventFormat = EventFormat {
        sample_type: SampleType::TIME,
        read_format: ReadFormat::empty(),
        flags: crate::record::AttrFlags::SAMPLE_ID_ALL,
        branch_sample_type: crate::record::BranchSampleType::empty(),
    };

    #[test]
    fn a7_a_mapping_says_which_file_by_inode_or_by_build_id() {
        let head = words(&[7 | 8 << 32, 0x40_0000, 0x2000, 0x1000]);
        let tail = [words(&[5]), b"/bin/a\0\0".to_vec(), words(&[0x99])].concat();
        let inode = words(&[8 | 1 << 32, 4711, 3]);
        let bytes = record(RecordType::MMAP2, 2, &[&head[..], &inode, &tail].concat());
        let parsed = Record::parse(&bytes, Endian::Little).unwrap();
        let mapping = Mapping::decode(&parsed, FORMAT).unwrap();
        assert_eq!(mapping.task, Task { pid: 7, tid: 8 });
        assert_eq!((mapping.addr, mapping.len, mapping.offset), (0x40_0000, 0x2000, 0x1000));
        assert_eq!((mapping.name, mapping.executable), (&b"/bin/a"[..], true));
        let id = MappedId::Inode { major: 8, minor: 1, inode: 4711, generation: 3 };
        assert_eq!((mapping.id, mapping.sample_id.time), (id, Some(0x99)));

        let mut build_id = vec![20, 0, 0, 0];
        build_id.extend(1..=20);
        let bytes = record(RecordType::MMAP2, 2 | 1 << 14, &[&head[..], &build_id, &tail].concat());
        let parsed = Record::parse(&bytes, Endian::Little).unwrap();
        let mapping = Mapping::decode(&parsed, FORMAT).unwrap();
        assert_eq!(mapping.id, MappedId::BuildId(&build_id[4..]));
        for len in 0..bytes.len() - 16 {
            let cut = record(RecordType::MMAP2, 2, &bytes[8..8 + len / 8 * 8]);
            let parsed = Record::parse(&cut, Endian::Little).unwrap();
            assert!(Mapping::decode(&parsed, FORMAT).is_err() || len >= 72, "{len}");
        }
    }

    #[test]
    fn a7_the_old_record_says_by_a_flag_whether_it_is_code() {
        let body = [words(&[7 | 8 << 32, 1, 2, 3]), b"[vdso]\0\0".to_vec(), words(&[0])].concat();
        for (misc, executable) in [(2, true), (2 | 1 << 13, false)] {
            let bytes = record(RecordType::MMAP, misc, &body);
            let parsed = Record::parse(&bytes, Endian::Little).unwrap();
            let mapping = Mapping::decode(&parsed, FORMAT).unwrap();
            assert_eq!((mapping.name, mapping.id), (&b"[vdso]"[..], MappedId::Unknown));
            assert_eq!(mapping.executable, executable);
        }
    }

    #[test]
    fn d6_a_mapping_that_is_written_is_read_again() {
        let task = Task { pid: 7, tid: 8 };
        let mut mapping = Mapping::of_code(task, 0x1000..0x3000, b"/bin/a");
        mapping.sample_id.time = Some(0x99);
        mapping.offset = 0x4000;
        let inode = MappedId::Inode { major: 8, minor: 1, inode: 4711, generation: 3 };
        for id in [MappedId::Unknown, inode, MappedId::BuildId(&[7; 20]), MappedId::BuildId(&[9])] {
            for (executable, name) in
                [(true, &b"/bin/a"[..]), (false, b"/bin/seven77"), (true, b"")]
            {
                let mapping = Mapping { id, executable, name, ..mapping };
                for endian in [Endian::Little, Endian::Big] {
                    let mut bytes = Vec::new();
                    mapping.encode(FORMAT, endian, &mut bytes).unwrap();
                    let record = Record::parse(&bytes, endian).unwrap();
                    assert_eq!(Mapping::decode(&record, FORMAT), Ok(mapping));
                }
            }
        }
        let long = Mapping { id: MappedId::BuildId(&[5; 32]), name: b"cut\0off", ..mapping };
        let mut bytes = Vec::new();
        long.encode(FORMAT, Endian::Little, &mut bytes).unwrap();
        let record = Record::parse(&bytes, Endian::Little).unwrap();
        let found = Mapping::decode(&record, FORMAT).unwrap();
        assert_eq!((found.id, found.name), (MappedId::BuildId(&[5; 20]), &b"cut"[..]));
    }
}
