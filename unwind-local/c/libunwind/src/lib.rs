//! The part of libunwind's interface by which programs walk their own stack, with its symbols
//! on x86-64: a `libunwind.so.8` for programs that were linked with that one.
//!
//! All functions are async-signal-safe, but for `get_proc_name`, which asks `dladdr`.
//!
//! Walks of other processes, changes of registers and `unw_resume` are not here: programs
//! that need them do not start with this library.
#![no_std]

mod context;
mod cursor;
mod error;
#[path = "../../shared/fill.rs"]
mod fill;
mod names;
mod settings;

/// No entry point can panic, so this is not linked.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it takes nothing.
    unsafe { libc::abort() }
}
