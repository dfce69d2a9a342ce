//! `unwind-local` for C.
#![no_std]

use core::ffi::{c_char, c_int, c_void};
use core::ops::ControlFlow;
use core::{ptr, slice};

use unwind_local::{Backtrace, CallerRegisters, CodeTable, End, ProgramCode, TraceFrame};

/// Why a walk has no more frames.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct unwind_local_end {
    /// 1: the outermost frame, by its table. 2: the outermost frame, whose return address is
    /// zero. 3: no room for more, or 1,024 frames, which end each walk. 4: nothing tells of the
    /// code. 5: not walkable. 6: a malformed table. 33 to 47: a step failed. Numbers stay the same
    /// in later versions.
    pub code: u8,
    /// The addresses are all frames up to the outermost one, by its table, and no guess led
    /// to any.
    pub complete: bool,
}

/// A frame, and how it was found.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct unwind_local_frame {
    /// The address: a return address unless bit 3 of `provenance` is set.
    pub address: usize,
    /// Bits 0 to 2: by 0 registers, 1 a table, 2 `.eh_frame`, 3 a frame pointer,
    /// 4 instructions, 5 a signal's context. Bit 3: the interrupted address itself. Bit 4:
    /// after a failure. Bit 5: after a trampoline. Bit 6: callers may be missing before it.
    /// Bit 7: the frame pointer was taken as unchanged.
    pub provenance: u8,
}

/// Makes walks fast: until then they keep no rows. Once, early in the program; with musl also
/// after each dlopen, as the objects are listed that are loaded at that time. In a program that is
/// linked by -static nothing tells of the code before.
///
/// NOT async-signal-safe: it locks, allocates, and loads and unloads an object.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_local_prepare() {
    unwind_local::prepare();
}

/// Whether walks keep rows.
///
/// Async-signal-safe.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_local_keeps_rows() -> bool {
    unwind_local::keeps_rows()
}

/// Writes at most `capacity` return addresses of the callers, innermost first, and returns
/// how many. The first one is in the function that calls this. `end` may be NULL.
///
/// Async-signal-safe: in a handler that interrupted anything, malloc, dlopen, dlclose, fork,
/// a thread's start or end, an exception being thrown, or another backtrace. It takes no
/// lock, allocates nothing and keeps errno.
///
/// # Safety
///
/// There is room for that many addresses.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn unwind_local_backtrace(
    addresses: *mut *mut c_void,
    capacity: usize,
    end: *mut unwind_local_end,
) -> usize {
    unwind_local::call_with_registers!(backtrace_from)
}

/// # Safety
///
/// There is room for that many addresses, and the registers are those of a function that has
/// called.
unsafe extern "C" fn backtrace_from(
    addresses: *mut *mut c_void,
    capacity: usize,
    end: *mut unwind_local_end,
    registers: &CallerRegisters,
) -> usize {
    // SAFETY: as the caller promises.
    let out = unsafe { room(addresses.cast(), capacity) };
    // SAFETY: likewise.
    let found = unsafe { unwind_local::backtrace_from(registers, out) };
    // SAFETY: likewise.
    unsafe { told(&found, end) }
}

/// The same for what a signal interrupted: first the interrupted address. `context` is the
/// `ucontext_t` that the kernel gave the handler in which the calling thread runs.
///
/// Async-signal-safe, as unwind_local_backtrace.
///
/// # Safety
///
/// There is room for that many addresses, and the context is such a one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_local_backtrace_of(
    context: *const c_void,
    addresses: *mut *mut c_void,
    capacity: usize,
    end: *mut unwind_local_end,
) -> usize {
    // SAFETY: as the caller promises.
    let out = unsafe { room(addresses.cast(), capacity) };
    // SAFETY: likewise.
    let Some(context) = (unsafe { context.cast::<libc::ucontext_t>().as_ref() }) else { return 0 };
    // SAFETY: likewise.
    let found = unsafe { unwind_local::backtrace_of(context, out) };
    // SAFETY: likewise.
    unsafe { told(&found, end) }
}

/// The same as unwind_local_backtrace, or with a context as unwind_local_backtrace_of, with
/// how each frame was found. `context` may be NULL.
///
/// Async-signal-safe, as unwind_local_backtrace.
///
/// # Safety
///
/// There is room for that many frames, and a context is one of the kernel's.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn unwind_local_frames(
    context: *const c_void,
    frames: *mut unwind_local_frame,
    capacity: usize,
    end: *mut unwind_local_end,
) -> usize {
    let (mut len, mut has_gap, mut skipped) = (0, false, usize::from(context.is_null()));
    let visit = |frame: TraceFrame| {
        if skipped != 0 {
            skipped = 0;
            return ControlFlow::Continue(());
        }
        if len == capacity || frames.is_null() {
            return ControlFlow::Break(());
        }
        has_gap |= frame.provenance.is_after_gap();
        let address = usize::try_from(frame.pc.addr().get()).unwrap_or(0);
        let provenance = frame.provenance.bits();
        // SAFETY: there is room for `capacity` of them.
        unsafe { frames.add(len).write(unwind_local_frame { address, provenance }) };
        len += 1;
        ControlFlow::Continue(())
    };
    // SAFETY: as the caller promises.
    let found = match unsafe { context.cast::<libc::ucontext_t>().as_ref() } {
        // SAFETY: likewise.
        Some(context) => unsafe { unwind_local::frames_of(context, visit) },
        None => unwind_local::frames(visit),
    };
    let found = found.unwrap_or(End::FrameLimit);
    let complete = matches!(found, End::Outermost) && !has_gap;
    // SAFETY: likewise.
    if let Some(to) = unsafe { end.as_mut() } {
        *to = unwind_local_end { code: found.code(), complete };
    }
    len
}

