//! What is known of the function of a frame.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

use unwind_local::Cursor;

use crate::cursor::{UnwCursor, cursor, exported};
use crate::error::Error;

/// `unw_proc_info_t`.
#[repr(C)]
pub struct ProcInfo {
    start_ip: u64,
    end_ip: u64,
    /// Of the language, what unwinding of exceptions needs.
    lsda: u64,
    handler: u64,
    gp: u64,
    flags: u64,
    format: c_int,
    unwind_info_size: c_int,
    unwind_info: *mut c_void,
    extra: u64,
}

const _: () = assert!(size_of::<ProcInfo>() == 72);

/// The format whose details libunwind keeps to itself.
const DYNAMIC: c_int = 0;

exported! {
    /// Where the function of the frame begins and ends, and what handles exceptions there.
    "_ULx86_64_get_proc_info", "_Ux86_64_get_proc_info":
        fn get_proc_info(memory: *mut UnwCursor, info: *mut ProcInfo) -> c_int;
    /// The name of the function of the frame, by the symbols that its object exports, and how
    /// far in it the frame stands.
    "_ULx86_64_get_proc_name", "_Ux86_64_get_proc_name":
        fn get_proc_name(
            memory: *mut UnwCursor, name: *mut c_char, len: usize, offset: *mut u64
        ) -> c_int;
}

#[inline(never)]
unsafe fn get_proc_info(memory: *mut UnwCursor, info: *mut ProcInfo) -> c_int {
    // SAFETY: as the caller promises.
    let Some(cursor) = (unsafe { cursor(memory) }) else { return Error::BadValue.result() };
    let Some(function) = cursor.function() else { return Error::NoInfo.result() };
    let (handler, lsda) = cursor.exception_handling().unwrap_or_default();
    let found = ProcInfo {
        start_ip: function.start,
        end_ip: function.end,
        lsda: lsda.unwrap_or(0),
        handler,
        gp: 0,
        flags: 0,
        format: DYNAMIC,
        unwind_info_size: 0,
        unwind_info: null_mut(),
        extra: 0,
    };
    // SAFETY: there is room for it.
    unsafe { info.write(found) };
    0
}

#[inline(never)]
unsafe fn get_proc_name(
    memory: *mut UnwCursor,
    name: *mut c_char,
    len: usize,
    offset: *mut u64,
) -> c_int {
    // SAFETY: as the caller promises.
    let Some(cursor) = (unsafe { cursor(memory) }) else { return Error::BadValue.result() };
    let Some((symbol, start, pc)) = symbol(cursor) else { return Error::NoInfo.result() };
    // SAFETY: as the caller promises.
    if let Some(offset) = unsafe { offset.as_mut() } {
        *offset = pc.wrapping_sub(start);
    }
    let bytes = symbol.to_bytes_with_nul();
    let Some(room) = len.checked_sub(1) else { return Error::NoMemory.result() };
    let copied = bytes.len().saturating_sub(1).min(room);
    for (at, &byte) in bytes.iter().take(copied).enumerate() {
        // SAFETY: there is room for `len`.
        unsafe { name.wrapping_add(at).write(c_char::from_ne_bytes([byte])) };
    }
    // SAFETY: likewise.
    unsafe { name.wrapping_add(copied).write(0) };
    if bytes.len() > len { Error::NoMemory.result() } else { 0 }
}

/// The symbol of the function, its address, and that of the frame.
fn symbol<'s>(cursor: &Cursor) -> Option<(&'s CStr, u64, u64)> {
    let pc = cursor.pc()?;
    let addr = usize::try_from(pc.lookup_addr().get()).ok()?;
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    let place = core::ptr::without_provenance::<c_void>(addr);
    // SAFETY: the result has room.
    if unsafe { libc::dladdr(place, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it has been filled.
    let found = unsafe { found.assume_init() };
    if found.dli_sname.is_null() {
        return None;
    }
    // SAFETY: a name in the object's string table, which ends with a zero; the object is
    // loaded, as the frame is on the stack.
    let name = unsafe { CStr::from_ptr(found.dli_sname) };
    let start = u64::try_from(found.dli_saddr.addr()).ok()?;
    Some((name, start, pc.addr().get()))
}
