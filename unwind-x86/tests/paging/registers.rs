//! Control registers say what the tables are.

use unwind_core::VirtAddr;
use unwind_x86::paging::{
    Access, AddressSpace, ControlRegisters, Fault, Level, PagingMode, PhysAddr,
};

use Level::Pml4;
use PagingMode::{FiveLevel, FourLevel, Off, Pae, TwoLevel};

use crate::tables::*;

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
