//! Which C library the program has, and what it tells a handler.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::AtomicUsize;

use super::syscall;
use super::thread::control_block;

/// glibc's `struct dl_find_object`.
#[derive(Default)]
#[repr(C)]
struct Found {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: usize,
    eh_frame_hdr: usize,
    /// As much as any ABI has.
    reserved: [u64; 8],
}

unsafe extern "C" {
    fn unwind_local_find_object(addr: usize, found: *mut Found) -> i32;
    fn unwind_local_is_glibc() -> bool;
    fn unwind_local_loads_of_program() -> Option<&'static AtomicUsize>;
    /// With the handle as a word, which it is by another type in each C library.
    fn pthread_getattr_np(thread: usize, attributes: *mut libc::pthread_attr_t) -> libc::c_int;
}

/// What the C library knows of an address.
pub(super) enum FindObject {
    Found {
        map: Range<u64>,
        /// Zero if it has none.
        eh_frame_hdr: u64,
    },
    None,
    /// It has no function for this.
    CannotTell,
}

/// Asks for the object with an address of code.
pub(super) fn find_object(addr: u64) -> FindObject {
    let Ok(addr) = usize::try_from(addr) else { return FindObject::None };
    let mut found = Found::default();
    // SAFETY: the result has the layout of the ABI.
    let result = unsafe { unwind_local_find_object(addr, &raw mut found) };
    let [start, end, eh_frame_hdr] = [found.map_start, found.map_end, found.eh_frame_hdr]
        .map(|word| u64::try_from(word).unwrap_or(0));
    match result {
        0 => FindObject::Found { map: start..end, eh_frame_hdr },
        1 => FindObject::CannotTell,
        _ => FindObject::None,
    }
}

/// Whether it is glibc, which unloads objects. The others that are known, as musl, never do.
pub(super) fn is_glibc() -> bool {
    // SAFETY: it touches no memory of the program.
    unsafe { unwind_local_is_glibc() }
}

/// The word that counts loaded objects in a static program of glibc, where it has a name. In others
/// the dynamic linker keeps it to itself.
pub(super) fn loads_of_program() -> Option<&'static AtomicUsize> {
    // SAFETY: null, or a word that stays; glibc writes it in one piece.
    unsafe { unwind_local_loads_of_program() }
}

/// What the kernel has told the program. `errno` is kept if it has.
pub(super) fn auxiliary(kind: libc::c_ulong) -> u64 {
    // SAFETY: it looks in a list that the kernel left.
    let value = unsafe { libc::getauxval(kind) };
    #[allow(clippy::useless_conversion, reason = "a word of 32 bits elsewhere")]
    u64::from(value)
}

/// Where the dynamic linker is loaded; zero if there is none.
pub(super) fn linker() -> u64 {
    auxiliary(libc::AT_BASE)
}

/// An address in the last page of the thread's own stack.
#[cold]
pub(super) fn stack_end() -> u64 {
    if syscall::is_first_thread() {
        // The kernel puts these bytes above the stack of the first thread.
        return auxiliary(libc::AT_RANDOM);
    }
    if is_glibc() {
        // At the upper end of the stack, also of one that the program gave the thread.
        return control_block();
    }
    // musl's control block may lie elsewhere. It keeps the stack's end in it.
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let thread = usize::try_from(control_block()).unwrap_or(0);
    let (mut start, mut len) = (core::ptr::null_mut(), 0);
    // SAFETY: the handle of a thread is the address of its control block there. musl reads the end
    // of the stack without a lock where there is one, as in each thread but the first.
    let error = unsafe { pthread_getattr_np(thread, attributes.as_mut_ptr()) };
    let is_known = error == 0 && {
        // SAFETY: they have been written.
        let attributes = unsafe { attributes.assume_init_ref() };
        // SAFETY: the results have room.
        unsafe { libc::pthread_attr_getstack(attributes, &raw mut start, &raw mut len) == 0 }
    };
    let end = start.addr().wrapping_add(len).wrapping_sub(1);
    if is_known { u64::try_from(end).unwrap_or(0) } else { 0 }
}