/// Each function keeps a frame pointer.
pub const UNWIND_LOCAL_FRAME_POINTERS: c_int = 0;
/// An SFrame section, whose addresses count from where it lies.
pub const UNWIND_LOCAL_SFRAME: c_int = 1;
/// An `.eh_frame` section, as `__register_frame` takes it.
pub const UNWIND_LOCAL_EH_FRAME: c_int = 2;
/// Each function keeps a frame pointer while it calls another one, as V8's do. A stack that was
/// interrupted in this code is complete only where its instructions prove who its caller is.
pub const UNWIND_LOCAL_CALLER_FRAME_POINTERS: c_int = 3;

/// Tells of code that the program has made, such as a JIT compiler's: stacks are walked past
/// its frames by what is of `kind`, one of UNWIND_LOCAL_FRAME_POINTERS and
/// UNWIND_LOCAL_CALLER_FRAME_POINTERS (where `table` is NULL), UNWIND_LOCAL_SFRAME and
/// UNWIND_LOCAL_EH_FRAME. Returns a number to forget it by, or 0 if there
/// are 256 ranges already or the kind is unknown.
///
/// Async-signal-safe. No walk waits for it.
///
/// # Safety
///
/// Until the range is forgotten the table stays and does not change; when it is forgotten no
/// function in it has a frame on any stack.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_local_tell_code(
    code: *const c_void,
    size: usize,
    kind: c_int,
    table: *const c_void,
    table_size: usize,
) -> u64 {
    let bytes = match table.is_null() {
        true => &[],
        // SAFETY: as the caller promises.
        false => unsafe { slice::from_raw_parts(table.cast::<u8>(), table_size) },
    };
    let table = match kind {
        UNWIND_LOCAL_FRAME_POINTERS => CodeTable::FramePointers,
        UNWIND_LOCAL_CALLER_FRAME_POINTERS => CodeTable::CallerFramePointers,
        UNWIND_LOCAL_SFRAME => CodeTable::Sframe(bytes),
        UNWIND_LOCAL_EH_FRAME => CodeTable::EhFrame(bytes),
        _ => return 0,
    };
    let start = code.addr();
    // SAFETY: as the caller promises.
    let told = unsafe { ProgramCode::tell(start..start.saturating_add(size), table) };
    told.map_or(0, |told| told.into_number().get())
}

/// Forgets the code with this number; `false` if there is none.
///
/// Async-signal-safe.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_local_forget_code(number: u64) -> bool {
    ProgramCode::forget(number)
}

/// Writes the name of the function with this address of code to `name`, which has `size` bytes: as the
/// object's file has it, so also of a function that the object does not export. Returns whether there
/// is one; it ends with a zero, and is cut where there is no room. `offset`, unless NULL, gets how far
/// in the function the address is. For a return address pass the address before it.
///
/// Not for signal handlers: it reads a file and asks the dynamic linker.
///
/// # Safety
///
/// There is room for that many bytes, and the object with the code stays loaded meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_local_name(
    address: *const c_void,
    name: *mut c_char,
    size: usize,
    offset: *mut usize,
) -> bool {
    let Some(last) = size.checked_sub(1) else { return false };
    // SAFETY: there is room for `size`.
    unsafe { name.write_bytes(0, size) };
    // SAFETY: they have been written.
    let room = unsafe { slice::from_raw_parts_mut(name.cast::<u8>(), size) };
    // SAFETY: as the caller promises.
    let Some(at) = (unsafe { unwind_local::name_of(address.addr(), room) }) else { return false };
    if let Some(end) = room.get_mut(last) {
        *end = 0;
    }
    // SAFETY: likewise.
    if let Some(offset) = unsafe { offset.as_mut() } {
        *offset = at;
    }
    true
}

/// What the code of an end says, in English.
///
/// Async-signal-safe.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_local_end_text(code: u8) -> *const c_char {
    let text = match code {
        1 => c"outermost frame",
        2 => c"return address zero",
        3 => c"no room for more frames",
        4 => c"nothing tells of this code",
        5 => c"no stack that can be walked",
        6 => c"no row of the table can be used",
        33 => c"memory is not readable",
        34 => c"the stack does not rise",
        35 => c"misaligned frame",
        36 => c"beyond the stack",
        37 | 38 => c"return address without code",
        39 => c"a zero that no table led to",
        40 | 41 => c"no frame pointer",
        42 => c"a register is not known",
        43 => c"an address leaves the address space",
        44 => c"a rule that cannot be right",
        45 => c"unknown signal trampoline",
        46 => c"a return probe's address",
        _ => c"unknown",
    };
    text.as_ptr()
}

/// # Safety
///
/// There is room for that many addresses, unless the pointer is null.
unsafe fn room<'a>(addresses: *mut usize, capacity: usize) -> &'a mut [usize] {
    if addresses.is_null() {
        return &mut [];
    }
    // SAFETY: as the caller promises. Any bytes are addresses.
    unsafe { slice::from_raw_parts_mut(addresses, capacity) }
}

/// # Safety
///
/// `end` is null or has room.
unsafe fn told(found: &Backtrace, end: *mut unwind_local_end) -> usize {
    // SAFETY: as the caller promises.
    if !ptr::eq(end, ptr::null()) {
        let told = unwind_local_end { code: found.end.code(), complete: found.is_complete };
        // SAFETY: likewise.
        unsafe { end.write(told) };
    }
    found.len
}

/// No entry point can panic, so this is not linked.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it takes nothing.
    unsafe { libc::abort() }
}
