//! The symbols of an object's file, which has names of functions that the object does not export.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr;

use super::elf::{Symbol, wide};
use super::file::{ElfFile, PROGRAM};
use super::object::Object;
use super::program_headers::Headers;

const SHT_SYMTAB: u32 = 2;
/// Of what it exports alone, which is left where it was stripped.
const SHT_DYNSYM: u32 = 11;
const STT_FUNC: u8 = 2;

/// How many symbols are read at a time.
const SOME: usize = 32;

/// Writes the name of the function with this address of code to `name`, as much as there is room
/// for, and zeroes. Returns the function's address.
///
/// # Safety
///
/// The object with that code stays loaded meanwhile.
pub(crate) unsafe fn find(addr: u64, name: &mut [u8]) -> Option<u64> {
    let object = Object::find(addr)?;
    // SAFETY: as the caller promises.
    let bias = unsafe { object.bias() }?;
    let is_program = Headers::of_program().is_some_and(|headers| headers.cover(object.start()));
    let file = if is_program {
        ElfFile::open(PROGRAM)
    } else {
        // SAFETY: likewise.
        unsafe { file_of(object) }
    }?;
    let table = |kind| file.sections().find(|section| section.sh_type == kind);
    let table = table(SHT_SYMTAB).or_else(|| table(SHT_DYNSYM))?;
    let strings = file.section(u16::try_from(table.sh_link).ok()?)?;
    let linked = addr.wrapping_sub(bias);
    let has = |symbol: &Symbol| {
        let at = linked.checked_sub(wide(symbol.st_value));
        symbol.st_info & 15 == STT_FUNC && at.is_some_and(|at| at < wide(symbol.st_size))
    };
    let (start, end) =
        (wide(table.sh_offset), wide(table.sh_offset).checked_add(wide(table.sh_size))?);
    let mut at = start;
    let found = loop {
        if at >= end {
            return None;
        }
        // What follows the table is other sections' in the last of them.
        let some: [Symbol; SOME] = file.read_padded(at)?;
        if let Some(found) = some.iter().find(|symbol| has(symbol)) {
            break *found;
        }
        at = at.saturating_add(u64::try_from(size_of_val(&some)).ok()?);
    };
    name.fill(0);
    let at = wide(strings.sh_offset).checked_add(found.st_name.into())?;
    file.read_bytes(at, name);
    // Other names follow.
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name.get_mut(end..).unwrap_or_default().fill(0);
    Some(wide(found.st_value).wrapping_add(bias))
}

/// What is compared of an object and its file in parts: the smallest page. Linkers put the build id there; without one
/// what the object exports begins there. Of one that differs, whoever has written to it, there is no name.
type Part = [u8; 64];
const PARTS: usize = 64;

/// The file of an object, if it is still the one that was loaded.
///
/// # Safety
///
/// The object stays loaded meanwhile.
unsafe fn file_of(object: Object) -> Option<ElfFile> {
    let first = ptr::with_exposed_provenance::<Part>(usize::try_from(object.start()).ok()?);
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: the result has room.
    if unsafe { libc::dladdr(first.cast(), info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it has been filled.
    let info = unsafe { info.assume_init() };
    // SAFETY: a name that ends with a zero, of an object that is loaded.
    let file = ElfFile::open(unsafe { CStr::from_ptr(info.dli_fname) })?;
    let is_same = |number: usize| {
        let at = u64::try_from(number.saturating_mul(size_of::<Part>())).ok()?;
        // SAFETY: the first page of an object is loaded, and is not written to while its names are asked for.
        let loaded = unsafe { first.wrapping_add(number).read() };
        (file.read_padded::<Part>(at)? == loaded).then_some(())
    };
    (0..PARTS).try_for_each(is_same)?;
    Some(file)
}
