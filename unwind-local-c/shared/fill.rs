//! What `backtrace` and `unw_backtrace` have in common.

use core::ffi::{c_int, c_void};

/// Writes at most `size` return addresses of the callers of the function that this is a part
/// of, innermost first, and returns how many.
///
/// # Safety
///
/// There is room for that many, unless `addresses` is null.
#[inline(always)]
pub(crate) unsafe fn fill(addresses: *mut *mut c_void, size: c_int) -> c_int {
    let capacity = usize::try_from(size).unwrap_or(0);
    if addresses.is_null() {
        return 0;
    }
    // SAFETY: as the caller promises.
    let out = unsafe { core::slice::from_raw_parts_mut(addresses.cast(), capacity) };
    // Without that function's own frame.
    c_int::try_from(unwind_local::backtrace_skipping(1, out).len).unwrap_or(c_int::MAX)
}
