//! Reads of memory by linear address.

use std::sync::Arc;

use unwind_core::{Memory, ReadError, VirtAddr};
use unwind_x86::paging::{AddressSpace, Fault, Level, PagedMemory, PagingMode, PhysAddr, VmMemory};

use Level::Pt;
use PagingMode::{FiveLevel, FourLevel, Off, Pae, TwoLevel};

use crate::tables::*;

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
fn guest_memory_of_rust_vmm_is_read_with_its_holes() {
    use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
    let ranges = [(GuestAddress(0), 0x4000), (GuestAddress(1 << 32), 0x2000)];
    let guest = Arc::new(GuestMemoryMmap::<()>::from_ranges(&ranges).unwrap());
    // Entries 0 to 2 of the last table: above the hole, in it, after the end.
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
    let physical = VmMemory::new(&*guest);
    assert!(format!("{:?}", physical.clone()).starts_with("VmMemory"));
    let mut lent = physical;
    let mut memory = PagedMemory::new(&mut lent, space);
    assert_eq!(*memory.space(), space);
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

/// Memory of a guest that the host keeps, and has not mapped.
#[derive(Debug)]
struct Unmapped;

impl vm_memory::GuestMemoryRegion for Unmapped {
    type B = ();
    fn len(&self) -> vm_memory::GuestUsize {
        0x1000
    }
    fn start_addr(&self) -> vm_memory::GuestAddress {
        vm_memory::GuestAddress(0x1000)
    }
    fn bitmap(&self) {}
}

impl vm_memory::GuestMemoryRegionBytes for Unmapped {}

#[test]
fn s3_guest_memory_that_the_host_has_not_mapped_may_come_and_what_is_none_does_not() {
    use unwind_x86::paging::PhysicalMemory as _;
    let guest = vm_memory::GuestRegionCollection::from_regions(vec![Unmapped]).unwrap();
    let mut physical = VmMemory::new(&guest);
    let mut buf = [0; 8];
    let absent = physical.read(PhysAddr::new(0x1800), &mut buf);
    assert_eq!(absent, Err(ReadError::NotResident));
    for outside in [0, 0x2000] {
        let none = physical.read(PhysAddr::new(outside), &mut buf);
        assert_eq!(none, Err(ReadError::Invalid), "{outside:#x}");
    }
}
