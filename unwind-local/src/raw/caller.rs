//! Backtraces that begin in the function which asks for them.
//!
//! A few instructions keep the registers that calls preserve, so that no frame of this library is
//! walked. They are read as they were stored: a CPU that loads sixteen bytes of two stores that are
//! still under way waits for both.

use core::mem::MaybeUninit;
use core::slice;

use super::registers::{CallerRegisters, Start};
use crate::addresses::{Backtrace, fill};
use crate::call_with_registers;

/// A backtrace of the function that this is called by, without a frame in between.
#[inline(always)]
pub(crate) fn backtrace_of_caller(out: &mut [usize]) -> Backtrace {
    let mut found = MaybeUninit::uninit();
    // SAFETY: there is room for as many addresses, and for the result.
    unsafe { called(out.as_mut_ptr(), out.len(), &raw mut found) };
    // SAFETY: it was written.
    unsafe { found.assume_init() }
}

#[unsafe(naked)]
unsafe extern "C" fn called(out: *mut usize, len: usize, found: *mut MaybeUninit<Backtrace>) {
    call_with_registers!(write_backtrace)
}

/// # Safety
///
/// There is room for as many addresses and for the result. The registers are those of a frame
/// on this thread's stack.
unsafe extern "C" fn write_backtrace(
    out: *mut usize,
    len: usize,
    found: &mut MaybeUninit<Backtrace>,
    registers: &CallerRegisters,
) {
    // SAFETY: as the caller promises.
    let out = unsafe { slice::from_raw_parts_mut(out, len) };
    // SAFETY: likewise.
    let mut start = unsafe { Start::of_caller(registers) };
    found.write(fill(&mut start, 0, out));
}
