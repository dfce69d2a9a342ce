//! Walks.

use core::ptr;

use unwind_core::{End, TableError as _, Trace};

use super::hooks::Context;
use super::lent::{self, Lent, RowsBlock, ScratchBlock, TraceBlock};
use super::spaces::any_space;
use super::{number, put, shared};
use crate::numbers::{unwind_error, unwind_mode};
use crate::types::{unwind_rows, unwind_scratch, unwind_stack, unwind_trace, unwind_walk};
use crate::walk::{Rows, Walk};

const _: () = {
    assert!(size_of::<ScratchBlock>() <= size_of::<unwind_scratch>(), "the documented size");
    assert!(align_of::<ScratchBlock>() <= align_of::<unwind_scratch>(), "aligned alike");
    assert!(size_of::<RowsBlock>() == size_of::<unwind_rows>(), "the documented size");
    assert!(align_of::<RowsBlock>() == align_of::<unwind_rows>(), "aligned alike");
};

/// Makes a trace in `bytes` bytes of memory: of as many frames as there is room for, a multiple of eight.
/// Returns 0, or an error.
///
/// Any context. Nobody else uses the memory meanwhile.
///
/// # Safety
///
/// There are as many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_trace_init(memory: *mut unwind_trace, bytes: usize) -> i32 {
    // SAFETY: the caller's promise.
    number(unsafe { lent::make_trace(memory.cast(), bytes) })
}

/// Walks a stack into a trace, and says in `stack` what it has found. Returns 0, or an error.
///
/// With UNWIND_MAY_FAULT task context; without it any, an NMI included: a walk there has a trace, a scratch and
/// rows that no other context uses.
///
/// # Safety
///
/// The walk's pointers are NULL or what they should be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_walk_now(
    walk: *const unwind_walk,
    trace: *mut unwind_trace,
    stack: *mut unwind_stack,
) -> i32 {
    // SAFETY: the caller's promise.
    number(unsafe { walk_now(walk, trace, stack) })
}

/// # Safety
///
/// As of [`unwind_walk_now`].
unsafe fn walk_now(
    walk: *const unwind_walk,
    trace: *mut unwind_trace,
    stack: *mut unwind_stack,
) -> Result<(), unwind_error> {
    // SAFETY: the caller's promise.
    let walk = unsafe { shared(walk) }?;
    // SAFETY: likewise.
    let (_lent, block) = unsafe { lent::trace(trace.cast()) }?;
    let TraceBlock { cache, pcs, provenance } = block;
    let trace = cache.trace_mut();
    // SAFETY: likewise.
    unsafe { into(walk, trace) }?;
    // SAFETY: likewise.
    unsafe { put(stack, told(trace, pcs, provenance)) }
}

/// Walks into a trace of the library.
///
/// # Safety
///
/// The walk's pointers are NULL or what they should be.
pub(super) unsafe fn into(walk: &unwind_walk, trace: &mut Trace) -> Result<(), unwind_error> {
    let mode = unwind_mode::from_number(walk.regs.mode).ok_or(unwind_error::Invalid)?;
    let space = match walk.space {
        space if space.is_null() => None,
        // SAFETY: the caller's promise.
        space => Some(unsafe { any_space(space) }?),
    };
    // SAFETY: likewise.
    let (_scratch, scratch) = unsafe { lent::scratch(walk.scratch.cast()) }?;
    let rows = match walk.rows {
        rows if rows.is_null() => None,
        // SAFETY: likewise.
        rows => Some(unsafe { lent::rows(rows.cast()) }?),
    };
    let (_rows, rows): (Option<Lent<'_>>, Option<Rows<'_>>) = rows.unzip();
    let (context, stack_end, flags) = (Context::new(walk.context), walk.stack_end, walk.flags);
    let regs = &walk.regs;
    Walk { regs, mode, space, rows, scratch, context, stack_end, flags }.trace(trace);
    Ok(())
}

/// What C sees of a stack.
pub(super) fn told(trace: &Trace, pcs: &mut [u64], provenance: &mut [u8]) -> unwind_stack {
    let mut frames = 0_u32;
    for ((frame, pc), byte) in trace.frames().zip(pcs.iter_mut()).zip(provenance.iter_mut()) {
        *pc = frame.pc.addr().get();
        *byte = frame.provenance.bits();
        frames = frames.wrapping_add(1);
    }
    let end = trace.end();
    unwind_stack {
        pcs: pcs.as_ptr(),
        provenance: provenance.as_ptr(),
        frames,
        end: end.as_ref().map_or(0, |end| end.code()),
        complete: trace.is_complete(),
        retryable: end.as_ref().is_some_and(|end| end.is_retryable()),
        table_code: match end {
            Some(End::Table(fault)) => fault.code(),
            _ => 0,
        },
    }
}

/// No stack.
pub(super) const NO_STACK: unwind_stack = unwind_stack {
    pcs: ptr::null(),
    provenance: ptr::null(),
    frames: 0,
    end: 0,
    complete: false,
    retryable: false,
    table_code: 0,
};
