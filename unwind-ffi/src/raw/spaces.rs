//! Modules of address spaces.

use core::num::NonZero;

use unwind_core::SharedModuleMap;

use super::{check, count, number, shared};
use crate::numbers::{unwind_error, unwind_format};
use crate::space::{AnySpace, HeldBytes, MOST_BEFORE, Space, Table, next_serial};
use crate::types::{
    UNWIND_SPACE_BYTES_16, UNWIND_SPACE_BYTES_64, UNWIND_SPACE_BYTES_256, unwind_module,
    unwind_space,
};

/// A space as C keeps it.
#[repr(C)]
struct SpaceBlock<const N: usize> {
    /// How many modules there is room for, so zero if it was not made.
    capacity: u64,
    space: Space<SharedModuleMap<N>>,
}

const _: () = {
    assert!(size_of::<SpaceBlock<16>>() == UNWIND_SPACE_BYTES_16, "the documented size");
    assert!(size_of::<SpaceBlock<64>>() == UNWIND_SPACE_BYTES_64, "the documented size");
    assert!(size_of::<SpaceBlock<256>>() == UNWIND_SPACE_BYTES_256, "the documented size");
};

/// Makes a space of `capacity` modules where it is to live, and not on the stack.
///
/// # Safety
///
/// There are `bytes` bytes.
unsafe fn make(memory: *mut unwind_space, bytes: usize, capacity: u64) {
    // SAFETY: there are as many bytes. A map whose bytes are all zero is an empty one.
    unsafe { memory.cast::<u8>().write_bytes(0, bytes) };
    // SAFETY: the first two words: how many, and the number.
    unsafe { memory.write(unwind_space { words: [capacity, next_serial()] }) };
}

/// The space at a pointer.
///
/// # Safety
///
/// If it is neither NULL nor misaligned, it is one to memory that stays for `'a`, and that
/// unwind_space_init has made or that begins with zero.
pub(super) unsafe fn any_space<'a>(
    pointer: *const unwind_space,
) -> Result<AnySpace<'a>, unwind_error> {
    // SAFETY: the caller's promise.
    let words = unsafe { shared(pointer) }?;
    match words.words {
        // SAFETY: it was made as such.
        [16, _] => Ok(AnySpace::Of16(unsafe { &(*pointer.cast::<SpaceBlock<16>>()).space })),
        // SAFETY: likewise.
        [64, _] => Ok(AnySpace::Of64(unsafe { &(*pointer.cast::<SpaceBlock<64>>()).space })),
        // SAFETY: likewise.
        [256, _] => Ok(AnySpace::Of256(unsafe { &(*pointer.cast::<SpaceBlock<256>>()).space })),
        _ => Err(unwind_error::Invalid),
    }
}

/// Makes a space without modules in `bytes` bytes of memory: of as many modules as there is room for, 16,
/// 64 or 256. Returns 0, or an error.
///
/// Any context. Nobody else uses the memory meanwhile.
///
/// # Safety
///
/// There are `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_space_init(memory: *mut unwind_space, bytes: usize) -> i32 {
    if let Err(error) = check(memory) {
        return error.number();
    }
    match bytes {
        // SAFETY: there are as many bytes.
        UNWIND_SPACE_BYTES_256.. => unsafe { make(memory, UNWIND_SPACE_BYTES_256, 256) },
        // SAFETY: likewise.
        UNWIND_SPACE_BYTES_64.. => unsafe { make(memory, UNWIND_SPACE_BYTES_64, 64) },
        // SAFETY: likewise.
        UNWIND_SPACE_BYTES_16.. => unsafe { make(memory, UNWIND_SPACE_BYTES_16, 16) },
        _ => return unwind_error::TooSmall.number(),
    }
    0
}

/// Adds a module: after an mmap of code, say, or in unwind_host_find_module. Returns 0, or an
/// error, and the space is as it was: UNWIND_ERROR_OVERLAP, UNWIND_ERROR_FULL, UNWIND_ERROR_BUSY among others.
///
/// Task context. Walks in any context may look up meanwhile; other changes are refused as busy, so have
/// a lock around these calls where they may meet.
///
/// # Safety
///
/// What is held stays, as struct unwind_module says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_space_add(
    space: *mut unwind_space,
    module: *const unwind_module,
) -> i32 {
    // SAFETY: the caller's promise.
    let space = unsafe { any_space(space) };
    // SAFETY: likewise.
    let module = unsafe { shared(module) };
    number(add(space, module))
}

fn add(
    space: Result<AnySpace<'_>, unwind_error>,
    module: Result<&unwind_module, unwind_error>,
) -> Result<(), unwind_error> {
    let (space, module) = (space?, module?);
    let table = table(module)?;
    Ok(space.add(module.start, module.end, table)?)
}

/// The table of a module.
fn table(module: &unwind_module) -> Result<Table, unwind_error> {
    let unwind_module { table, table_len, held, held_addr, held_len, .. } = *module;
    let format = unwind_format::from_number(module.format).ok_or(unwind_error::Invalid)?;
    let held_at =
        NonZero::new(held.expose_provenance()).and_then(|at| NonZero::<u64>::try_from(at).ok());
    let Some(at) = held_at else { return Ok(Table::of_target(format, table, table_len)) };
    let before = table.checked_sub(held_addr).and_then(|before| u32::try_from(before).ok());
    let before = before.filter(|&before| before <= MOST_BEFORE && before <= held_len);
    let before = before.ok_or(unwind_error::Invalid)?;
    if held_len >= 1 << 30 {
        return Err(unwind_error::Invalid);
    }
    let held = Some(HeldBytes { at, len: held_len, before });
    Ok(Table { format, addr: table, len: held_len.saturating_sub(before), held })
}

/// Removes the modules that have an address from `start` up to `end`, which is exclusive: before code is
/// unmapped. Returns how many there were, or an error.
///
/// Task context, as unwind_space_add.
///
/// # Safety
///
/// The space was made, or is zeroes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_space_remove(
    space: *mut unwind_space,
    start: u64,
    end: u64,
) -> i32 {
    // SAFETY: the caller's promise.
    let space = unsafe { any_space(space) };
    count(space.and_then(|space| Ok(u32::try_from(space.remove(start, end)?).unwrap_or(u32::MAX))))
}

/// Removes all modules: at an exec. Returns 0, or an error.
///
/// Task context, as unwind_space_add.
///
/// # Safety
///
/// The space was made, or is zeroes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_space_clear(space: *mut unwind_space) -> i32 {
    // SAFETY: the caller's promise.
    let space = unsafe { any_space(space) };
    number(space.and_then(|space| Ok(space.clear()?)))
}

/// Makes the modules of `child` those of `parent`, of the same size: at a fork. Returns 0, or an error.
///
/// Task context, as unwind_space_add. What the parent's modules hold has to stay for the child's, too.
///
/// # Safety
///
/// Both were made, or are zeroes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_space_copy(
    child: *mut unwind_space,
    parent: *mut unwind_space,
) -> i32 {
    // SAFETY: the caller's promise.
    let child = unsafe { any_space(child) };
    // SAFETY: likewise.
    let parent = unsafe { any_space(parent) };
    let copied = child.and_then(|child| child.copy_from(parent?).ok_or(unwind_error::Invalid));
    number(copied.and_then(|copied| Ok(copied?)))
}
