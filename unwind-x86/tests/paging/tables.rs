//! Page tables in memory.

use unwind_core::ReadError;
use unwind_x86::paging::{AddressSpace, FlatMemory, Level, PagingMode, PhysAddr, PhysicalMemory};

use Level::{Pd, Pdpt, Pml4, Pml5, Pt};
use PagingMode::{FiveLevel, FourLevel, Pae, TwoLevel};

/// Physical memory, and how many reads there were.
#[derive(Clone)]
pub struct Ram {
    pub bytes: Vec<u8>,
    pub reads: u32,
}

impl Ram {
    pub fn new(pages: usize) -> Self {
        Self { bytes: vec![0; pages << 12], reads: 0 }
    }

    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes entries of the size that `mode` has.
    pub fn entries(mut self, mode: PagingMode, entries: &[(u64, u64)]) -> Self {
        for &(at, entry) in entries {
            match mode {
                TwoLevel => self.put(at, &u32::try_from(entry).unwrap().to_le_bytes()),
                _ => self.put(at, &entry.to_le_bytes()),
            }
        }
        self
    }
}

impl PhysicalMemory for Ram {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        FlatMemory::new(&self.bytes).read(addr, buf)
    }
}

pub const CR3: u64 = 0x1000;
pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
/// Present, writable, for users; and a page above the page table.
pub const TABLE: u64 = 0x7;
pub const LARGE: u64 = 0x87;

/// 4-level tables that map the page at `0x10_0000 + n << 12` to `pages[n]`.
pub fn mapped(pages: &[u64]) -> Ram {
    let mut ram = Ram::new(16).entries(
        FourLevel,
        &[(0x1000, 0x2000 | TABLE), (0x2000, 0x3000 | TABLE), (0x3000, 0x4000 | TABLE)],
    );
    for (index, page) in (0..).zip(pages) {
        ram = ram.entries(FourLevel, &[(0x4000 + 8 * (0x100 + index), *page)]);
    }
    ram
}

/// A walk that reaches a page: the entries on the way, the address, the page.
pub struct Walk {
    pub mode: PagingMode,
    pub entries: &'static [(u64, u64)],
    pub levels: &'static [Level],
    pub addr: u64,
    pub page: (u64, u64),
}

impl Walk {
    pub fn ram(&self) -> Ram {
        Ram::new(8).entries(self.mode, self.entries)
    }

    /// The memory with other bits in the entry of one level.
    pub fn ram_with(&self, index: usize, change: impl Fn(u64) -> u64) -> Ram {
        let (at, entry) = self.entries[index];
        self.ram().entries(self.mode, &[(at, change(entry))])
    }

    pub fn space(&self) -> AddressSpace {
        AddressSpace::new(self.mode, CR3)
    }

    /// The name of the case in messages.
    pub fn name(&self, index: usize) -> String {
        format!("{:?} of {:?}, {}", self.levels[index], self.mode, self.page.1)
    }
}

