//! The structures of the interface.

use core::ffi::c_void;

/// What a task carries, in the host's structure of the task. All zeroes is a new one: a task that
/// is created, also by fork, begins with zeroes before anyone may ask for its stack. It goes with the task,
/// once that is closed and nobody asks for its stack any more; there is nothing to free in it.
#[expect(missing_copy_implementations, reason = "it is memory")]
#[derive(Debug, Default)]
#[repr(C)]
pub struct unwind_task {
    /// Nobody's but the library's.
    pub(crate) words: [u64; 6],
}

/// Rows that walks keep, for later ones: a frame whose row is kept takes a tenth of the time. All
/// zeroes is an empty one. It goes with the walks of one space: another one's empty it. Optional.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct unwind_rows {
    /// Nobody's but the library's.
    pub(crate) words: [u64; 272],
}

/// Memory that one walk works in. All zeroes is a new one. Nothing in it is of use after the walk.
#[derive(Debug)]
#[repr(C)]
pub struct unwind_scratch {
    /// Nobody's but the library's.
    pub(crate) words: [u64; 256],
}

/// Memory for one stack, of UNWIND_TRACE_BYTES bytes, made by unwind_trace_init.
///
/// A delivery that is lent the trace which has the stack of this kernel entry does not walk again, so
/// one a task is walked once for each cookie; one of a pool once for each delivery.
#[expect(missing_copy_implementations, reason = "it is memory")]
#[derive(Debug)]
#[repr(C)]
pub struct unwind_trace {
    /// Nobody's but the library's. Frames come after it.
    pub(crate) words: [u64; 8],
}

/// The modules of an address space, of UNWIND_SPACE_BYTES_16, _64 or _256 bytes for as many modules,
/// made by unwind_space_init. Looked up in any context, also while it changes. Nothing to free.
#[expect(missing_copy_implementations, reason = "it is memory")]
#[derive(Debug)]
#[repr(C)]
pub struct unwind_space {
    /// Nobody's but the library's. Modules come after it.
    pub(crate) words: [u64; 2],
}

/// Bytes of a space of 16 modules.
pub const UNWIND_SPACE_BYTES_16: usize = 1_328;
/// Bytes of a space of 64 modules.
pub const UNWIND_SPACE_BYTES_64: usize = 5_168;
/// Bytes of a space of 256 modules.
pub const UNWIND_SPACE_BYTES_256: usize = 20_528;

/// Code, and what is known of it: an executable mapping, usually.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct unwind_module {
    /// The code's first address in the target.
    pub start: u64,
    /// The address after the code.
    pub end: u64,
    /// Where the target has `.sframe` or `.eh_frame_hdr`: where it is loaded. Of an SFrame table that
    /// is part of no file, the address it was made for, plus how far the code is loaded above its
    /// linked addresses.
    pub table: u64,
    /// How many bytes an SFrame table in the target's memory has at most.
    pub table_len: u32,
    /// One of enum unwind_format.
    pub format: u32,
    /// NULL: the table is read in the target's memory when a walk needs it. Otherwise the host has
    /// the bytes of the table here, or those of the part of the file with `.eh_frame_hdr` and `.eh_frame`.
    /// The library uses them where they are: they stay and do not change until the module is removed and
    /// each walk that began before that has ended.
    pub held: *const c_void,
    /// Where the target would have the first of them: `table`, or less than 16 MiB below it.
    pub held_addr: u64,
    /// How many there are: less than 1 GiB.
    pub held_len: u32,
}

/// The registers that a walk begins with. 32-bit code has eax in `rax` and so on.
#[expect(missing_docs, reason = "registers have their names")]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct unwind_registers {
    pub rip: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    /// One of enum unwind_mode.
    pub mode: u32,
    /// Nonzero: all registers are known; otherwise only rip, rsp and rbp are. Some functions need others,
    /// those that align their stack, say.
    pub all: u32,
    /// The linear base of the code segment, of 32-bit code.
    pub code_base: u32,
    /// The linear base of the stack segment, of 32-bit code.
    pub stack_base: u32,
}

/// One walk.
#[derive(Debug)]
#[repr(C)]
pub struct unwind_walk {
    /// What it begins with.
    pub regs: unwind_registers,
    /// The modules. NULL: there are none, and the walk goes by instructions and frame pointers.
    pub space: *const unwind_space,
    /// NULL, or rows for this walk alone.
    pub rows: *mut unwind_rows,
    /// For this walk alone: an NMI that walks has its own, one for each NMI that may be on top of
    /// another.
    pub scratch: *mut unwind_scratch,
    /// Handed to the hooks that read memory and find modules.
    pub context: *mut c_void,
    /// The value of the stack pointer when the stack is empty, or 0 if that is not known.
    pub stack_end: u64,
    /// UNWIND_MAY_FAULT, UNWIND_FIVE_LEVEL, UNWIND_NO_RED_ZONE.
    pub flags: u32,
}

/// A stack that was walked. What it points to is in the trace, until that is used again.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct unwind_stack {
    /// The addresses, innermost first: all but the first are return addresses, unless UNWIND_EXACT says otherwise.
    pub pcs: *const u64,
    /// How each was found: the low three bits are one of enum unwind_origin.
    pub provenance: *const u8,
    /// How many there are.
    pub frames: u32,
    /// Why there are no more: one of enum unwind_end.
    pub end: u8,
    /// These are all frames, and no guess led to any.
    pub complete: bool,
    /// A walk that may fault may get further: memory was absent.
    pub retryable: bool,
    /// What is wrong with the table of UNWIND_END_TABLE. Below 512 `code` of `RemoteError` of the SFrame
    /// crate, 512 if the modules changed all the time, 513 if it is still to come, from 1024 on `code` of
    /// `RemoteCfiError`.
    pub table_code: u16,
}

/// What a client is called with.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct unwind_delivery {
    /// Who is called.
    pub client: u64,
    /// That of the samples which the stack belongs to.
    pub cookie: u64,
    /// One of enum unwind_sample.
    pub sample: u32,
    /// Without frames unless `sample` is UNWIND_SAMPLE_MATCHED or UNWIND_SAMPLE_TRUNCATED.
    pub stack: unwind_stack,
}

/// How many samples and stacks were lost, by reason.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct unwind_drops {
    /// Requests refused, as enum unwind_outcome says.
    pub kernel_thread: u64,
    /// Likewise.
    pub user_worker: u64,
    /// Likewise.
    pub exiting: u64,
    /// Likewise.
    pub no_user_registers: u64,
    /// Likewise.
    pub unknown_client: u64,
    /// Likewise.
    pub schedule_failed: u64,
    /// Requests that were granted and whose client was then cancelled.
    pub client_cancelled: u64,
    /// Deliveries without a stack, since no trace was lent.
    pub no_trace: u64,
    /// Deliveries without a stack, since the walk has found no frame.
    pub no_frames: u64,
    /// Deliveries of a part of the stack.
    pub truncated: u64,
    /// Deliveries without a stack, since the task has ended.
    pub task_gone: u64,
    /// Deliveries without a stack, since the task has executed another program.
    pub exec: u64,
    /// Deliveries that had not come to their end when their task continued: a mistake of the host.
    pub unfinished: u64,
}
