//! ELF files that are read in parts, without allocation. Not in handlers.

use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::slice;

use super::elf::{ElfHeader, SectionHeader, Symbol, wide};

/// The program's, whatever its name is now.
pub(super) const PROGRAM: &CStr = c"/proc/self/exe";

/// The most section headers that are looked at.
const MOST_SECTIONS: u16 = 1 << 12;

/// A file of the program's own kind, by its section headers.
pub(super) struct ElfFile {
    file: File,
    pub(super) header: ElfHeader,
}

impl ElfFile {
    pub(super) fn open(name: &CStr) -> Option<Self> {
        let file = File::open(name)?;
        let header: ElfHeader = file.read(0)?;
        let is_right = header.e_ident.starts_with(b"\x7fELF")
            && usize::from(header.e_shentsize) == size_of::<SectionHeader>();
        is_right.then_some(Self { file, header })
    }

    pub(super) fn section(&self, number: u16) -> Option<SectionHeader> {
        let size = u64::from(self.header.e_shentsize);
        self.read(wide(self.header.e_shoff).checked_add(u64::from(number).checked_mul(size)?)?)
    }

    pub(super) fn sections(&self) -> impl Iterator<Item = SectionHeader> {
        let count = self.header.e_shnum.min(MOST_SECTIONS);
        (0..count).filter_map(|number| self.section(number))
    }

    /// What is there, of a kind that any bytes are one of.
    pub(super) fn read<T: Plain>(&self, at: u64) -> Option<T> {
        self.file.read(at)
    }

    /// The same with zeroes after the end of the file; `None` if it ends before.
    pub(super) fn read_padded<T: Plain>(&self, at: u64) -> Option<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        let bytes = value.as_mut_ptr().cast::<u8>();
        // SAFETY: they have been written.
        let bytes = unsafe { slice::from_raw_parts_mut(bytes, size_of::<T>()) };
        let is_there = self.file.read_bytes(at, bytes) != 0;
        // SAFETY: any bytes are one.
        is_there.then(|| unsafe { value.assume_init() })
    }

    /// Fills as much of `bytes` as there is, and returns how many.
    pub(super) fn read_bytes(&self, at: u64, bytes: &mut [u8]) -> usize {
        self.file.read_bytes(at, bytes)
    }
}

struct File(c_int);

impl File {
    fn open(name: &CStr) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: a name that ends with a zero.
        let file = unsafe { libc::open(name.as_ptr(), flags) };
        (file >= 0).then_some(Self(file))
    }

    fn read<T: Plain>(&self, at: u64) -> Option<T> {
        let mut value = MaybeUninit::<T>::uninit();
        let at = libc::off_t::try_from(at).ok()?;
        // SAFETY: the result has room.
        let len = unsafe { libc::pread(self.0, value.as_mut_ptr().cast(), size_of::<T>(), at) };
        // SAFETY: it is full, and any bytes are one.
        (usize::try_from(len) == Ok(size_of::<T>())).then(|| unsafe { value.assume_init() })
    }

    fn read_bytes(&self, at: u64, bytes: &mut [u8]) -> usize {
        let Ok(at) = libc::off_t::try_from(at) else { return 0 };
        // SAFETY: there is room.
        let len = unsafe { libc::pread(self.0, bytes.as_mut_ptr().cast(), bytes.len(), at) };
        usize::try_from(len).unwrap_or(0)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: it was opened.
        unsafe { libc::close(self.0) };
    }
}

/// What any bytes are one of.
///
/// # Safety
///
/// They are.
pub(super) unsafe trait Plain {}

// SAFETY: numbers.
unsafe impl Plain for ElfHeader {}
// SAFETY: likewise.
unsafe impl Plain for SectionHeader {}
// SAFETY: likewise.
unsafe impl Plain for Symbol {}
// SAFETY: likewise.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
// SAFETY: likewise.
unsafe impl Plain for u8 {}
