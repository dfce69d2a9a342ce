//! The rules that each step keeps, whichever way it is taken.
//!
//! The full step and the reasons of the fast walk call them. The loops of the fast walk have
//! forms of their own, which `fast/exhaustive.rs` holds against these on all inputs of a
//! small width.

use crate::addr::VirtAddr;
use crate::arch::Arch;
use crate::origin::Origin;
use crate::register::WordSize;
use crate::row::Row;
use crate::step_error::StepError;

/// A frame pointer points into its own frame, so one below the stack pointer is something
/// else.
pub(super) const fn check_frame_pointer(fp: u64, sp: u64) -> Result<(), StepError> {
    match fp {
        0 if sp > 0 => Err(StepError::ZeroFramePointer),
        fp if fp < sp => Err(StepError::FramePointerBelowStack { fp, sp }),
        _ => Ok(()),
    }
}

/// The CFA rises. A frame that may have left no return address on the stack (it is in a
/// register) may also stand still, which can happen only once in a row.
pub(super) const fn check_progress(
    cfa: u64,
    sp: u64,
    may_stand_still: bool,
) -> Result<(), StepError> {
    if cfa > sp || (may_stand_still && cfa == sp) {
        Ok(())
    } else {
        Err(StepError::NoProgress { cfa, sp })
    }
}

/// The CFA is a multiple of a stack slot, and on the stack.
pub(super) fn check_cfa(cfa: u64, word: WordSize, stack_end: Option<u64>) -> Result<(), StepError> {
    if cfa & word.bytes().wrapping_sub(1) != 0 {
        return Err(StepError::Misaligned { cfa });
    }
    if stack_end.is_some_and(|end| cfa > end) {
        return Err(StepError::BeyondStack { cfa });
    }
    Ok(())
}

/// Whether a return address of zero to which `row` leads is how start-up code marks the
/// outermost frame, unless a return address is beside it. `is_last`: it is in the last slot of the
/// stack, which is no zero like any other.
pub(super) fn is_zero_an_end(row: &Row, is_by_fp: bool, is_last: bool) -> bool {
    let is_guess = matches!(row.origin(), Origin::FramePointer | Origin::Instructions);
    is_last && !row.is_guess() || !(is_guess || is_by_fp && row.is_from_sp())
}

/// A return address, which is not zero, is one that this CPU can have code at.
pub(super) fn check_return_address<A: Arch>(arch: &A, ra: u64) -> Result<VirtAddr, StepError> {
    arch.code_addr(ra).ok_or(StepError::NonCanonical { pc: ra })
}
