//! Every entry point of the five libraries as a kernel would link it.
//!
//! The panic handler calls a function that exists nowhere, so the archive
//! names it if any of the code can still panic; `run` looks for it. The parts
//! that allocate (`write` and `cfi` of the SFrame library, `alloc` of the perf
//! library) are not here: a collection that cannot grow panics.
//!
//! Each function takes what it works on from outside, so that nothing is known
//! of it when it is compiled.
#![no_std]

mod branch_record;
mod deferred;
mod guest;
mod pages;
mod per_cpu;
mod records;
mod table;
mod task_data;
mod trace_gate;
mod walk;

use core::hint::black_box;

use unwind_core::{Memory, ReadError, VirtAddr};

unsafe extern "C" {
    /// Never defined.
    fn unwinder_must_not_panic() -> !;

    /// Copies from the target's memory.
    fn copy_from_target(addr: u64, to: *mut u8, len: usize) -> i32;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: not callable: nothing that names this function links.
    unsafe { unwinder_must_not_panic() }
}

/// Memory that someone else reads.
struct Target;

impl Memory for Target {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        // SAFETY: the buffer is as long as is said.
        match unsafe { copy_from_target(addr.get(), buf.as_mut_ptr(), buf.len()) } {
            0 => Ok(()),
            1 => Err(ReadError::NotResident),
            _ => Err(ReadError::Invalid),
        }
    }
}

/// Text that goes nowhere, for what errors say.
struct Text(usize);

impl core::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.0 = self.0.wrapping_add(black_box(text).len());
        Ok(())
    }
}

/// Uses a value, in a way that nothing is known of.
fn seen<T>(value: T) -> usize {
    let _ = black_box(value);
    0
}

/// What must be found.
#[cfg(feature = "planted")]
#[unsafe(no_mangle)]
pub fn planted(bytes: &[u8; 4], at: usize) -> u8 {
    bytes[at]
}
