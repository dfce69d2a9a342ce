//! Page walks of every mode over tables laid out by hand.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::std_instead_of_alloc,
    reason = "tests"
)]

use std::sync::Arc;

use unwind_core::{End, Memory, ReadError, StepError, VirtAddr, Walker};
use unwind_x86::paging::{
    Access, AddressSpace, ControlRegisters, Fault, FlatMemory, Level, PagedMemory, PagingMode,
    PhysAddr, PhysicalMemory, VmMemory,
};
use unwind_x86::{FramePointers, Ia32, Ia32Regs, X86_64, X86_64Regs};

use PagingMode::{FiveLevel, FourLevel, Off, Pae, TwoLevel};

/// Physical memory, and how many reads there were.
#[derive(Clone)]
struct Ram {
    bytes: Vec<u8>,
    reads: u32,
}

impl Ram {
    fn new(pages: usize) -> Self {
        Self { bytes: vec![0; pages << 12], reads: 0 }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes entries of the size that `mode` has.
    fn entries(mut self, mode: PagingMode, entries: &[(u64, u64)]) -> Self {
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

/// A walk that reaches a page: the entries on the way, the address, the page.
struct Walk {
    mode: PagingMode,
    entries: &'static [(u64, u64)],
    levels: &'static [Level],
    addr: u64,
    page: (u64, u64),
}

const CR3: u64 = 0x1000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Present, writable, for users; and a page above the page table.
const TABLE: u64 = 0x7;
const LARGE: u64 = 0x87;

use Level::{Pd, Pdpt, Pml4, Pml5, Pt};

/// Every mode with every size of page. Entry numbers are all different, so
/// that no index can be taken from the wrong bits.
const WALKS: &[Walk] = &[
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

impl Walk {
    fn ram(&self) -> Ram {
        Ram::new(8).entries(self.mode, self.entries)
    }

    /// The memory with other bits in the entry of one level.
    fn ram_with(&self, index: usize, change: impl Fn(u64) -> u64) -> Ram {
        let (at, entry) = self.entries[index];
        self.ram().entries(self.mode, &[(at, change(entry))])
    }

    fn space(&self) -> AddressSpace {
        AddressSpace::new(self.mode, CR3)
    }

    /// The name of the case in messages.
    fn name(&self, index: usize) -> String {
        format!("{:?} of {:?}, {}", self.levels[index], self.mode, self.page.1)
    }
}

#[test]
fn every_mode_reaches_every_size_of_page() {
    for walk in WALKS {
        let mut ram = walk.ram();
        let page = walk.space().translate(&mut ram, VirtAddr::new(walk.addr)).unwrap();
        assert_eq!((page.start().get(), page.size()), walk.page, "{:?}", walk.mode);
        let offset = walk.addr & (walk.page.1 - 1);
        assert_eq!(page.locate(VirtAddr::new(walk.addr)).get(), walk.page.0 + offset);
        assert_eq!(usize::try_from(ram.reads).unwrap(), walk.levels.len(), "one read a level");
    }
}

#[test]
fn without_paging_an_address_is_the_physical_one() {
    let mut ram = Ram::new(2);
    ram.put(0x1234, b"here");
    let mut memory = PagedMemory::new(ram, AddressSpace::new(Off, 0xffff_ffff));
    let mut buf = [0; 4];
    assert_eq!((memory.read(VirtAddr::new(0x1234), &mut buf), &buf), (Ok(()), b"here"));
    assert_eq!(memory.read(VirtAddr::new(0x2000), &mut buf), Err(ReadError::Invalid));
}

#[test]
fn an_absent_entry_of_any_level_is_not_resident() {
    for walk in WALKS {
        for (index, &(at, _)) in walk.entries.iter().enumerate() {
            // Whatever else an absent entry holds.
            let mut ram = walk.ram_with(index, |_| 0xffff_fffe);
            let fault = walk.space().translate(&mut ram, VirtAddr::new(walk.addr)).unwrap_err();
            let level = walk.levels[index];
            assert_eq!(fault, Fault::NotPresent { level, at: PhysAddr::new(at) });
            assert_eq!(fault.read_error(), ReadError::NotResident);
        }
    }
}

#[test]
fn an_entry_that_keeps_users_out_is_refused_at_every_level() {
    for walk in WALKS {
        for (index, &(at, _)) in walk.entries.iter().enumerate() {
            let level = walk.levels[index];
            let mut ram = walk.ram_with(index, |entry| entry & !4);
            let addr = VirtAddr::new(walk.addr);
            let user = walk.space().translate(&mut ram, addr);
            if (walk.mode, level) == (Pae, Pdpt) {
                assert!(user.is_ok(), "{}: there are no rights", walk.name(index));
                continue;
            }
            assert_eq!(user, Err(Fault::Supervisor { level, at: PhysAddr::new(at) }));
            assert_eq!(user.unwrap_err().read_error(), ReadError::Invalid);
            let space = walk.space().access(Access::Supervisor);
            assert!(space.translate(&mut ram, addr).is_ok(), "{}", walk.name(index));
        }
    }
}

#[test]
fn a_kernels_page_tells_users_nothing_about_what_is_below_it() {
    let walk = WALKS.iter().find(|walk| walk.levels == [Pml4, Pdpt, Pd, Pt]).unwrap();
    // No page below, or a table beyond memory: the answer is the same.
    for below in [0, 0x7f_ffff_f000 | TABLE] {
        let mut ram = walk.ram_with(0, |entry| entry & !4).entries(FourLevel, &[(0x2808, below)]);
        let fault = walk.space().translate(&mut ram, VirtAddr::new(walk.addr)).unwrap_err();
        assert_eq!(fault, Fault::Supervisor { level: Pml4, at: PhysAddr::new(walk.entries[0].0) });
        assert_eq!(ram.reads, 1);
    }
}

/// The reserved bits of each kind of entry on a CPU with 40 physical address
/// bits and no-execute, by the tables of the manual.
fn reserved(mode: PagingMode, level: Level, is_page: bool) -> u64 {
    match (mode, level, is_page) {
        (TwoLevel, Pd, true) => 1 << 21,
        (TwoLevel, ..) => 0,
        (Pae, Pdpt, _) => 0xffff_ff00_0000_01e6,
        (Pae, Pd, true) => 0x7fff_ff00_001f_e000,
        (Pae, ..) => 0x7fff_ff00_0000_0000,
        (_, Pml5 | Pml4, _) => 0x000f_ff00_0000_0080,
        (_, Pdpt, true) => 0x000f_ff00_3fff_e000,
        (_, Pd, true) => 0x000f_ff00_001f_e000,
        _ => 0x000f_ff00_0000_0000,
    }
}

#[test]
fn each_reserved_bit_of_each_kind_of_entry_is_a_fault_and_no_other_bit_is() {
    for walk in WALKS {
        let bits = if walk.mode == TwoLevel { 32 } else { 64 };
        for (index, &(at, entry)) in walk.entries.iter().enumerate() {
            let level = walk.levels[index];
            let is_page = index + 1 == walk.entries.len();
            let space = walk.space().phys_bits(40);
            // The bit that makes a page of a table is another kind of entry.
            let is_kind = |bit| bit == 0x80 && reserved(walk.mode, level, is_page) & bit == 0;
            let clear = (0..bits).map(|bit| 1_u64 << bit).filter(|bit| entry & bit == 0);
            for bit in clear.filter(|&bit| !is_kind(bit)) {
                let mut ram = walk.ram_with(index, |entry| entry | bit);
                let found = space.translate(&mut ram, VirtAddr::new(walk.addr));
                let at = PhysAddr::new(at);
                if reserved(walk.mode, level, is_page) & bit != 0 {
                    let fault = Fault::Reserved { level, at, bits: bit };
                    assert_eq!(found, Err(fault), "{} bit {bit:#x}", walk.name(index));
                    assert_eq!(fault.read_error(), ReadError::Invalid);
                } else {
                    let is_reserved =
                        matches!(found, Err(Fault::Reserved { at: there, .. }) if there == at);
                    assert!(!is_reserved, "{} bit {bit:#x}", walk.name(index));
                }
            }
        }
    }
}

#[test]
fn the_width_of_physical_addresses_moves_the_reserved_bits() {
    let addr = |walk: &Walk| VirtAddr::new(walk.addr);
    let four = WALKS.iter().find(|walk| walk.levels == [Pml4, Pdpt, Pd, Pt]).unwrap();
    for bit in 32..52 {
        let mut ram = four.ram_with(3, |entry| entry | 1 << bit);
        for width in [0, 31, 32, 36, 46, 52, 53, u32::MAX] {
            let found = four.space().phys_bits(width).translate(&mut ram, addr(four));
            assert_eq!(found.is_ok(), bit < width.clamp(32, 52), "bit {bit} of {width}");
        }
    }
    // PSE-36: the address bits above the width, none at all for 32.
    let large = WALKS.iter().find(|walk| walk.levels == [Pd]).unwrap();
    for bit in 32..40 {
        let mut ram = large.ram_with(0, |entry| entry | 1 << (bit - 19));
        for width in [32, 36, 40, 52] {
            let found = large.space().phys_bits(width).translate(&mut ram, addr(large));
            assert_eq!(found.is_ok(), bit < width, "bit {bit} of {width}");
        }
    }
}

#[test]
fn no_execute_is_of_no_interest_where_it_is_on_and_reserved_where_it_is_off() {
    for walk in WALKS.iter().filter(|walk| walk.mode != TwoLevel) {
        for index in 0..walk.entries.len() {
            let mut ram = walk.ram_with(index, |entry| entry | 1 << 63);
            let on = walk.space().translate(&mut ram, VirtAddr::new(walk.addr));
            let pae_root = (walk.mode, walk.levels[index]) == (Pae, Pdpt);
            assert_eq!(on.is_ok(), !pae_root, "{}", walk.name(index));
            let space = walk.space().no_execute(false);
            let off = space.translate(&mut ram, VirtAddr::new(walk.addr)).unwrap_err();
            assert!(matches!(off, Fault::Reserved { .. }), "{}", walk.name(index));
        }
    }
}

#[test]
fn a_page_that_the_cpu_cannot_have_is_a_table_or_reserved() {
    // Without CR4.PSE the bit means nothing: a table is at that address.
    let mut ram =
        Ram::new(8).entries(TwoLevel, &[(0x1000 + 4, 0x2000 | LARGE), (0x2000, 0x3000 | TABLE)]);
    let space = AddressSpace::new(TwoLevel, CR3).large_pages(false);
    let page = space.translate(&mut ram, VirtAddr::new(1 << 22)).unwrap();
    assert_eq!(page.start(), PhysAddr::new(0x3000));
    // Without 1-GiB pages it is reserved.
    for walk in WALKS.iter().filter(|walk| walk.page.1 == GIB) {
        let space = walk.space().huge_pages(false);
        let fault = space.translate(&mut walk.ram(), VirtAddr::new(walk.addr)).unwrap_err();
        assert!(matches!(fault, Fault::Reserved { level: Pdpt, bits: 0x80, .. }), "{fault}");
    }
}

#[test]
fn a_table_or_page_beyond_memory_is_invalid() {
    for walk in WALKS {
        for index in 0..walk.entries.len() {
            // Past the 8 pages that there are, aligned for every size.
            let mut ram = walk.ram_with(index, |entry| entry & 0xfff | 0xc000_0000);
            let found = walk.space().translate(&mut ram, VirtAddr::new(walk.addr));
            let Some(&level) = walk.levels.get(index + 1) else {
                let mut memory = PagedMemory::new(ram, walk.space());
                let read = memory.read_u32(VirtAddr::new(walk.addr & !0xfff));
                assert_eq!(read, Err(ReadError::Invalid));
                let (addr, fault) = memory.last_fault().unwrap();
                assert_eq!(addr.get(), walk.addr & !0xfff);
                assert!(matches!(fault, Fault::Page { error: ReadError::Invalid, .. }));
                continue;
            };
            let fault = found.unwrap_err();
            let is_table = matches!(fault, Fault::Table { level: there, error, .. }
                if there == level && error == ReadError::Invalid);
            assert!(is_table, "{}: {fault}", walk.name(index));
            assert_eq!(fault.read_error(), ReadError::Invalid);
        }
        let space = AddressSpace::new(walk.mode, 0xffff_f000);
        let fault = space.translate(&mut walk.ram(), VirtAddr::new(walk.addr)).unwrap_err();
        assert!(matches!(fault, Fault::Table { level, .. } if level == walk.levels[0]));
    }
}

#[test]
fn memory_that_the_host_does_not_have_at_hand_is_not_resident() {
    /// Of each walk's tables and page, one is away.
    struct Away(Ram, u64);
    impl PhysicalMemory for Away {
        fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
            match addr.get() >> 12 == self.1 >> 12 {
                true => Err(ReadError::NotResident),
                false => self.0.read(addr, buf),
            }
        }
    }
    for walk in WALKS.iter().filter(|walk| walk.page.1 == 4 * KIB) {
        let places = walk.entries.iter().map(|entry| entry.0).chain([walk.page.0]);
        for away in places {
            let mut memory = PagedMemory::new(Away(walk.ram(), away), walk.space());
            let read = memory.read_u32(VirtAddr::new(walk.addr));
            assert_eq!(read, Err(ReadError::NotResident), "{:?} {away:#x}", walk.mode);
        }
    }
}

#[test]
fn tables_that_name_themselves_are_tables_like_others() {
    // Entry 0x1fe of the root is the root itself: its entries show up as
    // pages, one level less for each time that it is used.
    let root = [(0x1000 + 8 * 0x1fe, 0x1000 | TABLE), (0x1000, 0x2000 | TABLE)];
    let part = 0x1fe_u64;
    for (mode, levels) in [(FourLevel, 4), (FiveLevel, 5)] {
        let mut ram = Ram::new(4).entries(mode, &root);
        let top = if mode == FourLevel { 0xffff << 48 } else { 0xfe << 56 };
        let all = (0..levels).fold(top, |addr, level| addr | part << (12 + 9 * level));
        let space = AddressSpace::new(mode, CR3);
        let page = space.translate(&mut ram, VirtAddr::new(all)).unwrap();
        assert_eq!((page.start(), ram.reads), (PhysAddr::new(0x1000), levels));
        // The last index 0: the table that the root's entry 0 names.
        let page = space.translate(&mut ram, VirtAddr::new(all & !(0x1ff << 12))).unwrap();
        assert_eq!((page.start(), ram.reads), (PhysAddr::new(0x2000), 2 * levels));
    }
    // And where every entry names its own table.
    let ram = vec![0x1000 | TABLE; 0x400];
    let bytes = ram.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    let mut memory = PagedMemory::new(Ram { bytes, reads: 0 }, AddressSpace::new(FiveLevel, CR3));
    assert_eq!(memory.read_u64(VirtAddr::new(0x12_3456_7800)), Ok(0x1000 | TABLE));
    assert_eq!(memory.physical().reads, 6);
}

#[test]
fn addresses_that_the_mode_does_not_have_are_invalid_and_reads_do_not_wrap() {
    let refused = [
        (Off, 1 << 32),
        (TwoLevel, 1 << 32),
        (Pae, u64::MAX),
        (FourLevel, 0x8000_0000_0000),
        (FourLevel, 0xffff_7fff_ffff_ffff),
        (FiveLevel, 1 << 56),
        (FiveLevel, 0xfeff_ffff_ffff_ffff),
    ];
    for (mode, addr) in refused {
        let mut ram = Ram::new(4);
        let addr = VirtAddr::new(addr);
        let fault = AddressSpace::new(mode, CR3).translate(&mut ram, addr).unwrap_err();
        assert_eq!((fault, ram.reads), (Fault::NotLinear(addr), 0), "{mode:?}");
        assert_eq!(fault.read_error(), ReadError::Invalid);
    }
    // Every entry of the root is the root, so the last page is there, and the
    // first too.
    let entries: Vec<(u64, u64)> = (0..512).map(|n| (0x1000 + 8 * n, 0x1000 | TABLE)).collect();
    let ram = Ram::new(2).entries(FourLevel, &entries);
    let mut memory = PagedMemory::new(ram, AddressSpace::new(FourLevel, CR3));
    assert_eq!(memory.read_u64(VirtAddr::new(u64::MAX - 7)), Ok(0x1000 | TABLE));
    assert_eq!(memory.read_u64(VirtAddr::new(u64::MAX - 6)), Err(ReadError::Invalid));
    // 32 bits: 4-MiB pages everywhere.
    let entries: Vec<(u64, u64)> = (0..1024).map(|n| (0x1000 + 4 * n, LARGE)).collect();
    let ram = Ram::new(1 << 10).entries(TwoLevel, &entries);
    let mut memory = PagedMemory::new(ram, AddressSpace::new(TwoLevel, CR3));
    assert_eq!(memory.read_u64(VirtAddr::new(0xffff_fff8)), Ok(0));
    assert_eq!(memory.read_u64(VirtAddr::new(0xffff_fff9)), Err(ReadError::Invalid));
}

/// 4-level tables that map the page at `0x10_0000 + n << 12` to `pages[n]`.
fn mapped(pages: &[u64]) -> Ram {
    let mut ram = Ram::new(16).entries(
        FourLevel,
        &[(0x1000, 0x2000 | TABLE), (0x2000, 0x3000 | TABLE), (0x3000, 0x4000 | TABLE)],
    );
    for (index, page) in (0..).zip(pages) {
        ram = ram.entries(FourLevel, &[(0x4000 + 8 * (0x100 + index), *page)]);
    }
    ram
}

#[test]
fn a_read_crosses_pages_that_lie_apart_and_is_all_or_nothing() {
    let mut ram = mapped(&[0x9000 | TABLE, 0x6000 | TABLE, 0x7000 | TABLE, 0]);
    ram.put(0x9ffe, &[1, 2]);
    ram.put(0x6000, &[3; 4096]);
    ram.put(0x7000, &[4, 5]);
    let mut memory = PagedMemory::new(ram, AddressSpace::new(FourLevel, CR3));
    let mut buf = [0; 4100];
    memory.read(VirtAddr::new(0x10_0ffe), &mut buf).unwrap();
    assert_eq!((&buf[..2], &buf[4098..]), (&[1, 2][..], &[4, 5][..]));
    assert_eq!(buf[2..4098], [3; 4096]);

    let absent = memory.read(VirtAddr::new(0x10_2fff), &mut [0; 2]);
    assert_eq!(absent, Err(ReadError::NotResident));
    let (addr, fault) = memory.last_fault().unwrap();
    assert_eq!(addr, VirtAddr::new(0x10_3000));
    assert_eq!(fault, Fault::NotPresent { level: Pt, at: PhysAddr::new(0x4818) });
    assert_eq!(memory.read(VirtAddr::new(0x10_3000), &mut []), Ok(()), "nothing is read");
}

#[test]
fn translations_hold_until_they_are_flushed_and_faults_do_not() {
    let addr = VirtAddr::new(0x10_0000);
    let other = VirtAddr::new(0x10_1000);
    let mut ram = mapped(&[0x6000 | TABLE, 0]);
    ram.put(0x6000, &[1; 8]);
    ram.put(0x7000, &[2; 8]);
    let mut memory = PagedMemory::new(ram, AddressSpace::new(FourLevel, CR3));
    let one = u64::from_le_bytes([1; 8]);
    let two = u64::from_le_bytes([2; 8]);
    assert_eq!((memory.read_u64(addr), memory.physical().reads), (Ok(one), 5));
    assert_eq!((memory.read_u64(addr), memory.physical().reads), (Ok(one), 6), "no tables");

    // The guest maps both pages to the other frame.
    assert_eq!(memory.read_u64(other), Err(ReadError::NotResident));
    memory.physical().put(0x4800, &(0x7000 | TABLE).to_le_bytes());
    memory.physical().put(0x4808, &(0x7000 | TABLE).to_le_bytes());
    assert_eq!(memory.read_u64(other), Ok(two), "an absent page is looked up again");
    assert_eq!(memory.read_u64(addr), Ok(one));
    memory.flush_page(other);
    assert_eq!(memory.read_u64(addr), Ok(one));
    memory.flush_page(VirtAddr::new(0x10_0fff));
    assert_eq!(memory.read_u64(addr), Ok(two));

    memory.physical().put(0x4800, &(0x6000 | TABLE).to_le_bytes());
    memory.flush();
    assert_eq!(memory.read_u64(addr), Ok(one));
    // Another space at the same address.
    memory.switch(AddressSpace::new(Off, 0));
    assert_eq!(memory.read_u64(VirtAddr::new(0x7000)), Ok(two));
    assert_eq!(memory.read_u64(addr), Err(ReadError::Invalid));
}

#[test]
fn the_control_registers_select_the_mode() {
    const PG: u64 = 1 << 31;
    const PAE: u64 = 1 << 5;
    const LMA: u64 = 1 << 10;
    let space = |cr0, cr4, efer| {
        AddressSpace::from_registers(&ControlRegisters { cr0, cr3: 0x1000, cr4, efer })
    };
    assert_eq!(space(1, PAE, LMA).mode(), Off);
    assert_eq!(space(PG, 0, 0).mode(), TwoLevel);
    assert_eq!(space(PG, PAE, 0).mode(), Pae);
    assert_eq!(space(PG, PAE | 1 << 12, 0).mode(), Pae, "LA57 is for long mode");
    assert_eq!(space(PG, PAE, LMA).mode(), FourLevel);
    assert_eq!(space(PG, PAE | 1 << 12, LMA).mode(), FiveLevel);
    // PSE and NXE decide about entries.
    let mut ram = Ram::new(4).entries(TwoLevel, &[(0x1000, 0x0040_0000 | LARGE)]);
    assert!(space(PG, 1 << 4, 0).translate(&mut ram, VirtAddr::new(0)).is_ok());
    assert!(space(PG, 0, 0).translate(&mut ram, VirtAddr::new(0)).is_err());
    let mut ram = Ram::new(4)
        .entries(FourLevel, &[(0x1000, 1 << 63 | 0x2000 | TABLE), (0x2000, 0x4000_0000 | LARGE)]);
    assert!(space(PG, PAE, LMA | 1 << 11).translate(&mut ram, VirtAddr::new(0)).is_ok());
    assert!(space(PG, PAE, LMA).translate(&mut ram, VirtAddr::new(0)).is_err());
}

#[test]
fn the_root_is_the_address_in_cr3_and_nothing_else() {
    let registers = |cr3, cr4, efer| ControlRegisters { cr0: 1 << 31, cr3, cr4, efer };
    let long = registers(0x8000_0000_1234_5abc, 1 << 5 | 1 << 17, 1 << 10);
    let space = AddressSpace::from_registers(&long);
    assert_eq!((space.root(), space.pcid()), (PhysAddr::new(0x1234_5000), Some(0xabc)));
    // Without PCIDs those are caching bits; bits 61 and 62 are of address
    // masking.
    let space = AddressSpace::from_registers(&registers(0x6000_0000_1234_5018, 1 << 5, 1 << 10));
    assert_eq!((space.root(), space.pcid()), (PhysAddr::new(0x1234_5000), None));
    // 32-byte aligned in PAE, 4 KiB without.
    let space = AddressSpace::from_registers(&registers(0xf_1234_5abc, 1 << 5 | 1 << 17, 0));
    assert_eq!((space.root(), space.pcid()), (PhysAddr::new(0x1234_5aa0), None));
    let space = AddressSpace::from_registers(&registers(0xf_1234_5abc, 0, 0));
    assert_eq!(space.root(), PhysAddr::new(0x1234_5000));
}

#[test]
fn an_address_space_of_kpti_shows_users_what_the_users_root_has() {
    // The kernel's root at 0x8000, the user's 4 KiB above it, bit 12 of CR3.
    let mut ram = mapped(&[0x6000 | TABLE]);
    ram = ram.entries(FourLevel, &[(0x9000, 0x2000 | TABLE), (0x8000, 0x2000 | TABLE)]);
    ram = ram.entries(FourLevel, &[(0x8000 + 8 * 0x1ff, 0x2000 | 3)]);
    let cr4 = 1 << 5 | 1 << 17;
    let at_cpl_3 = ControlRegisters { cr0: 1 << 31, cr3: 0x9000 | 0x805, cr4, efer: 1 << 10 };
    let in_kernel = ControlRegisters { cr3: 0x8000 | 0x005, ..at_cpl_3 };
    for registers in [at_cpl_3, in_kernel] {
        let space = AddressSpace::from_registers(&registers);
        assert!(space.translate(&mut ram, VirtAddr::new(0x10_0000)).is_ok());
    }
    let kernel = VirtAddr::new(0xffff_ff80_0010_0000);
    let translate = |registers, access, ram: &mut Ram| {
        AddressSpace::from_registers(registers).access(access).translate(ram, kernel)
    };
    let unmapped = translate(&at_cpl_3, Access::Supervisor, &mut ram).unwrap_err();
    assert!(matches!(unmapped, Fault::NotPresent { level: Pml4, .. }));
    assert!(translate(&in_kernel, Access::Supervisor, &mut ram).is_ok());
    let refused = translate(&in_kernel, Access::User, &mut ram).unwrap_err();
    assert!(matches!(refused, Fault::Supervisor { level: Pml4, .. }));
}

/// Two frames by frame pointers, the second on another page.
fn words(ram: &mut Ram, at: u64, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    ram.put(at, &bytes);
}

#[test]
fn a_walk_through_page_tables_ends_at_an_absent_page_and_goes_on_when_it_is_there() {
    let mut ram = mapped(&[0x9000 | TABLE, 0x6000]);
    words(&mut ram, 0x9ff0, &[0x10_1010, 0x40_1234]);
    words(&mut ram, 0x6010, &[0, 0]);
    let mut memory = PagedMemory::new(ram, AddressSpace::new(FourLevel, CR3));
    let regs = X86_64Regs::new(0x40_1000, 0x10_0f00, 0x10_0ff0);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, FramePointers);
    let mut walk = |memory: &mut PagedMemory<Ram>| {
        let mut frames = walker.frames(regs, memory);
        let pcs: Vec<u64> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
        (pcs, frames.end().unwrap())
    };
    let addr = VirtAddr::new(0x10_1018);
    let absent = End::Step(StepError::Unreadable { addr, error: ReadError::NotResident });
    assert_eq!(walk(&mut memory), (vec![0x40_1000, 0x40_1234], absent));
    assert!(absent.is_retryable());

    memory.physical().put(0x4808, &(0x6000 | TABLE).to_le_bytes());
    let root = End::Step(StepError::ZeroReturnAddress { cfa: 0x10_1020 });
    assert_eq!(walk(&mut memory), (vec![0x40_1000, 0x40_1234], root));
}

#[test]
fn a_32_bit_guest_is_walked_through_its_own_tables() {
    let mut ram = Ram::new(8).entries(
        TwoLevel,
        &[(0x1000 + 4 * 0x300, 0x2000 | TABLE), (0x2000, 0x3000 | TABLE), (0x2004, 0x5000 | TABLE)],
    );
    // ebp = 0xc0000ffc: the saved ebp is on one page, the return address on
    // the next.
    ram.put(0x3ffc, &0xc000_1010_u32.to_le_bytes());
    ram.put(0x5000, &0x0804_8123_u32.to_le_bytes());
    ram.put(0x5010, &[0; 8]);
    let mut memory = PagedMemory::new(ram, AddressSpace::new(TwoLevel, CR3));
    let root = End::Step(StepError::ZeroReturnAddress { cfa: 0xc000_1018 });
    let mut walker = Walker::new(Ia32::FLAT, FramePointers);
    let mut frames =
        walker.frames(Ia32Regs::new(0x0804_8000, 0xc000_0f00, 0xc000_0ffc), &mut memory);
    let pcs: Vec<u64> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    assert_eq!((pcs, frames.end()), (vec![0x0804_8000, 0x0804_8123], Some(root)));
}

#[test]
fn guest_memory_of_rust_vmm_is_read_with_its_holes() {
    use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
    let ranges = [(GuestAddress(0), 0x4000), (GuestAddress(1 << 32), 0x2000)];
    let guest = Arc::new(GuestMemoryMmap::<()>::from_ranges(&ranges).unwrap());
    // Entries 0 to 2 of the last table: above the hole, in it, behind the end.
    let entries = [
        (0x1000, 0x2000 | TABLE),
        (0x2000, 0x3000 | TABLE),
        (0x3000, 1 << 32 | TABLE),
        (1 << 32, 1 << 32 | 0x1000 | TABLE),
        (1 << 32 | 8, 0x8000 | TABLE),
        (1 << 32 | 16, 2 << 32 | TABLE),
    ];
    for (at, entry) in entries {
        guest.write_obj(entry, GuestAddress(at)).unwrap();
    }
    guest.write_slice(b"in the guest", GuestAddress(1 << 32 | 0x1ff4)).unwrap();
    let space = AddressSpace::new(FourLevel, CR3);
    let mut memory = PagedMemory::new(VmMemory::new(&*guest), space);
    let mut buf = [0; 12];
    assert_eq!((memory.read(VirtAddr::new(0xff4), &mut buf), &buf), (Ok(()), b"in the guest"));
    for addr in [0x1000, 0x2000, 0xff8] {
        assert_eq!(
            memory.read(VirtAddr::new(addr), &mut buf),
            Err(ReadError::Invalid),
            "{addr:#x}"
        );
    }
    assert_eq!(memory.read(VirtAddr::new(0x3000), &mut buf), Err(ReadError::NotResident));
}
