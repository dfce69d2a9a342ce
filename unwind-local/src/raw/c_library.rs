//! Which C library the program has, and what it tells a handler.

use core::arch::global_asm;
use core::mem::MaybeUninit;

use super::object::Object;
use super::syscall;
use super::thread::control_block;

// Functions that not every C library has, so that programs link where there is none: zero is what
// the linker makes of them there.
//
// glibc's `_dl_find_object` takes no lock, allocates nothing and may be called at any point.
global_asm!(
    ".pushsection .text.unwind_local_find_object, \"ax\", @progbits",
    ".weak _dl_find_object",
    ".globl unwind_local_find_object",
    ".hidden unwind_local_find_object",
    ".type unwind_local_find_object, @function",
    "unwind_local_find_object:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + _dl_find_object@GOTPCREL]",
    "test rax, rax",
    "je 2f",
    "jmp rax",
    "2:",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size unwind_local_find_object, . - unwind_local_find_object",
    ".popsection",
    ".pushsection .text.unwind_local_is_glibc, \"ax\", @progbits",
    ".weak gnu_get_libc_version",
    ".globl unwind_local_is_glibc",
    ".hidden unwind_local_is_glibc",
    ".type unwind_local_is_glibc, @function",
    "unwind_local_is_glibc:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + _dl_find_object@GOTPCREL]",
    "or rax, qword ptr [rip + gnu_get_libc_version@GOTPCREL]",
    "setne al",
    "ret",
    ".cfi_endproc",
    ".size unwind_local_is_glibc, . - unwind_local_is_glibc",
    ".popsection",
);

/// glibc's `struct dl_find_object`.
#[derive(Default)]
#[repr(C)]
struct Found {
    flags: u64,
    map_start: u64,
    map_end: u64,
    link_map: u64,
    eh_frame_hdr: u64,
    reserved: [u64; 7],
}

unsafe extern "C" {
    fn unwind_local_find_object(addr: u64, found: *mut Found) -> i32;
    fn unwind_local_is_glibc() -> bool;
}

/// What the C library knows of an address.
pub(super) enum FindObject {
    Found(Object),
    None,
    /// It has no function for this.
    CannotTell,
}

/// Asks for the object with an address of code.
pub(super) fn find_object(addr: u64) -> FindObject {
    let mut found = Found::default();
    // SAFETY: the result has the layout of the ABI.
    let result = unsafe { unwind_local_find_object(addr, &raw mut found) };
    let Found { map_start, map_end, eh_frame_hdr, .. } = found;
    match result {
        0 => FindObject::Found(Object::new(map_start..map_end, eh_frame_hdr)),
        1 => FindObject::CannotTell,
        _ => FindObject::None,
    }
}

/// Whether it is glibc, which unloads objects. The others that are known, as musl, never do.
pub(super) fn is_glibc() -> bool {
    // SAFETY: it touches no memory of the program.
    unsafe { unwind_local_is_glibc() }
}

/// Where the dynamic linker is loaded; zero if there is none.
pub(super) fn linker() -> u64 {
    // SAFETY: it looks in a list that the kernel left, which has this.
    unsafe { libc::getauxval(libc::AT_BASE) }
}

/// An address in the last page of the thread's own stack.
#[cold]
pub(super) fn stack_end() -> u64 {
    if syscall::is_first_thread() {
        // The kernel puts these bytes above the stack of the first thread.
        // SAFETY: it looks in a list that the kernel left, which has this.
        return unsafe { libc::getauxval(libc::AT_RANDOM) };
    }
    if is_glibc() {
        // At the upper end of the stack, also of one that the program gave the thread.
        return control_block();
    }
    // musl's control block may lie elsewhere. It keeps the stack's end in it.
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut len) = (core::ptr::null_mut(), 0);
    // SAFETY: the handle of a thread is the address of its control block there. musl reads the end
    // of the stack without a lock where there is one, as in each thread but the first.
    let error = unsafe { libc::pthread_getattr_np(control_block(), attributes.as_mut_ptr()) };
    let is_known = error == 0 && {
        // SAFETY: they have been written.
        let attributes = unsafe { attributes.assume_init_ref() };
        // SAFETY: the results have room.
        unsafe { libc::pthread_attr_getstack(attributes, &raw mut start, &raw mut len) == 0 }
    };
    let end = start.addr().wrapping_add(len).wrapping_sub(1);
    if is_known { u64::try_from(end).unwrap_or(0) } else { 0 }
}
