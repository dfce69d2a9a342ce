//! All of physical memory, where the boot page tables put it.

use unwind_core::ReadError;
use unwind_x86::paging::{PhysAddr, PhysicalMemory};

use super::PAGE;

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
        // Other CPUs write meanwhile: an entry of a table is read as a whole.
        match <&mut [u8; 8]>::try_from(&mut *buf) {
            Ok(word) if addr.get().is_multiple_of(8) => {
                let from = pointer(addr.get()).cast::<u64>();
                // SAFETY: inside of memory, all of which is mapped, and aligned.
                *word = unsafe { from.read_volatile() }.to_le_bytes();
            }
            _ => {
                for (at, byte) in (addr.get()..).zip(buf) {
                    // SAFETY: inside of memory, all of which is mapped.
                    *byte = unsafe { pointer(at).read_volatile() };
                }
            }
        }
        Ok(())
    }
}

/// Appends bytes to the memory after that of the kernel, of which there are `area` bytes:
/// the machine outside reads it when the run is over. `at` is where the last ones ended.
pub(crate) fn append_to_area(area: u64, at: u64, bytes: &[u8]) {
    assert!(at + bytes.len() as u64 <= area, "the area of the records is full");
    for (at, byte) in (RAM_LEN + at..).zip(bytes) {
        // SAFETY: the machine has this memory, its start says, and nothing else uses it.
        unsafe { pointer(at).write(*byte) }
    }
}

/// Writes to one of the first pages of memory, which nothing else uses.
pub(crate) fn write_low_page(number: u8, bytes: &[u8]) {
    assert!(bytes.len() as u64 <= PAGE, "more than a page");
    for (at, byte) in (u64::from(number) * PAGE..).zip(bytes) {
        // SAFETY: in the page, below all that the kernel and its frames take.
        unsafe { pointer(at).write_volatile(*byte) }
    }
}
