//! What the host defines, and how the library calls it.

use core::ffi::c_void;
use core::ptr;

use unwind_core::deferred::TaskState;
use unwind_core::{ReadError, VirtAddr};

use crate::types::{unwind_delivery, unwind_task, unwind_walk};

unsafe extern "C" {
    /// Has the task deliver before it runs user code. When it returns 0, the task will not get back
    /// to user code without a delivery. It does not matter how often it is called; a delivery that then
    /// finds nothing is in order. Another number: it cannot be done, and the request is refused.
    ///
    /// `in_nmi` says whether this CPU handles an NMI, for hosts that cannot do there what they do elsewhere.
    ///
    /// Any context.
    fn unwind_host_schedule(task: *mut unwind_task, in_nmi: i32) -> i32;

    /// One of enum unwind_task_kind: what the task is at this moment.
    ///
    /// Any context.
    fn unwind_host_task_kind(task: *mut unwind_task) -> u32;

    /// Nonzero if this CPU handles an NMI.
    ///
    /// Any context.
    fn unwind_host_in_nmi() -> i32;

    /// The number of this CPU. It may be out of date when it is used: it chooses counters.
    ///
    /// Any context.
    fn unwind_host_cpu() -> u32;

    /// Called again and again by unwind_cancel while a delivery to the client runs; `turn` is 0 the
    /// first time and rises. It spins, yields or sleeps, and returns nonzero to give up.
    ///
    /// The context of unwind_cancel.
    fn unwind_host_relax(turn: u64) -> i32;

    /// Fills in the walk of a delivery, which is all zeroes before: the registers that the task's kernel
    /// entry saved, a scratch, and what else there is. Returns 0, or another number if there can be no
    /// walk: clients are told that the stack is lost.
    ///
    /// The context of unwind_deliver. It calls no function here but those of spaces. Where a pointer in the
    /// walk is wrong or in use there is no walk, either.
    fn unwind_host_walk(task: *mut unwind_task, walk: *mut unwind_walk) -> i32;

    /// Calls a client. `delivery` and the stack in it are there until this returns.
    ///
    /// The context of unwind_deliver or unwind_abandon. It may allocate, sleep, request, register, and cancel
    /// other clients. It delivers and walks nothing with the trace that unwind_deliver was lent.
    fn unwind_host_deliver(task: *mut unwind_task, delivery: *const unwind_delivery);

    /// Copies `len` bytes at `addr` of the target to `to`, all or nothing: one of enum unwind_read.
    /// It may fault pages in and sleep. Most reads are of 8 bytes: have a short way for them.
    ///
    /// `addr` may be anything. It must refuse all that is not the target's to read, a kernel's addresses
    /// above all.
    ///
    /// The context of a walk with UNWIND_MAY_FAULT. `context` is the walk's.
    fn unwind_host_read(context: *mut c_void, to: *mut c_void, addr: u64, len: usize) -> i32;

    /// The same without a fault: UNWIND_READ_ABSENT where there is no page.
    ///
    /// The context of any other walk.
    fn unwind_host_read_nofault(
        context: *mut c_void,
        to: *mut c_void,
        addr: u64,
        len: usize,
    ) -> i32;

    /// Looks for the module with the code at `pc`, when a walk first meets it. If it adds one
    /// by unwind_space_add, it returns 1, and the walk looks again; otherwise 0, and is asked again by
    /// the next walk. Code that has no table is best added, too: as UNWIND_FORMAT_NONE. Then it costs a
    /// walk no more than other code.
    ///
    /// The context of a walk with UNWIND_MAY_FAULT; no other walk calls it.
    fn unwind_host_find_module(context: *mut c_void, pc: u64) -> i32;
}

/// The pointer that the host knows a task by.
fn pointer(task: &TaskState) -> *mut unwind_task {
    ptr::from_ref(task).cast::<unwind_task>().cast_mut()
}

pub(crate) fn schedule(task: &TaskState, in_nmi: bool) -> bool {
    // SAFETY: the host takes any of its tasks, in any context.
    unsafe { unwind_host_schedule(pointer(task), in_nmi.into()) == 0 }
}

pub(crate) fn task_kind(task: &TaskState) -> u32 {
    // SAFETY: likewise.
    unsafe { unwind_host_task_kind(pointer(task)) }
}

pub(crate) fn in_nmi() -> bool {
    // SAFETY: it takes nothing.
    unsafe { unwind_host_in_nmi() != 0 }
}

pub(crate) fn cpu() -> u32 {
    // SAFETY: it takes nothing.
    unsafe { unwind_host_cpu() }
}

/// Whether to wait on.
pub(crate) fn relax(turn: u64) -> bool {
    // SAFETY: it takes any number.
    unsafe { unwind_host_relax(turn) == 0 }
}

/// Whether there is a walk.
pub(super) fn walk(task: &TaskState, walk: &mut unwind_walk) -> bool {
    // SAFETY: the structure is there while the host fills it in.
    unsafe { unwind_host_walk(pointer(task), walk) == 0 }
}

pub(super) fn deliver(task: &TaskState, delivery: &unwind_delivery) {
    // SAFETY: the structure, and what it points to, is there while the host looks at it.
    unsafe { unwind_host_deliver(pointer(task), delivery) }
}

/// The host's own pointer, of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(*mut c_void);

impl Context {
    pub(super) const fn new(context: *mut c_void) -> Self {
        Self(context)
    }

    /// Whether a module was added.
    pub(crate) fn find_module(self, pc: VirtAddr) -> bool {
        // SAFETY: the pointer is the host's own, of this walk, which may fault.
        unsafe { unwind_host_find_module(self.0, pc.get()) == 1 }
    }

    #[inline]
    pub(crate) fn read(
        self,
        addr: VirtAddr,
        buf: &mut [u8],
        may_fault: bool,
    ) -> Result<(), ReadError> {
        let (to, len) = (buf.as_mut_ptr().cast::<c_void>(), buf.len());
        let read = match may_fault {
            // SAFETY: there is room for as many bytes, and the walk may fault.
            true => unsafe { unwind_host_read(self.0, to, addr.get(), len) },
            // SAFETY: there is room for as many bytes.
            false => unsafe { unwind_host_read_nofault(self.0, to, addr.get(), len) },
        };
        match read {
            0 => Ok(()),
            1 => Err(ReadError::NotResident),
            _ => Err(ReadError::Invalid),
        }
    }
}
