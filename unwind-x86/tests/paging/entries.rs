//! What an entry of each kind and level means.

use unwind_core::{Memory, ReadError, VirtAddr};
use unwind_x86::paging::{
    Access, AddressSpace, Fault, Level, PagedMemory, PagingMode, PhysAddr, PhysicalMemory,
};

use Level::{Pd, Pdpt, Pml4, Pml5, Pt};
use PagingMode::{FiveLevel, FourLevel, Pae, TwoLevel};

use crate::tables::*;

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
            assert_eq!(user.unwrap_err().read_error(), ReadError::Supervisor);
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
