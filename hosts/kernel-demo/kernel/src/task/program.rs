//! The user programs: ELF files inside of the kernel, as on a disk.

use arrayvec::ArrayVec;

use unwind_core::{Module, TableLocation, VirtAddr};

use crate::descriptors::{USER_CODE_32, USER_CODE_64, USER_DATA};
use crate::frame::Frame;
use crate::memory::{Backing, PAGE, Region, Space};
use crate::task::schedule::sleep;

macro_rules! programs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A program.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Program {
            $($(#[$doc])* $variant,)*
        }

        impl Program {
            /// The program that tasks know by this number.
            pub(crate) fn from_number(number: u64) -> Option<Self> {
                [$(Self::$variant,)*].into_iter().find(|program| *program as u64 == number)
            }

            const fn file(self) -> (&'static str, &'static [u8]) {
                match self {
                    $(Self::$variant => {
                        ($name, include_bytes!(concat!(env!("OUT_DIR"), "/", $name)))
                    })*
                }
            }
        }
    };
}

programs! {
    /// 64-bit code with frame pointers.
    FramePointers = "frame-pointers",
    /// 64-bit code without frame pointers, but with an SFrame table.
    Tables = "tables",
    /// 32-bit code with frame pointers.
    Compat = "compat",
    /// System calls from a signal handler, on top of one that was interrupted.
    Nested = "nested",
    /// Ends from deep down, and is started again.
    Exits = "exits",
    /// Executes another one from deep down.
    Executes = "executes",
    /// Forks from deep down, and waits for its child.
    Forks = "forks",
    /// Reads where nothing is, and is killed.
    Crashes = "crashes",
    /// The other one, which executes the first.
    Executed = "executed",
    /// Calls for the branch unit.
    Records = "records",
}

/// A program that is about to start.
pub(super) struct Loaded {
    pub(super) name: &'static str,
    pub(super) space: Space,
    /// The code that an SFrame table of the program covers.
    pub(super) modules: ArrayVec<Module<TableLocation>, 4>,
    pub(super) registers: Frame,
}

const STACK_LEN: u64 = 64 << 10;

/// Where the stack of a program ends: the stack pointer when it is empty.
pub(crate) const fn stack_end(is_compat: bool) -> u64 {
    if is_compat { 0xfff0_0000 } else { 0x7fff_ffff_0000 }
}

impl Program {
    /// Reads the program's headers from the disk, which takes time. `None` if
    /// it is not a program, or memory is short.
    pub(super) fn load(self) -> Option<Loaded> {
        sleep(1);
        let (name, bytes) = self.file();
        let file = Elf { bytes, is_64: *bytes.get(4)? == 2 };
        let end = stack_end(!file.is_64);
        let word = if file.is_64 { 8 } else { 4 };
        let mut regions = ArrayVec::new();
        for segment in file.segments().filter(|segment| segment.kind == Segment::LOAD) {
            regions.try_push(segment.region(bytes)?).ok()?;
        }
        let (start, backing) = (end - STACK_LEN, Backing::Zero);
        regions.try_push(Region { start, end, writable: true, backing }).ok()?;
        let registers = Frame {
            rip: file.entry()?,
            cs: if file.is_64 { USER_CODE_64 } else { USER_CODE_32 },
            ss: USER_DATA,
            // Interrupts on.
            rflags: 0x202,
            // As after a call: a return address of zero is on the stack.
            rsp: end - word,
            ..Frame::default()
        };
        Some(Loaded { name, space: Space::new(regions)?, modules: file.modules(), registers })
    }
}

/// An ELF file that the build made: what is not there ends the load.
#[derive(Clone, Copy)]
struct Elf {
    bytes: &'static [u8],
    is_64: bool,
}

/// A program header.
#[derive(Clone, Copy)]
struct Segment {
    kind: u64,
    flags: u64,
    offset: u64,
    addr: u64,
    file_len: u64,
    len: u64,
}

impl Segment {
    const LOAD: u64 = 1;
    /// `PT_GNU_SFRAME`.
    const SFRAME: u64 = 0x6474_e554;
    const EXECUTABLE: u64 = 1;
    const WRITABLE: u64 = 2;

    fn region(&self, bytes: &'static [u8]) -> Option<Region> {
        let start = usize::try_from(self.offset).ok()?;
        let bytes = bytes.get(start..)?.get(..usize::try_from(self.file_len).ok()?)?;
        Some(Region {
            start: self.addr & !(PAGE - 1),
            end: (self.addr + self.len).next_multiple_of(PAGE),
            writable: self.flags & Self::WRITABLE != 0,
            backing: Backing::Image { bytes, addr: self.addr },
        })
    }
}

impl Elf {
    /// A little-endian number of `len` bytes.
    fn number(&self, at: u64, len: u64) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let bytes = self.bytes.get(at..)?.get(..usize::try_from(len).ok()?)?;
        Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// A field that is as wide as an address, by its places in either class.
    fn wide(&self, base: u64, at_64: u64, at_32: u64) -> Option<u64> {
        if self.is_64 { self.number(base + at_64, 8) } else { self.number(base + at_32, 4) }
    }

    fn entry(&self) -> Option<u64> {
        self.wide(0, 24, 24)
    }

    fn segments(self) -> impl Iterator<Item = Segment> {
        let (start, count) =
            (self.wide(0, 32, 28), self.number(if self.is_64 { 56 } else { 44 }, 2));
        let len = if self.is_64 { 56 } else { 32 };
        (0..count.unwrap_or(0)).filter_map(move |number| {
            let at = start? + number * len;
            Some(Segment {
                kind: self.number(at, 4)?,
                flags: self.number(at + if self.is_64 { 4 } else { 24 }, 4)?,
                offset: self.wide(at, 8, 4)?,
                addr: self.wide(at, 16, 8)?,
                file_len: self.wide(at, 32, 16)?,
                len: self.wide(at, 40, 20)?,
            })
        })
    }

    /// The executable segments, if there is an SFrame table.
    fn modules(self) -> ArrayVec<Module<TableLocation>, 4> {
        let table = self.segments().find(|segment| segment.kind == Segment::SFRAME);
        let Some(table) = table else { return ArrayVec::new() };
        let table = TableLocation { addr: VirtAddr::new(table.addr), len: table.len, id: None };
        self.segments()
            .filter(|segment| {
                segment.kind == Segment::LOAD && segment.flags & Segment::EXECUTABLE != 0
            })
            .map(|segment| {
                let end = segment.addr + segment.len;
                let text = VirtAddr::new(segment.addr)..VirtAddr::new(end);
                Module { text, table }
            })
            .take(4)
            .collect()
    }
}
