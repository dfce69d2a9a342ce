//! The loaded object that has an address of code, and its tables.

use core::arch::global_asm;
use core::slice;

use super::readable;
use super::registers::StartPc;

// glibc's `_dl_find_object` takes no lock, allocates nothing and may be called at any point.
// It is weak, so that programs link where there is none.
global_asm!(
    ".pushsection .text.unwind_local_find_object, \"ax\", @progbits",
    ".weak _dl_find_object",
    ".globl unwind_local_find_object",
    ".hidden unwind_local_find_object",
    ".type unwind_local_find_object, @function",
    "unwind_local_find_object:",
    ".cfi_startproc",
    "mov rax, qword ptr [rip + _dl_find_object@GOTPCREL]",
    "test rax, rax",
    "je 2f",
    "jmp rax",
    "2:",
    "mov eax, -1",
    "ret",
    ".cfi_endproc",
    ".size unwind_local_find_object, . - unwind_local_find_object",
    ".popsection",
);

/// glibc's `struct dl_find_object`.
#[derive(Default)]
#[repr(C)]
struct Found {
    flags: u64,
    map_start: u64,
    map_end: u64,
    link_map: u64,
    eh_frame_hdr: u64,
    reserved: [u64; 7],
}

unsafe extern "C" {
    fn unwind_local_find_object(addr: u64, found: *mut Found) -> i32;
}

/// A part of a loaded object, and its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'o> {
    pub(crate) addr: u64,
    pub(crate) bytes: &'o [u8],
}

/// A loaded object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    map_start: u64,
    map_end: u64,
    /// Where its `.eh_frame_hdr` is; zero if it has none.
    pub(crate) eh_frame_hdr: u64,
}

/// Program headers that tables are found by.
const PT_GNU_SFRAME: u32 = 0x6474_e554;

/// The most program headers that are looked at.
const MOST_HEADERS: usize = 64;

impl Object {
    /// The object with this address of code.
    #[inline(never)]
    pub(crate) fn find(addr: u64) -> Option<Self> {
        let mut found = Found::default();
        // SAFETY: the result has the layout of the ABI.
        let result = unsafe { unwind_local_find_object(addr, &raw mut found) };
        let Found { map_start, map_end, eh_frame_hdr, .. } = found;
        (result == 0).then_some(Self { map_start, map_end, eh_frame_hdr })
    }

    /// Whether it is the C library, which stays loaded.
    pub(crate) fn is_c_library(self) -> bool {
        let function: unsafe extern "C" fn(_, _, _) -> _ = libc::sigaction;
        #[expect(clippy::as_conversions, reason = "a function's address")]
        let addr = (function as *const ()).addr();
        self.contains(addr)
    }

    /// Whether it stays loaded for as long as the process runs: the C library, the dynamic
    /// linker, the program.
    pub(crate) fn is_permanent(self) -> bool {
        let linker = (&raw const readable::__libc_stack_end).addr();
        let is_program = || Headers::of_program().is_some_and(|headers| headers.cover(self));
        self.is_c_library() || self.contains(linker) || is_program()
    }

    fn contains(self, addr: usize) -> bool {
        u64::try_from(addr).is_ok_and(|addr| addr >= self.map_start && addr < self.map_end)
    }

    /// Its `.sframe`, if it has one.
    ///
    /// # Safety
    ///
    /// The object stays loaded while the bytes are used: code of it has a frame on this
    /// thread's stack.
    #[inline(never)]
    pub(crate) unsafe fn sframe<'o>(self) -> Option<Part<'o>> {
        // SAFETY: as the caller promises.
        let headers = unsafe { self.headers() }?;
        let header = headers.all().find(|header| header.p_type == PT_GNU_SFRAME)?;
        let addr = headers.bias.wrapping_add(header.p_vaddr);
        // SAFETY: likewise.
        unsafe { self.part(&headers, addr, Some(header.p_memsz)) }
    }

    /// The segment with an address of it, from there on.
    ///
    /// # Safety
    ///
    /// As [`sframe`](Self::sframe).
    pub(crate) unsafe fn segment_from<'o>(self, addr: u64) -> Option<Part<'o>> {
        // SAFETY: as the caller promises.
        let headers = unsafe { self.headers() }?;
        // SAFETY: likewise.
        unsafe { self.part(&headers, addr, None) }
    }

    /// Its program headers.
    ///
    /// # Safety
    ///
    /// As [`sframe`](Self::sframe).
    unsafe fn headers<'o>(self) -> Option<Headers<'o>> {
        // The C library lists each code segment of the program by itself if the linker left
        // holes between the segments. It loads all other objects as one piece.
        Headers::of_program().filter(|headers| headers.cover(self)).or_else(|| {
            // SAFETY: as the caller promises.
            unsafe { Headers::of_first_page(self) }
        })
    }

    /// The bytes from an address on, to the end of its segment or of this length.
    ///
    /// # Safety
    ///
    /// As [`sframe`](Self::sframe).
    unsafe fn part<'o>(
        self,
        headers: &Headers<'_>,
        addr: u64,
        len: Option<u64>,
    ) -> Option<Part<'o>> {
        let segment = headers.all().find(|header| {
            let start = headers.bias.wrapping_add(header.p_vaddr);
            // Nothing changes what cannot be written to.
            let is_constant = header.p_flags & libc::PF_W == 0 && header.p_flags & libc::PF_R != 0;
            let is_loaded = header.p_type == libc::PT_LOAD && is_constant;
            is_loaded && addr.checked_sub(start).is_some_and(|at| at < header.p_filesz)
        })?;
        let start = headers.bias.wrapping_add(segment.p_vaddr);
        let rest = start.checked_add(segment.p_filesz)?.checked_sub(addr)?;
        let len = len.unwrap_or(rest);
        if len > rest {
            return None;
        }
        let first = core::ptr::with_exposed_provenance::<u8>(usize::try_from(addr).ok()?);
        // SAFETY: in a segment of the object that is loaded, can be read, and is constant.
        let bytes = unsafe { slice::from_raw_parts(first, usize::try_from(len).ok()?) };
        Some(Part { addr, bytes })
    }
}

