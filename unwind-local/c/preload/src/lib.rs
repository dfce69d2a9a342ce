//! `backtrace` of the C library and `_Unwind_Backtrace` of libgcc by `unwind-local`, for a
//! program that is started with `LD_PRELOAD`. Unwinding of exceptions stays libgcc's.
#![no_std]

#[path = "../../shared/fill.rs"]
mod fill;
mod libgcc;

use core::ffi::{c_int, c_void};

use fill::fill;
use unwind_local::{Cursor, End};

/// Writes at most `size` return addresses of the callers, innermost first, and returns how
/// many.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn backtrace(addresses: *mut *mut c_void, size: c_int) -> c_int {
    unwind_local::call_with_registers!(fill)
}

/// The marker of our contexts, where libgcc's have the address of a register.
const MARK: u64 = 0x756e_7769_6e64_6c63;

/// What a callback gets of a frame, to hand it to the functions below.
#[derive(Debug)]
#[repr(C)]
struct Context {
    mark: u64,
    ip: u64,
    cfa: u64,
    is_exact: bool,
    cursor: *const Cursor,
}

/// `_Unwind_Reason_Code`: the callback broke the walk, or nothing more is known.
const FATAL: c_int = 3;
const END_OF_STACK: c_int = 5;

type Callback = unsafe extern "C" fn(*mut Context, *mut c_void) -> c_int;

/// Calls a function for each frame from the caller's on, and once more with an address of
/// zero after the outermost one, as libgcc does, while the function returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn _Unwind_Backtrace(call: Callback, argument: *mut c_void) -> c_int {
    // SAFETY: this function does not return meanwhile.
    let mut cursor = unsafe { Cursor::here() };
    while cursor.step() {
        let (Some(pc), Some(cfa)) = (cursor.pc(), cursor.sp()) else { break };
        let (ip, is_exact, cursor) = (pc.addr().get(), pc.is_exact(), &raw const cursor);
        let mut context = Context { mark: MARK, ip, cfa, is_exact, cursor };
        // SAFETY: as the caller promises.
        if unsafe { call(&raw mut context, argument) } != 0 {
            return FATAL;
        }
    }
    if matches!(cursor.end(), Some(End::Outermost | End::ZeroReturnAddress)) {
        let cursor = &raw const cursor;
        let mut context = Context { mark: MARK, ip: 0, cfa: 0, is_exact: false, cursor };
        // SAFETY: as the caller promises.
        if unsafe { call(&raw mut context, argument) } != 0 {
            return FATAL;
        }
    }
    END_OF_STACK
}

/// Our context; `None` if it is one of libgcc's.
///
/// # Safety
///
/// It is one or the other.
unsafe fn ours<'c>(context: *const Context) -> Option<&'c Context> {
    // SAFETY: as the caller promises. The first word of both can be read.
    let mark = unsafe { context.cast::<u64>().read() };
    // SAFETY: it is ours.
    (mark == MARK).then(|| unsafe { &*context })
}

/// The address of a frame.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Unwind_GetIP(context: *const Context) -> u64 {
    // SAFETY: as the caller promises.
    match unsafe { ours(context) } {
        Some(context) => context.ip,
        // SAFETY: likewise.
        None => unsafe { libgcc::GET_IP.call(context.cast()) },
    }
}

/// The address of a frame, and whether it is that of an instruction that has not run yet.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Unwind_GetIPInfo(context: *const Context, exact: *mut c_int) -> u64 {
    // SAFETY: as the caller promises.
    match unsafe { ours(context) } {
        Some(context) => {
            // SAFETY: likewise.
            unsafe { exact.write(c_int::from(context.is_exact)) };
            context.ip
        }
        // SAFETY: likewise.
        None => unsafe { libgcc::GET_IP_INFO.call_with(context.cast(), exact.cast()) },
    }
}

/// The stack pointer of a frame at its call.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Unwind_GetCFA(context: *const Context) -> u64 {
    // SAFETY: as the caller promises.
    match unsafe { ours(context) } {
        Some(context) => context.cfa,
        // SAFETY: likewise.
        None => unsafe { libgcc::GET_CFA.call(context.cast()) },
    }
}

/// Where the function of a frame begins; zero if that is not known.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Unwind_GetRegionStart(context: *const Context) -> u64 {
    // SAFETY: as the caller promises.
    match unsafe { ours(context) } {
        Some(context) => {
            // SAFETY: the walk that made it waits for the callback to return.
            let function = unsafe { &*context.cursor }.function();
            function.map_or(0, |function| function.start)
        }
        // SAFETY: likewise.
        None => unsafe { libgcc::GET_REGION_START.call(context.cast()) },
    }
}

/// What the exception handler of a frame reads: none is told.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Unwind_GetLanguageSpecificData(context: *const Context) -> u64 {
    // SAFETY: as the caller promises.
    match unsafe { ours(context) } {
        Some(_) => 0,
        // SAFETY: likewise.
        None => unsafe { libgcc::GET_LANGUAGE_SPECIFIC_DATA.call(context.cast()) },
    }
}

extern "C" fn prepare() {
    libgcc::find();
    unwind_local::prepare_for_glibc();
}

/// Before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;

/// No entry point can panic, so this is not linked.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it takes nothing.
    unsafe { libc::abort() }
}
