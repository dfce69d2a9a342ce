//! Page tables.

use core::fmt::Write as _;

use unwind_core::{Memory as _, ReadError, VirtAddr};
use unwind_x86::paging::{
    Access, AddressSpace, ControlRegisters, FlatMemory, PagedMemory, PhysAddr, PhysicalMemory,
};

use crate::{Text, seen};

unsafe extern "C" {
    /// Copies from physical memory.
    fn copy_from_physical(addr: u64, to: *mut u8, len: usize) -> i32;
}

pub(crate) struct Physical;

impl PhysicalMemory for Physical {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        // SAFETY: the buffer is as long as is said.
        match unsafe { copy_from_physical(addr.get(), buf.as_mut_ptr(), buf.len()) } {
            0 => Ok(()),
            _ => Err(ReadError::Invalid),
        }
    }
}

/// A translation and a read by the registers of a CPU.
#[unsafe(no_mangle)]
pub fn pages(registers: (u64, u64, u64, u64), bits: u32, on: bool, addr: u64, to: &mut [u8; 300]) {
    let (cr0, cr3, cr4, efer) = registers;
    let space = AddressSpace::from_registers(&ControlRegisters { cr0, cr3, cr4, efer, cpl: bits as u8 })
        .access(if on { Access::User } else { Access::Supervisor })
        .phys_bits(bits)
        .large_pages(on)
        .huge_pages(!on)
        .no_execute(on);
    let addr = VirtAddr::new(addr);
    match space.translate(&mut Physical, addr) {
        Ok(page) => seen((page.locate(addr), page.start(), page.size())),
        Err(fault) => seen((write!(Text(0), "{fault}"), fault.read_error())),
    };
    seen((space.mode(), space.pcid(), space.root()));
    let mut memory = PagedMemory::new(Physical, space);
    seen((memory.read(addr, to), memory.read_u64(addr), memory.last_fault()));
    memory.flush_page(addr);
    memory.switch(space);
    memory.flush();
    seen((memory.read_u32(addr), memory.physical().read(PhysAddr::new(cr3), to)));
}

/// Memory in one slice.
#[unsafe(no_mangle)]
pub fn flat(bytes: &[u8; 8192], len: usize, space: AddressSpace, addr: u64) {
    let ram = FlatMemory::new(bytes.get(..len).unwrap_or_default());
    let mut memory = PagedMemory::<_, 1>::with_tlb(ram, space);
    seen((memory.read_u64(VirtAddr::new(addr)), memory.space().mode()));
}
