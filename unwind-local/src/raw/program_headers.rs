//! The program headers of loaded objects.

use core::slice;

use super::c_library::auxiliary;
use super::elf::{ElfHeader, ProgramHeader, Segment, wide};
use super::object::{Object, Part};
use super::readable;

/// The most program headers that are looked at.
const MOST_HEADERS: usize = 64;

/// The program headers of an object.
pub(super) struct Headers<'o> {
    list: &'o [ProgramHeader],
    /// How far above its linked addresses it is loaded.
    pub(super) bias: u64,
}

impl<'o> Headers<'o> {
    /// Those of the program, which the kernel tells of. They stay.
    pub(super) fn of_program() -> Option<Headers<'static>> {
        let [addr, len, size] = [libc::AT_PHDR, libc::AT_PHNUM, libc::AT_PHENT].map(auxiliary);
        let first = usize::try_from(addr).ok()?;
        let len = usize::try_from(len).ok()?.min(MOST_HEADERS);
        let is_right = first != 0
            && first.is_multiple_of(align_of::<ProgramHeader>())
            && usize::try_from(size).is_ok_and(|size| size == size_of::<ProgramHeader>());
        if !is_right {
            return None;
        }
        let headers = core::ptr::with_exposed_provenance::<ProgramHeader>(first);
        // SAFETY: the C library read them here when the program started; any bytes are some.
        let list = unsafe { slice::from_raw_parts(headers, len) };
        let itself = list.iter().map(Segment::from).find(|header| header.kind == libc::PT_PHDR);
        let bias = match itself {
            Some(header) => addr.wrapping_sub(header.vaddr),
            // A static program may have none. Its headers are in the first page of the file.
            None => (addr & !4095).wrapping_sub(first_page(list)?),
        };
        Some(Headers { list, bias })
    }

    /// Those that the first page of an object tells of, which is one piece.
    ///
    /// # Safety
    ///
    /// The object is loaded as long as they are used.
    pub(super) unsafe fn of_first_page(map_start: u64, map_end: u64) -> Option<Self> {
        let first = usize::try_from(map_start).ok()?;
        let loaded = map_end.checked_sub(map_start)?;
        if !first.is_multiple_of(4096) || loaded < 4096 {
            return None;
        }
        let elf = core::ptr::with_exposed_provenance::<ElfHeader>(first);
        // SAFETY: the first page of an object is loaded, and never written to.
        let elf = unsafe { elf.as_ref() }?;
        let (offset, align) = (wide(elf.e_phoff), u64::try_from(align_of::<ProgramHeader>()).ok()?);
        let len = usize::from(elf.e_phnum).min(MOST_HEADERS);
        let is_right = elf.e_ident.starts_with(b"\x7fELF")
            && usize::from(elf.e_phentsize) == size_of::<ProgramHeader>()
            && offset.is_multiple_of(align);
        if !is_right {
            return None;
        }
        let end =
            offset.checked_add(u64::from(elf.e_phnum).checked_mul(elf.e_phentsize.into())?)?;
        let at = map_start.checked_add(offset)?;
        if end > 4096 && !(end <= loaded && readable::are_readable(at, map_start.checked_add(end)?))
        {
            return None;
        }
        let headers =
            core::ptr::with_exposed_provenance::<ProgramHeader>(usize::try_from(at).ok()?);
        // SAFETY: they are in the first page, or can be read; aligned, and any bytes are some.
        let list = unsafe { slice::from_raw_parts(headers, len) };
        let bias = map_start.wrapping_sub(first_page(list)?);
        // Tools that add headers move them after all else, as far from the beginning in memory as
        // in the file. Where they are not, this is something else.
        let is_there = list.iter().map(Segment::from).any(|header| {
            let distance = offset.wrapping_sub(header.offset);
            let is_in_it =
                offset >= header.offset && end.wrapping_sub(header.offset) <= header.filesz;
            let is_at = bias.wrapping_add(header.vaddr).wrapping_add(distance) == at;
            header.kind == libc::PT_LOAD && is_in_it && is_at
        });
        (end <= 4096 || is_there).then_some(Headers { list, bias })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Segment> {
        self.list.iter().map(Segment::from)
    }

    /// Those that the C library lists.
    ///
    /// # Safety
    ///
    /// The object is loaded as long as they are used.
    pub(super) unsafe fn of_listed(info: &libc::dl_phdr_info) -> Option<Self> {
        let len = usize::from(info.dlpi_phnum).min(MOST_HEADERS);
        if info.dlpi_phdr.is_null() {
            return None;
        }
        // SAFETY: as the caller promises.
        let list = unsafe { slice::from_raw_parts(info.dlpi_phdr, len) };
        Some(Headers { list, bias: wide(info.dlpi_addr) })
    }

    /// The bytes from an address on, to the end of their segment or of this length, if nothing
    /// changes that segment.
    pub(super) fn constant(&self, addr: u64, len: Option<u64>) -> Option<Part<'o>> {
        let segment = self.all().find(|header| {
            let start = self.bias.wrapping_add(header.vaddr);
            // Nothing changes what cannot be written to.
            let is_constant = header.flags & libc::PF_W == 0 && header.flags & libc::PF_R != 0;
            let is_loaded = header.kind == libc::PT_LOAD && is_constant;
            is_loaded && addr.checked_sub(start).is_some_and(|at| at < header.filesz)
        })?;
        let start = self.bias.wrapping_add(segment.vaddr);
        let rest = start.checked_add(segment.filesz)?.checked_sub(addr)?;
        let len = len.unwrap_or(rest);
        if len > rest {
            return None;
        }
        let first = core::ptr::with_exposed_provenance::<u8>(usize::try_from(addr).ok()?);
        // SAFETY: in a segment of the object, which is loaded as long as its headers are used, can
        // be read, and is constant.
        let bytes = unsafe { slice::from_raw_parts(first, usize::try_from(len).ok()?) };
        Some(Part { addr, bytes })
    }

    /// Whether they are those of the object with the code at this address.
    pub(super) fn cover(&self, addr: u64) -> bool {
        self.all().any(|header| {
            let start = self.bias.wrapping_add(header.vaddr & !4095);
            let len = (header.vaddr & 4095).saturating_add(header.memsz);
            header.kind == libc::PT_LOAD && addr.checked_sub(start).is_some_and(|at| at < len)
        })
    }

    /// The object that they are of, as one piece.
    pub(super) fn object(&self) -> Option<Object> {
        let loaded = self.all().filter(|header| header.kind == libc::PT_LOAD);
        let ends = loaded.map(|header| header.vaddr.saturating_add(header.memsz));
        let (start, end) = (first_page(self.list)?, ends.max()?);
        let search_table = self.all().find(|header| header.kind == libc::PT_GNU_EH_FRAME);
        let at = |addr: u64| self.bias.wrapping_add(addr);
        Some(Object::new(at(start)..at(end), search_table.map_or(0, |header| at(header.vaddr))))
    }
}

/// The linked address of the page that the first segment starts in.
fn first_page(headers: &[ProgramHeader]) -> Option<u64> {
    let loaded = headers.iter().map(Segment::from).find(|header| header.kind == libc::PT_LOAD)?;
    Some(loaded.vaddr & !4095)
}
