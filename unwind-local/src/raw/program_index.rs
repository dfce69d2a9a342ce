//! An index of the program's `.eh_frame`, for static programs: linkers leave the search table
//! out of them.
//!
//! Nothing in memory says where the section is, but the program's file does.

use core::ptr::null_mut;
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering};

use unwind_cfi::{CfiSection, CfiTable, Entries, IndexEntry, index};

use super::elf::wide;
use super::file::{ElfFile, PROGRAM};
use super::late_function::LateFunction;
use super::machine::CFI_ABI;
use super::object::{Object, Part};
use super::program_headers::Headers;

/// The index, once it is made, at the beginning of the memory that has its entries, too.
static INDEX: AtomicPtr<ProgramIndex> = AtomicPtr::new(null_mut());

/// Of a section header: the section is in memory.
const SHF_ALLOC: u64 = 2;

/// What is found by it stays as long as the process.
struct ProgramIndex {
    section: Part<'static>,
    entries: &'static [IndexEntry],
}

type Find = fn(Object) -> Option<CfiTable<'static>>;

/// [`find_table`], once there is an index.
// SAFETY: a function.
static FIND: LateFunction<Find> = unsafe { LateFunction::new() };

/// The program's call frame information by the index, if there is one and it is the program's object.
pub(super) fn table(object: Object) -> Option<CfiTable<'static>> {
    FIND.get()?(object)
}

fn find_table(object: Object) -> Option<CfiTable<'static>> {
    // SAFETY: null, or an index that was made, and stays.
    let index = unsafe { INDEX.load(Ordering::Acquire).as_ref() }?;
    let section = CfiSection::eh_frame(index.section.bytes, index.section.addr);
    Headers::of_program()
        .is_some_and(|headers| headers.cover(object.start()))
        .then(|| CfiTable::with_index(section, CFI_ABI, index.entries))
}

/// Makes the index, if the program has no search table and its file can be read. It takes
/// memory from the kernel and reads a file, so not for handlers.
pub(crate) fn make() {
    let has_index = !INDEX.load(Ordering::Acquire).is_null();
    let Some(headers) = Headers::of_program().filter(|_| !has_index) else { return };
    let has_table = headers.all().any(|header| header.kind == libc::PT_GNU_EH_FRAME);
    let made = if has_table { None } else { find_section(&headers).and_then(make_of) };
    if let Some(made) = made {
        // Of two that are made at a time one is used, and the other's memory is lost.
        let order = Ordering::AcqRel;
        let _ = INDEX.compare_exchange(null_mut(), made, order, Ordering::Relaxed);
        FIND.set(find_table);
    }
}

fn make_of(section: Part<'static>) -> Option<*mut ProgramIndex> {
    let entries = || {
        let section = CfiSection::eh_frame(section.bytes, section.addr);
        Entries::new(section, CFI_ABI)
    };
    let needed = index(entries(), &mut []).err()?.needed;
    let first = size_of::<ProgramIndex>().next_multiple_of(align_of::<IndexEntry>());
    let len = needed.checked_mul(size_of::<IndexEntry>())?.checked_add(first)?;
    let memory = map(len)?;
    let slots = memory.wrapping_byte_add(first).cast::<IndexEntry>();
    for at in 0..needed {
        // SAFETY: there is room for as many, aligned as pages are.
        unsafe { slots.wrapping_add(at).write(IndexEntry::default()) };
    }
    // SAFETY: they were written, and no one else knows of them.
    let slots = unsafe { slice::from_raw_parts_mut(slots, needed) };
    let entries = index(entries(), slots).ok()?;
    // SAFETY: there is room before the slots.
    unsafe { memory.write(ProgramIndex { section, entries }) };
    Some(memory)
}

/// Memory that stays.
fn map(len: usize) -> Option<*mut ProgramIndex> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: it is new memory.
    let memory = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then(|| memory.cast())
}

/// The `.eh_frame` by the section headers of the program's file.
fn find_section(headers: &Headers<'static>) -> Option<Part<'static>> {
    let file = ElfFile::open(PROGRAM)?;
    let names = file.section(file.header.e_shstrndx)?;
    let found = file.sections().find(|section| {
        let at = wide(names.sh_offset).saturating_add(section.sh_name.into());
        let is_loaded = wide(section.sh_flags) & SHF_ALLOC != 0;
        is_loaded && file.read::<[u8; 10]>(at).is_some_and(|name| name == *b".eh_frame\0")
    })?;
    headers.constant(headers.bias.wrapping_add(wide(found.sh_addr)), Some(wide(found.sh_size)))
}
