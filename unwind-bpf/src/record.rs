//! What the program writes into its ring: samples, stacks, copies, files whose table it wants.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

use crate::calls::Calls;
use crate::head::{Cookie, End, Fields, Head, Origin};

/// A record of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record<'a> {
    /// A sample.
    Sample(Sample<'a>),
    /// The user stack of the samples with a cookie.
    Stack(Stack<'a>),
    /// The registers and the bytes of such a stack, where tables do not tell its frames.
    Copy(StackCopy<'a>),
    /// What an interpreter has of the thread whose stack comes next.
    Calls(Calls<'a>),
    /// A file with code in which a walk came, and whose table is not there.
    Wanted(Wanted),
}

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Of whom.
    pub origin: Origin,
    /// Of the stack that belongs to it.
    pub cookie: Cookie,
    /// Whether the CPU executed user code.
    pub is_in_user_mode: bool,
    /// The instruction.
    pub pc: u64,
    /// How much was counted for it.
    pub period: u64,
    /// The number that its event was attached with.
    pub event: u64,
    /// The CPU.
    pub cpu: u32,
    /// The kernel's frames, the innermost first.
    pub kernel: Pcs<'a>,
}

/// A user stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack<'a> {
    /// Of whom.
    pub origin: Origin,
    /// Of the samples that it belongs to.
    pub cookie: Cookie,
    /// The frames, the innermost first: a pc, and return addresses.
    pub pcs: Pcs<'a>,
    /// Why there are no more.
    pub end: End,
}

/// The registers of user code and the bytes of its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackCopy<'a> {
    /// Of whom.
    pub origin: Origin,
    /// Of the samples that it belongs to.
    pub cookie: Cookie,
    /// Whether it is 32-bit code.
    pub is_32_bit: bool,
    /// The registers, as the kernel saves them.
    pub registers: Registers<'a>,
    /// What lies at the stack pointer and above.
    pub bytes: &'a [u8],
    /// Whether the stack has more than `bytes`.
    pub is_cut: bool,
    /// What the program could not walk.
    pub end: End,
}

/// A file whose table is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Who has it mapped.
    pub origin: Origin,
    /// Which file it is.
    pub file: FileKey,
    /// The addresses at which it is mapped.
    pub start: u64,
    /// Where these end.
    pub end: u64,
    /// The bytes of the file that are mapped there.
    pub offset: u64,
}

/// A file, as the kernel tells files apart while they are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    inode: u64,
    size: u64,
    /// When it was changed, in ns. A library may be written over while it is mapped.
    changed: u64,
    device: u32,
    generation: u32,
}

/// Addresses of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pcs<'a>(&'a [[u8; 8]]);

impl<'a> Pcs<'a> {
    /// Each.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u64> + 'a {
        self.0.iter().map(|&bytes| u64::from_ne_bytes(bytes))
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Registers of user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers<'a>(&'a [[u8; 8]]);

impl Registers<'_> {
    /// The places of registers in the kernel's `struct pt_regs`, by the numbers of
    /// `enum perf_event_x86_regs`: ax, bx, cx, dx, si, di, bp, sp, ip, flags, cs, ss, four segments which
    /// are not there, r8 to r15.
    const PLACES: [usize; 24] = [
        10,
        5,
        11,
        12,
        13,
        14,
        4,
        19,
        16,
        18,
        17,
        20,
        usize::MAX,
        usize::MAX,
        usize::MAX,
        usize::MAX,
        9,
        8,
        7,
        6,
        3,
        2,
        1,
        0,
    ];

    /// A register by its number in `enum perf_event_x86_regs`. `None` if it is not there.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<u64> {
        let place = *Self::PLACES.get(number)?;
        self.0.get(place).map(|&bytes| u64::from_ne_bytes(bytes))
    }
}

