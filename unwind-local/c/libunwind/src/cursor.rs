//! `unw_cursor_t`: the functions that walk.

use core::ffi::{c_int, c_void};
use core::mem::{align_of, size_of};

use unwind_local::{Cursor, DwarfReg};

use crate::error::{Error, of_end};
use crate::fill::fill;

/// The memory that a program has for a cursor, of which less is used.
#[repr(C)]
pub struct UnwCursor([u64; 127]);

const _: () = assert!(size_of::<Cursor>() <= size_of::<UnwCursor>());
const _: () = assert!(align_of::<Cursor>() <= align_of::<UnwCursor>());

/// The numbers of registers are DWARF's; these are libunwind's own.
const IP: c_int = 16;
const CFA: c_int = 17;
const SP: u8 = 7;

/// # Safety
///
/// As the functions below: the cursor was made by `init_local`, and its frame is on the
/// stack of this thread.
pub(crate) unsafe fn cursor<'c>(memory: *mut UnwCursor) -> Option<&'c mut Cursor> {
    // SAFETY: as the caller promises.
    unsafe { memory.cast::<Cursor>().as_mut() }
}

/// A function under both of its names: programs use the first, or with a generic library of
/// several targets the second.
macro_rules! exported {
    ($($(#[$doc:meta])* $local:literal, $generic:literal:
        fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        const _: () = {
            $(#[$doc])*
            #[unsafe(export_name = $local)]
            unsafe extern "C" fn local($($argument: $type),*) -> $result {
                // SAFETY: as the caller promises.
                unsafe { $name($($argument),*) }
            }

            $(#[$doc])*
            #[unsafe(export_name = $generic)]
            unsafe extern "C" fn generic($($argument: $type),*) -> $result {
                // SAFETY: as the caller promises.
                unsafe { $name($($argument),*) }
            }
        };
    )* };
}
pub(crate) use exported;

exported! {
    /// Begins a walk at a context of this thread.
    "_ULx86_64_init_local", "_Ux86_64_init_local":
        fn init_local(memory: *mut UnwCursor, context: *const libc::ucontext_t) -> c_int;
    /// The same. Whether the context is a signal's need not be known.
    "_ULx86_64_init_local2", "_Ux86_64_init_local2":
        fn init_local2(
            memory: *mut UnwCursor, context: *const libc::ucontext_t, flags: c_int
        ) -> c_int;
    /// Continues to the caller: above zero if there is one, zero at the end.
    "_ULx86_64_step", "_Ux86_64_step":
        fn step(memory: *mut UnwCursor) -> c_int;
    /// A register of the frame.
    "_ULx86_64_get_reg", "_Ux86_64_get_reg":
        fn get_reg(memory: *mut UnwCursor, register: c_int, value: *mut u64) -> c_int;
    /// Above zero if the frame is a signal trampoline.
    "_ULx86_64_is_signal_frame", "_Ux86_64_is_signal_frame":
        fn is_signal_frame(memory: *mut UnwCursor) -> c_int;
}

#[inline(never)]
unsafe fn init_local(memory: *mut UnwCursor, context: *const libc::ucontext_t) -> c_int {
    // SAFETY: as the caller promises.
    let Some(context) = (unsafe { context.as_ref() }) else { return Error::BadValue.result() };
    // SAFETY: likewise.
    let cursor = unsafe { Cursor::of(context) };
    // SAFETY: there is room for it.
    unsafe { memory.cast::<Cursor>().write(cursor) };
    0
}

#[inline(never)]
unsafe fn init_local2(
    memory: *mut UnwCursor,
    context: *const libc::ucontext_t,
    flags: c_int,
) -> c_int {
    match flags {
        // SAFETY: as the caller promises.
        0 | 1 => unsafe { init_local(memory, context) },
        _ => Error::BadValue.result(),
    }
}

#[inline(never)]
unsafe fn step(memory: *mut UnwCursor) -> c_int {
    // SAFETY: as the caller promises.
    let Some(cursor) = (unsafe { cursor(memory) }) else { return Error::BadValue.result() };
    match cursor.step() {
        true => 1,
        false => cursor.end().map_or(0, of_end),
    }
}

#[inline(never)]
unsafe fn get_reg(memory: *mut UnwCursor, register: c_int, value: *mut u64) -> c_int {
    // SAFETY: as the caller promises.
    let Some(cursor) = (unsafe { cursor(memory) }) else { return Error::BadValue.result() };
    let found = match register {
        // After the last frame it is zero.
        IP => Some(cursor.pc().map_or(0, |pc| pc.addr().get())),
        CFA => cursor.sp(),
        _ => match u8::try_from(register) {
            Ok(SP) => cursor.sp(),
            Ok(number @ 0..=15) => cursor.register(DwarfReg(number)),
            _ => None,
        },
    };
    let Some(found) = found else { return Error::BadRegister.result() };
    // SAFETY: there is room for it.
    unsafe { value.write(found) };
    0
}

#[inline(never)]
unsafe fn is_signal_frame(memory: *mut UnwCursor) -> c_int {
    // SAFETY: as the caller promises.
    let Some(cursor) = (unsafe { cursor(memory) }) else { return Error::BadValue.result() };
    c_int::from(cursor.is_signal_trampoline())
}

/// Writes at most `size` return addresses of the callers, innermost first, and returns how
/// many.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn unw_backtrace(addresses: *mut *mut c_void, size: c_int) -> c_int {
    unwind_local::call_with_registers!(fill)
}
