//! The system call `bpf`, and memory that is shared with the kernel.

#![expect(unsafe_code, reason = "system calls, and memory shared with the kernel")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU64;

/// A command of `bpf`, by its number in `linux/bpf.h`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command(libc::c_int);

impl Command {
    pub(crate) const MAP_CREATE: Self = Self(0);
    pub(crate) const MAP_UPDATE: Self = Self(2);
    pub(crate) const MAP_DELETE: Self = Self(3);
    pub(crate) const PROGRAM_LOAD: Self = Self(5);
    const PROGRAM_RUN: Self = Self(10);
    pub(crate) const OBJECT_INFO: Self = Self(15);
    pub(crate) const RAW_TRACEPOINT_OPEN: Self = Self(17);
    pub(crate) const LINK_CREATE: Self = Self(28);
}

/// The argument of a command: fields at their places in `union bpf_attr`, zero where none is set.
/// What fields point to lives as long.
#[derive(Debug)]
pub(crate) struct Attr<'a> {
    words: [u64; 18],
    data: std::marker::PhantomData<&'a mut [u8]>,
}

impl<'a> Attr<'a> {
    pub(crate) const fn new() -> Self {
        Self { words: [0; 18], data: std::marker::PhantomData }
    }

    /// Sets the field of four bytes at this place.
    pub(crate) fn u32(mut self, at: usize, value: u32) -> Self {
        let shift = if at.is_multiple_of(8) { 0 } else { 32 };
        if let Some(word) = self.words.get_mut(at >> 3) {
            *word |= u64::from(value) << shift;
        }
        self
    }

    /// Sets the field of eight bytes at this place.
    pub(crate) fn u64(mut self, at: usize, value: u64) -> Self {
        self.words.get_mut(at >> 3).into_iter().for_each(|word| *word = value);
        self
    }

    /// Sets a field to a file.
    pub(crate) fn fd(self, at: usize, fd: BorrowedFd<'a>) -> Self {
        self.u32(at, u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX))
    }

    /// Sets a field to the address of bytes that the kernel reads.
    pub(crate) fn bytes(self, at: usize, bytes: &'a [u8]) -> Self {
        self.u64(at, address(bytes.as_ptr()))
    }

    /// Sets a field to the address of bytes that the kernel writes.
    pub(crate) fn bytes_mut(self, at: usize, bytes: &'a mut [u8]) -> Self {
        self.u64(at, address(bytes.as_mut_ptr()))
    }

    /// Sets the name at this place, of 15 bytes at most.
    pub(crate) fn name(self, at: usize, name: &str) -> Self {
        let (words, _) = name.as_bytes().as_chunks::<4>();
        let whole = words.iter().take(3).enumerate();
        whole.fold(self, |attr, (word, &bytes)| {
            attr.u32(at.saturating_add(word << 2), u32::from_ne_bytes(bytes))
        })
    }

    /// Runs a command. Returns what it returns.
    ///
    /// The caller has set no field to an address but by [`bytes`](Self::bytes) and
    /// [`bytes_mut`](Self::bytes_mut), and their lengths to no more than there is.
    fn run(&mut self, command: Command) -> io::Result<i32> {
        let len = size_of_val(&self.words);
        // SAFETY: the kernel reads and writes `len` bytes of the argument, and what fields
        // point to, which `'a` keeps there.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command.0, self.words.as_mut_ptr(), len) };
        i32::try_from(result).ok().filter(|&it| it >= 0).ok_or_else(io::Error::last_os_error)
    }

    /// Runs a command that returns nothing.
    pub(crate) fn act(mut self, command: Command) -> io::Result<()> {
        self.run(command).map(drop)
    }

    /// Runs a program. Returns what it returns.
    pub(crate) fn run_program(mut self) -> io::Result<i32> {
        self.run(Command::PROGRAM_RUN)?;
        let [_, _, _, _, a, b, c, d] = self.words.first().copied().unwrap_or(0).to_le_bytes();
        Ok(i32::from_le_bytes([a, b, c, d]))
    }

    /// Runs a command that opens a file.
    pub(crate) fn open(mut self, command: Command) -> io::Result<OwnedFd> {
        let fd = self.run(command)?;
        // SAFETY: the kernel has just opened it for this value alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// The address of what the kernel is to read or write.
pub(crate) fn address<T>(to: *const T) -> u64 {
    u64::try_from(to.expose_provenance()).unwrap_or(u64::MAX)
}

/// Takes over a file that the kernel has opened for this process and told the number of.
///
/// `None` if no file has that number.
pub(crate) fn take_fd(fd: i32) -> Option<OwnedFd> {
    if fd < 0 {
        return None;
    }
    // SAFETY: the kernel has opened it for the caller alone, who takes each number once.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Words that are shared with the kernel.
#[derive(Debug)]
pub(crate) struct Shared {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: it is memory that belongs to no thread, accessed by atomics alone.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `bytes` of a map from `offset` on, both in whole pages.
    pub(crate) fn map(
        file: BorrowedFd<'_>,
        bytes: usize,
        offset: i64,
        is_written: bool,
    ) -> io::Result<Self> {
        let access = libc::PROT_READ | if is_written { libc::PROT_WRITE } else { 0 };
        let fd = file.as_raw_fd();
        // SAFETY: a mapping at an address of the kernel's choice touches no other memory.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, words: bytes >> 3 })
    }

    /// The words. Those that were mapped to be read alone must not be written to.
    pub(crate) const fn words(&self) -> &[AtomicU64] {
        // SAFETY: as many words are mapped until this is dropped, aligned to a page, and others
        // write to them by atomics or, as the kernel does, before they say so by an atomic.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words << 3) };
    }
}
