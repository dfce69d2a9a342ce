//! User memory, where faulting is allowed.

use unwind_core::{Memory, ReadError, VirtAddr};

use super::USER_END;

unsafe extern "C" {
    fn copy_user_asm(to: *mut u8, from: *const u8, len: usize) -> u64;
    static copy_user_access: u8;
    static copy_user_failed: u8;
}

/// The running task's memory: absent pages are brought in, which may sleep.
/// Task context only.
///
/// This is the `Memory` of a delivery. [`PagedMemory`] over the
/// [`DirectMap`](super::DirectMap) is the one of an NMI.
///
/// [`PagedMemory`]: unwind_x86::paging::PagedMemory
#[derive(Clone, Copy)]
pub(crate) struct UserMemory;

impl Memory for UserMemory {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        if !is_user(addr.get(), buf.len()) {
            return Err(ReadError::Invalid);
        }
        // SAFETY: `buf` is the kernel's. The source is a user address: if it
        // cannot be read the copy says so.
        let failed = unsafe { copy_user_asm(buf.as_mut_ptr(), addr.get() as *const u8, buf.len()) };
        if failed == 0 { Ok(()) } else { Err(ReadError::Invalid) }
    }
}

/// Writes to the running task's memory. Task context only.
pub(crate) fn copy_to_user(addr: u64, bytes: &[u8]) -> Result<(), ReadError> {
    if !is_user(addr, bytes.len()) {
        return Err(ReadError::Invalid);
    }
    // SAFETY: the target is a user address, no Rust value lives there. If it
    // cannot be written the copy says so.
    let failed = unsafe { copy_user_asm(addr as *mut u8, bytes.as_ptr(), bytes.len()) };
    if failed == 0 { Ok(()) } else { Err(ReadError::Invalid) }
}

fn is_user(addr: u64, len: usize) -> bool {
    addr.checked_add(len as u64).is_some_and(|end| end <= USER_END)
}

/// Whether a page fault at `pc` is that of a copy, and where the copy continues
/// if the page cannot be brought in.
pub(crate) fn is_copy_fault(pc: u64) -> Option<u64> {
    let access = &raw const copy_user_access as u64;
    (pc == access).then_some(&raw const copy_user_failed as u64)
}