impl<'a> Record<'a> {
    /// Reads a record of the ring. `None` if it is none of this version.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        const REGISTERS: usize = 21;
        let mut fields = Fields(bytes);
        let Head { kind, origin, count, cookie, end, flags } = Head::read(&mut fields)?;
        Some(match kind {
            1 => Self::Sample(Sample {
                origin,
                cookie,
                is_in_user_mode: flags & 1 != 0,
                pc: fields.u64()?,
                period: fields.u64()?,
                event: fields.u64()?,
                cpu: u32::try_from(fields.u64()?).ok()?,
                kernel: Pcs(frames_of(fields.words(count)?)),
            }),
            2 => Self::Stack(Stack { origin, cookie, pcs: Pcs(fields.words(count)?), end }),
            3 => {
                let registers = Registers(fields.words(REGISTERS)?);
                let copied = fields.0;
                Self::Copy(StackCopy {
                    origin,
                    cookie,
                    is_32_bit: flags & 1 != 0,
                    registers,
                    bytes: copied.get(..count)?,
                    is_cut: flags & 2 != 0,
                    end,
                })
            }
            4 => {
                let file = FileKey {
                    inode: fields.u64()?,
                    size: fields.u64()?,
                    changed: fields.u64()?,
                    device: fields.u32()?,
                    generation: fields.u32()?,
                };
                let (start, end, offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
                Self::Wanted(Wanted { origin, file, start, end, offset })
            }
            5 => Self::Calls(Calls::read((origin, cookie, end), count, &mut fields)?),
            _ => return None,
        })
    }
}

/// The frames of a call chain of the kernel, which begins with a mark that they are its own.
fn frames_of(chain: &[[u8; 8]]) -> &[[u8; 8]] {
    /// `PERF_CONTEXT_MAX`: marks are these numbers and the higher ones.
    const MARKS: u64 = 0_u64.wrapping_sub(4095);
    match chain {
        [first, frames @ ..] if u64::from_ne_bytes(*first) >= MARKS => frames,
        frames => frames,
    }
}

/// A device as the kernel numbers it.
fn device_of(metadata: &Metadata) -> u32 {
    (libc::major(metadata.dev()) << 20) | libc::minor(metadata.dev())
}

impl FileKey {
    const VDSO: u64 = u64::MAX;

    /// Whether it is the kernel's own code for user programs (vDSO), which is of no file.
    #[must_use]
    pub const fn is_vdso(&self) -> bool {
        self.inode == Self::VDSO
    }

    /// Whether it is that of 32-bit code.
    #[must_use]
    pub const fn is_vdso_of_32_bit(&self) -> bool {
        self.is_vdso() && self.generation != 0
    }

    /// Whether a file with this metadata may be the one: it has the same size and, if it is of the same
    /// device, the same inode. A file of a layered file system is of another device than what is mapped
    /// of it.
    #[must_use]
    pub fn may_be(&self, metadata: &Metadata) -> bool {
        self.is(metadata) || metadata.len() == self.size && device_of(metadata) != self.device
    }

    /// Whether a file with this metadata is the one, as far as its device, its inode and its size say.
    #[must_use]
    pub fn is(&self, metadata: &Metadata) -> bool {
        let (len, device) = (metadata.len(), device_of(metadata));
        len == self.size && device == self.device && metadata.ino() == self.inode
    }

    /// As the program has it.
    pub(crate) fn bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let words = [self.inode, self.size, self.changed].map(u64::to_ne_bytes);
        let halves = [self.device, self.generation].map(u32::to_ne_bytes);
        let fields = words.into_iter().flatten().chain(halves.into_iter().flatten());
        bytes.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A record with this head and these words after it.
    fn bytes(kind: u32, count: u32, end: u32, flags: u32, words: &[u64]) -> Vec<u8> {
        let head = [kind, 21, 20, count].into_iter().flat_map(u32::to_ne_bytes);
        let ids = [77_u64, 1_000].into_iter().flat_map(u64::to_ne_bytes);
        let rest = [end, flags].into_iter().flat_map(u32::to_ne_bytes);
        let words = words.iter().flat_map(|word| word.to_ne_bytes());
        head.chain(ids).chain(rest).chain(words).collect()
    }

