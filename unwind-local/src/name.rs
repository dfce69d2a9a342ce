//! Names of functions, without the standard library.

use crate::raw::symbol_table;

/// Writes the name of the function that has this address of code to `name`, as much as there is room
/// for, and fills the rest with zeroes. Returns how far into the function the address is. `None` if
/// there is no symbol; `name` then means nothing.
///
/// The name is that in the object's file, also of a function that the object does not export; it is
/// not demangled. There is none if the file is no longer the one that was loaded. For a return
/// address pass the address before it, which is in the function that made the call.
///
/// Not for signal handlers: it reads a file, and asks the dynamic linker for its name.
///
/// # Safety
///
/// The object with that code, if there is one, stays loaded meanwhile.
///
/// # Example
///
/// ```
/// fn function() {}
///
/// let mut name = [0; 200];
/// // SAFETY: the program stays loaded.
/// let offset = unsafe { unwind_local::name_of(function as fn() as usize, &mut name) };
/// assert_eq!(offset, Some(0));
/// let end = name.iter().position(|byte| *byte == 0).unwrap();
/// assert!(name[..end].windows(8).any(|part| part == b"function"));
/// assert!(name[end..].iter().all(|byte| *byte == 0));
/// ```
#[expect(unsafe_code, reason = "the caller knows what stays")]
pub unsafe fn name_of(addr: usize, name: &mut [u8]) -> Option<usize> {
    let addr = u64::try_from(addr).ok()?;
    // SAFETY: as the caller promises.
    let start = unsafe { symbol_table::find(addr, name) }?;
    usize::try_from(addr.wrapping_sub(start)).ok()
}
