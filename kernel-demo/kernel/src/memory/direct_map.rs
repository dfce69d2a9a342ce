//! All of physical memory, where the boot page tables put it.

use unwind_core::ReadError;
use unwind_x86::paging::{PhysAddr, PhysicalMemory};

/// Physical address zero.
const BASE: u64 = 0xffff_ffff_8000_0000;

/// Bytes of memory with which the machine is started.
pub(crate) const RAM_LEN: u64 = 64 << 20;

/// Where a physical address can be used.
pub(super) const fn pointer(phys: u64) -> *mut u8 {
    (BASE + phys) as *mut u8
}

/// The physical address of a static of the kernel.
pub(super) fn phys_of<T>(item: *const T) -> u64 {
    item as u64 - BASE
}

/// Physical memory for page walks that must not fault: an NMI reads user
/// memory through it, and finds out what is absent by looking.
#[derive(Clone, Copy)]
pub(crate) struct DirectMap;

impl PhysicalMemory for DirectMap {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let end = addr.get().checked_add(buf.len() as u64).ok_or(ReadError::Invalid)?;
        if end > RAM_LEN {
            return Err(ReadError::Invalid);
        }
        // SAFETY: inside of memory, all of which is mapped, and not `buf`, which
        // is a Rust value. There is one CPU, and it does not write meanwhile.
        unsafe { pointer(addr.get()).copy_to(buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }
}