    #[test]
    fn records_are_read_field_by_field() {
        let all = bytes(1, 2, 0, 1, &[0x10, 5, 3, 1, 0x20, 0x30]);
        let Some(Record::Sample(sample)) = Record::parse(&all) else { panic!() };
        assert_eq!((sample.origin.thread, sample.origin.process), (21, 20));
        assert_eq!(sample.origin.time, Duration::from_nanos(1_000));
        assert!(sample.is_in_user_mode);
        let fields = (sample.cookie.0, sample.pc, sample.period, sample.event, sample.cpu);
        assert_eq!(fields, (77, 0x10, 5, 3, 1));
        assert_eq!(sample.kernel.iter().collect::<Vec<_>>(), [0x20, 0x30]);

        let mark = 0_u64.wrapping_sub(128);
        let all = bytes(1, 2, 0, 1, &[0x10, 5, 3, 1, mark, 0x30]);
        let Some(Record::Sample(sample)) = Record::parse(&all) else { panic!() };
        assert_eq!(sample.kernel.iter().collect::<Vec<_>>(), [0x30]);

        let all = bytes(2, 1, 2, 0, &[0x40]);
        let Some(Record::Stack(stack)) = Record::parse(&all) else { panic!() };
        assert_eq!((stack.end, stack.pcs.iter().collect()), (End::Depth, vec![0x40]));

        let words: Vec<u64> = (0..21).chain([7, 8]).collect();
        let all = bytes(3, 12, 12, 3, &words);
        let Some(Record::Copy(copy)) = Record::parse(&all) else { panic!() };
        assert_eq!((copy.end, copy.is_32_bit, copy.is_cut), (End::NoRow, true, true));
        assert_eq!(copy.bytes, [7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0]);
        // By the numbers of perf: ax, sp, ip, r8, r15; segments are not there.
        let registers = [0, 7, 8, 16, 23, 12, 24].map(|number| copy.registers.get(number));
        assert_eq!(registers, [Some(10), Some(19), Some(16), Some(9), Some(0), None, None]);

        let all = bytes(4, 0, 0, 0, &[u64::MAX, 9, 8, 1 << 32, 0x1000, 0x3000, 0x2000]);
        let Some(Record::Wanted(wanted)) = Record::parse(&all) else { panic!() };
        assert!(wanted.file.is_vdso() && wanted.file.is_vdso_of_32_bit());
        assert!(!FileKey { generation: 0, ..wanted.file }.is_vdso_of_32_bit());
        assert_eq!((wanted.start, wanted.end, wanted.offset), (0x1000, 0x3000, 0x2000));
        assert_eq!(wanted.file.bytes()[..], all[40..72]);
    }

    #[test]
    fn a_file_is_known_by_its_size_and_its_inode() {
        let metadata = std::fs::metadata("/proc/self/exe").unwrap();
        let (inode, size, device) = (metadata.ino(), metadata.len(), device_of(&metadata));
        let key = |inode, size, device| FileKey { inode, size, changed: 0, device, generation: 0 };
        assert!(key(inode, size, device).may_be(&metadata));
        assert!(!key(inode, size + 1, device).may_be(&metadata));
        assert!(!key(inode + 1, size, device).may_be(&metadata));
        assert!(key(inode + 1, size, device + 1).may_be(&metadata));
        assert!(key(inode, size, device).is(&metadata));
        assert!(!key(inode, size, device + 1).is(&metadata));
    }

    #[test]
    fn what_is_cut_or_of_another_version_is_no_record() {
        for (kind, count, words) in [(1, 2, 6), (2, 1, 1), (3, 12, 23), (4, 0, 7)] {
            let all = bytes(kind, count, 1, 0, &vec![0; words]);
            assert!(Record::parse(&all).is_some(), "{kind}");
            for len in 0..all.len() {
                let cut = Record::parse(all.get(..len).unwrap());
                // Room after what a copy has filled is no part of it.
                assert!(cut.is_none() || kind == 3 && len >= 40 + 168 + 12, "{kind} {len}");
            }
        }
        assert_eq!(Record::parse(&bytes(6, 0, 0, 0, &[0; 30])), None);
        // More than there is.
        assert_eq!(Record::parse(&bytes(2, u32::MAX, 1, 0, &[0; 30])), None);
        assert_eq!(End::of(99), End::Other(99));
        assert_eq!(End::of(0), End::Other(0));
    }
}
