//! One of each thing that must not be in the objects.

use core::arch::naked_asm;

/// A panic.
#[unsafe(no_mangle)]
pub extern "C" fn planted_panic(bytes: &[u8; 4], at: usize) -> u8 {
    bytes[at]
}

/// An indirect call.
#[unsafe(no_mangle)]
pub extern "C" fn planted_call(function: extern "C" fn() -> u32) -> u32 {
    function().wrapping_add(1)
}

/// An access below the stack pointer.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn planted_red_zone() {
    naked_asm!("mov qword ptr [rsp - 8], rdi", "ret")
}

/// A register of SSE: pxor xmm0, xmm0.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn planted_sse() {
    naked_asm!(".byte 0x66, 0x0f, 0xef, 0xc0", "ret")
}

unsafe extern "C" {
    fn planted_outside();
}

/// A function of someone else.
#[unsafe(no_mangle)]
pub extern "C" fn planted_import() {
    // SAFETY: never called.
    unsafe { planted_outside() }
}
