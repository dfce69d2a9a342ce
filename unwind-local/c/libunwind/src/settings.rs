//! What programs set before they walk: the kind of cache, of which there is one here.

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicPtr;

use crate::cursor::exported;

/// `unw_local_addr_space`: not looked into.
#[unsafe(export_name = "_ULx86_64_local_addr_space")]
static LOCAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The same for the second name.
#[unsafe(export_name = "_Ux86_64_local_addr_space")]
static GENERIC: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

exported! {
    /// Accepted: rows are kept for all threads, whatever is asked for.
    "_ULx86_64_set_caching_policy", "_Ux86_64_set_caching_policy":
        fn set_caching_policy(space: *mut c_void, policy: c_int) -> c_int;
    /// Accepted: the cache has its size.
    "_ULx86_64_set_cache_size", "_Ux86_64_set_cache_size":
        fn set_cache_size(space: *mut c_void, size: usize, flag: c_int) -> c_int;
    /// Rows that may be stale are not used anyway.
    "_ULx86_64_flush_cache", "_Ux86_64_flush_cache":
        fn flush_cache(space: *mut c_void, low: u64, high: u64) -> ();
}

unsafe fn set_caching_policy(_: *mut c_void, _: c_int) -> c_int {
    0
}

unsafe fn set_cache_size(_: *mut c_void, _: usize, _: c_int) -> c_int {
    0
}

unsafe fn flush_cache(_: *mut c_void, _: u64, _: u64) {}

/// A version, a generation, and a list of code that programs make, which is empty.
static DYNAMIC: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 3];

/// Where code that the program made is listed: for `libunwind-x86_64.so.8`, which imports it.
#[unsafe(no_mangle)]
extern "C" fn _U_dyn_info_list_addr() -> *const c_void {
    DYNAMIC.as_ptr().cast()
}

extern "C" fn prepare() {
    unwind_local::prepare_for_glibc();
}

/// Before the program's own code: so that walks keep rows.
#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;
