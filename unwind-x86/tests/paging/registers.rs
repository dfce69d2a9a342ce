//! Control registers say what the tables are.

use unwind_core::{End, Memory as _, ReadError, StepError, Trace, VirtAddr, Walker};
use unwind_x86::paging::{
    Access, AddressSpace, ControlRegisters, Fault, Level, PagedMemory, PagingMode, PhysAddr,
};
use unwind_x86::{FramePointers, X86_64, X86_64Regs};

use Level::{Pml4, Pt};
use PagingMode::{FiveLevel, FourLevel, Off, Pae, TwoLevel};

use crate::tables::*;

#[test]
fn the_control_registers_select_the_mode() {
    const PG: u64 = 1 << 31;
    const PAE: u64 = 1 << 5;
    const LMA: u64 = 1 << 10;
    let space = |cr0, cr4, efer| {
        AddressSpace::from_registers(&ControlRegisters { cr0, cr3: 0x1000, cr4, efer, cpl: 0 })
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
    let registers = |cr3, cr4, efer| ControlRegisters { cr0: 1 << 31, cr3, cr4, efer, cpl: 3 };
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
    let at_cpl_3 =
        ControlRegisters { cr0: 1 << 31, cr3: 0x9000 | 0x805, cr4, efer: 1 << 10, cpl: 3 };
    let in_kernel = ControlRegisters { cr3: 0x8000 | 0x005, cpl: 0, ..at_cpl_3 };
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

#[test]
fn l5_a_vcpu_reads_what_its_privilege_level_may_read() {
    // A page that is the kernel's alone, and one that is also the user's.
    let mut ram = mapped(&[0x6000 | 3, 0x7000 | TABLE]);
    let registers = ControlRegisters { cr0: 1 << 31, cr3: CR3, cr4: 1 << 5, efer: 1 << 10, cpl: 0 };
    let (kernels, users) = (VirtAddr::new(0x10_0000), VirtAddr::new(0x10_1000));
    for cpl in 0..=3 {
        let space = AddressSpace::from_registers(&ControlRegisters { cpl, ..registers });
        let mut memory = PagedMemory::new(&mut ram, space);
        assert!(memory.read_u64(users).is_ok());
        let read = memory.read_u64(kernels);
        if cpl < 3 {
            assert!(read.is_ok(), "{cpl}");
            continue;
        }
        // Who reads for user code is told that it was this.
        assert_eq!(read, Err(ReadError::Supervisor));
        let fault = memory.last_fault().unwrap();
        assert!(matches!(fault, (addr, Fault::Supervisor { level: Pt, .. }) if addr == kernels));
    }
    // What the host says counts.
    let space = AddressSpace::from_registers(&registers).access(Access::User);
    let refused = space.translate(&mut ram, kernels);
    assert!(matches!(refused, Err(Fault::Supervisor { level: Pt, .. })));
}

#[test]
fn l5_a_walk_that_ends_at_a_supervisors_page_says_so() {
    let mut ram = mapped(&[0x6000 | 3]);
    let registers = ControlRegisters { cr0: 1 << 31, cr3: CR3, cr4: 1 << 5, efer: 1 << 10, cpl: 3 };
    let at = VirtAddr::new(0x10_0008);
    let regs = X86_64Regs::new(0x40_0000, 0x10_0000, 0x10_0000);
    let mut walk = |space: AddressSpace| {
        let mut trace = Trace::<[_; 4]>::new();
        let mut walker = Walker::new(X86_64::FOUR_LEVEL, FramePointers);
        walker.trace(regs, &mut PagedMemory::new(&mut ram, space), &mut trace);
        trace.end()
    };
    let space = AddressSpace::from_registers(&registers);
    let error = ReadError::Supervisor;
    assert_eq!(walk(space), Some(End::Step(StepError::Unreadable { addr: at, error })));
    // As the kernel it reads the zeroes that are there.
    let end = walk(space.access(Access::Supervisor));
    assert!(!matches!(end, Some(End::Step(StepError::Unreadable { .. }))), "{end:?}");
}