/// Fills `buf` with code near to where a walk starts; `false` if it is not there.
pub(crate) fn read_code(start: StartPc, addr: u64, buf: &mut [u8]) -> bool {
    const NEAR: u64 = 256;
    let pc = start.get();
    let object = if pc.abs_diff(addr) <= NEAR { Object::find(pc) } else { None };
    // SAFETY: this thread runs code of it, or has it interrupted.
    let part = object.and_then(|object| unsafe { object.segment_from(addr) });
    let Some(bytes) = part.and_then(|part| part.bytes.get(..buf.len())) else { return false };
    for (byte, value) in buf.iter_mut().zip(bytes) {
        *byte = *value;
    }
    true
}

/// The program headers of an object.
struct Headers<'o> {
    list: &'o [libc::Elf64_Phdr],
    /// How far above its linked addresses it is loaded.
    bias: u64,
}

impl<'o> Headers<'o> {
    /// Those of the program, which the kernel tells of. They stay.
    fn of_program() -> Option<Headers<'static>> {
        // SAFETY: it looks in a list that the kernel left.
        let [addr, len, size] = unsafe {
            [libc::AT_PHDR, libc::AT_PHNUM, libc::AT_PHENT].map(|kind| libc::getauxval(kind))
        };
        let first = usize::try_from(addr).ok()?;
        let len = usize::try_from(len).ok()?.min(MOST_HEADERS);
        let is_right = first != 0
            && first.is_multiple_of(8)
            && usize::try_from(size).is_ok_and(|size| size == size_of::<libc::Elf64_Phdr>());
        if !is_right {
            return None;
        }
        let headers = core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(first);
        // SAFETY: the C library read them here when the program started; any bytes are some.
        let list = unsafe { slice::from_raw_parts(headers, len) };
        let itself = list.iter().find(|header| header.p_type == libc::PT_PHDR);
        let bias = match itself {
            Some(header) => addr.wrapping_sub(header.p_vaddr),
            // A static program may have none. Its headers are in the first page of the file.
            None => (addr & !4095).wrapping_sub(first_page(list)?),
        };
        Some(Headers { list, bias })
    }

    /// Those that the first page of an object tells of, which is one piece.
    ///
    /// # Safety
    ///
    /// As [`Object::sframe`].
    unsafe fn of_first_page(object: Object) -> Option<Self> {
        let first = usize::try_from(object.map_start).ok()?;
        let loaded = object.map_end.checked_sub(object.map_start)?;
        if !first.is_multiple_of(4096) || loaded < 4096 {
            return None;
        }
        let elf = core::ptr::with_exposed_provenance::<libc::Elf64_Ehdr>(first);
        // SAFETY: the first page of an object is loaded, and never written to.
        let elf = unsafe { elf.as_ref() }?;
        let len = usize::from(elf.e_phnum).min(MOST_HEADERS);
        let is_right = elf.e_ident.starts_with(b"\x7fELF")
            && usize::from(elf.e_phentsize) == size_of::<libc::Elf64_Phdr>()
            && elf.e_phoff.is_multiple_of(8);
        if !is_right {
            return None;
        }
        let end = elf.e_phoff.checked_add(u64::from(elf.e_phnum).checked_mul(56)?)?;
        let at = object.map_start.checked_add(elf.e_phoff)?;
        if end > 4096
            && !(end <= loaded && readable::are_readable(at, object.map_start.checked_add(end)?))
        {
            return None;
        }
        let headers =
            core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(usize::try_from(at).ok()?);
        // SAFETY: they are in the first page, or can be read; aligned, and any bytes are some.
        let list = unsafe { slice::from_raw_parts(headers, len) };
        let bias = object.map_start.wrapping_sub(first_page(list)?);
        // Tools that add headers move them after all else, as far from the beginning in memory as
        // in the file. Where they are not, this is something else.
        let is_there = list.iter().any(|header| {
            let distance = elf.e_phoff.wrapping_sub(header.p_offset);
            let is_in_it = elf.e_phoff >= header.p_offset
                && end.wrapping_sub(header.p_offset) <= header.p_filesz;
            let is_at = bias.wrapping_add(header.p_vaddr).wrapping_add(distance) == at;
            header.p_type == libc::PT_LOAD && is_in_it && is_at
        });
        (end <= 4096 || is_there).then_some(Headers { list, bias })
    }

    fn all(&self) -> impl Iterator<Item = &libc::Elf64_Phdr> {
        self.list.iter()
    }

    /// Whether they are those of this object.
    fn cover(&self, object: Object) -> bool {
        self.all().any(|header| {
            let start = self.bias.wrapping_add(header.p_vaddr & !4095);
            let len = (header.p_vaddr & 4095).saturating_add(header.p_memsz);
            let at = object.map_start.checked_sub(start);
            header.p_type == libc::PT_LOAD && at.is_some_and(|at| at < len)
        })
    }
}

/// The linked address of the page that the first segment starts in.
fn first_page(headers: &[libc::Elf64_Phdr]) -> Option<u64> {
    let loaded = headers.iter().find(|header| header.p_type == libc::PT_LOAD)?;
    Some(loaded.p_vaddr & !4095)
}
