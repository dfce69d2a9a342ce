//! The functions that C calls and those that it defines. All `unsafe` of the crate is here: pointers
//! become references, after they were looked at.

mod deferral;
pub(crate) mod hooks;
mod lent;
mod spaces;
mod walks;

pub use deferral::*;
pub(crate) use hooks::Context;
pub use spaces::*;
pub use walks::*;

use core::slice;

use unwind_core::MapError;

use crate::numbers::unwind_error;
use crate::space::HeldBytes;

/// Looks at a pointer: whether it may be one to a `T` that all share.
///
/// # Safety
///
/// If it is neither NULL nor misaligned, there is a `T` that stays for `'a`, and nobody has exclusively.
unsafe fn shared<'a, T>(pointer: *const T) -> Result<&'a T, unwind_error> {
    check(pointer)?;
    // SAFETY: it is neither, so the caller's promise holds.
    Ok(unsafe { &*pointer })
}

/// Writes a value where C wants it.
///
/// # Safety
///
/// If the pointer is neither NULL nor misaligned, there is room for a `T`.
unsafe fn put<T>(pointer: *mut T, value: T) -> Result<(), unwind_error> {
    check(pointer)?;
    // SAFETY: it is neither, so the caller's promise holds.
    unsafe { pointer.write(value) };
    Ok(())
}

fn check<T>(pointer: *const T) -> Result<(), unwind_error> {
    match pointer {
        pointer if pointer.is_null() => Err(unwind_error::Null),
        pointer if !pointer.is_aligned() => Err(unwind_error::Misaligned),
        _ => Ok(()),
    }
}

/// The bytes of a held table.
pub(crate) fn held_bytes<'a>(held: HeldBytes) -> &'a [u8] {
    let (Ok(at), Ok(len)) = (usize::try_from(held.at.get()), usize::try_from(held.len)) else {
        return &[];
    };
    let at = core::ptr::with_exposed_provenance(at);
    // SAFETY: unwind_space_add alone makes these, of what the header asks for: as many bytes, which stay
    // and do not change until walks that began before the module's removal have ended.
    unsafe { slice::from_raw_parts(at, len) }
}

/// Zero, or the number of an error.
fn number(result: Result<(), unwind_error>) -> i32 {
    result.map_or_else(unwind_error::number, |()| 0)
}

/// A count, or the number of an error.
fn count(result: Result<u32, unwind_error>) -> i32 {
    match result {
        Ok(count) => i32::try_from(count).unwrap_or(i32::MAX),
        Err(error) => error.number(),
    }
}

impl From<MapError> for unwind_error {
    fn from(error: MapError) -> Self {
        match error {
            MapError::EmptyRange => Self::EmptyRange,
            MapError::Overlap(_) => Self::Overlap,
            MapError::Full => Self::Full,
            MapError::Busy => Self::Busy,
            _ => Self::Invalid,
        }
    }
}