/// Every mode with every size of page. Entry numbers are all different, so
/// that no index can be taken from the wrong bits.
pub const WALKS: &[Walk] = &[
    Walk {
        mode: TwoLevel,
        entries: &[(0x1000 + 4 * 0x201, 0x2000 | TABLE), (0x2000 + 4 * 0x302, 0x3000 | TABLE)],
        levels: &[Pd, Pt],
        addr: 0x201 << 22 | 0x302 << 12 | 0x123,
        page: (0x3000, 4 * KIB),
    },
    Walk {
        mode: TwoLevel,
        entries: &[(0x1000 + 4 * 0x201, 0x0040_0000 | LARGE)],
        levels: &[Pd],
        addr: 0x201 << 22 | 0x12_3456,
        page: (0x0040_0000, 4 * MIB),
    },
    // PSE-36: bits 13 to 20 are bits 32 to 39 of the address.
    Walk {
        mode: TwoLevel,
        entries: &[(0x1000 + 4 * 0x201, 0x0040_0000 | 0xa5 << 13 | LARGE)],
        levels: &[Pd],
        addr: 0x201 << 22 | 0x12_3456,
        page: (0xa5_0040_0000, 4 * MIB),
    },
    Walk {
        mode: Pae,
        entries: &[
            // No rights in this table: the bits are reserved.
            (0x1000 + 8 * 2, 0x2000 | 1),
            (0x2000 + 8 * 0x101, 0x3000 | TABLE),
            (0x3000 + 8 * 0x1a2, 0x4000 | TABLE),
        ],
        levels: &[Pdpt, Pd, Pt],
        addr: 2 << 30 | 0x101 << 21 | 0x1a2 << 12 | 0x123,
        page: (0x4000, 4 * KIB),
    },
    Walk {
        mode: Pae,
        entries: &[(0x1000 + 8 * 3, 0x2000 | 1), (0x2000 + 8 * 0x101, 0x0020_0000 | LARGE)],
        levels: &[Pdpt, Pd],
        addr: 3 << 30 | 0x101 << 21 | 0x1_2345,
        page: (0x0020_0000, 2 * MIB),
    },
    Walk {
        mode: FourLevel,
        entries: &[
            (0x1000 + 8 * 0x0ff, 0x2000 | TABLE),
            (0x2000 + 8 * 0x101, 0x3000 | TABLE),
            (0x3000 + 8 * 0x1a2, 0x4000 | TABLE),
            (0x4000 + 8 * 0x033, 0x5000 | TABLE),
        ],
        levels: &[Pml4, Pdpt, Pd, Pt],
        addr: 0x0ff << 39 | 0x101 << 30 | 0x1a2 << 21 | 0x033 << 12 | 0x123,
        page: (0x5000, 4 * KIB),
    },
    Walk {
        mode: FourLevel,
        entries: &[
            (0x1000 + 8 * 0x0ff, 0x2000 | TABLE),
            (0x2000 + 8 * 0x101, 0x3000 | TABLE),
            (0x3000 + 8 * 0x1a2, 0x12_3460_0000 | LARGE),
        ],
        levels: &[Pml4, Pdpt, Pd],
        addr: 0x0ff << 39 | 0x101 << 30 | 0x1a2 << 21 | 0x1_2345,
        page: (0x12_3460_0000, 2 * MIB),
    },
    // The highest half.
    Walk {
        mode: FourLevel,
        entries: &[
            (0x1000 + 8 * 0x1ff, 0x2000 | TABLE),
            (0x2000 + 8 * 0x101, 0x7_4000_0000 | LARGE),
        ],
        levels: &[Pml4, Pdpt],
        addr: 0xffff << 48 | 0x1ff << 39 | 0x101 << 30 | 0x123_4567,
        page: (0x7_4000_0000, GIB),
    },
    Walk {
        mode: FiveLevel,
        entries: &[
            (0x1000 + 8 * 0x0fe, 0x2000 | TABLE),
            (0x2000 + 8 * 0x101, 0x3000 | TABLE),
            (0x3000 + 8 * 0x1a2, 0x4000 | TABLE),
            (0x4000 + 8 * 0x033, 0x5000 | TABLE),
            (0x5000 + 8 * 0x0c4, 0x6000 | TABLE),
        ],
        levels: &[Pml5, Pml4, Pdpt, Pd, Pt],
        addr: 0x0fe << 48 | 0x101 << 39 | 0x1a2 << 30 | 0x033 << 21 | 0x0c4 << 12 | 0x123,
        page: (0x6000, 4 * KIB),
    },
    Walk {
        mode: FiveLevel,
        entries: &[
            (0x1000 + 8 * 0x0fe, 0x2000 | TABLE),
            (0x2000 + 8 * 0x101, 0x3000 | TABLE),
            (0x3000 + 8 * 0x1a2, 0x4000 | TABLE),
            (0x4000 + 8 * 0x033, 0x60_0000 | LARGE),
        ],
        levels: &[Pml5, Pml4, Pdpt, Pd],
        addr: 0x0fe << 48 | 0x101 << 39 | 0x1a2 << 30 | 0x033 << 21 | 0x1_2345,
        page: (0x60_0000, 2 * MIB),
    },
    Walk {
        mode: FiveLevel,
        entries: &[
            (0x1000 + 8 * 0x1fe, 0x2000 | TABLE),
            (0x2000 + 8 * 0x101, 0x3000 | TABLE),
            (0x3000 + 8 * 0x1a2, 0x4000_0000 | LARGE),
        ],
        levels: &[Pml5, Pml4, Pdpt],
        addr: 0xfe << 56 | 0x1fe << 48 | 0x101 << 39 | 0x1a2 << 30 | 0x123_4567,
        page: (0x4000_0000, GIB),
    },
];
