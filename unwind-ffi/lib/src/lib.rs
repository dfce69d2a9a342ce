//! `unwind-ffi` as one archive.
#![no_std]

#[cfg(feature = "planted")]
mod planted;

pub use unwind_ffi_c::*;

unsafe extern "C" {
    /// Defined nowhere: nothing in the archive names it, so that a host links, or else its linker says
    /// that some code can panic. Builds with assertions name it; their host defines it.
    fn unwind_must_not_panic() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it takes nothing, and whoever defines it does not return.
    unsafe { unwind_must_not_panic() }
}
