//! What `backtrace` and `unw_backtrace` have in common.

use core::ffi::{c_int, c_void};

use unwind_local::{CallerRegisters, backtrace_from};

/// Writes at most `size` return addresses of a function and its callers, innermost first, and
/// returns how many.
///
/// # Safety
///
/// There is room for that many, unless `addresses` is null. The registers are those of a
/// function that has called.
pub(crate) unsafe extern "C" fn fill(
    addresses: *mut *mut c_void,
    size: c_int,
    _: usize,
    registers: &CallerRegisters,
) -> c_int {
    let capacity = usize::try_from(size).unwrap_or(0);
    if addresses.is_null() {
        return 0;
    }
    // SAFETY: as the caller promises.
    let out = unsafe { core::slice::from_raw_parts_mut(addresses.cast(), capacity) };
    // SAFETY: likewise.
    c_int::try_from(unsafe { backtrace_from(registers, out) }.len).unwrap_or(c_int::MAX)
}
