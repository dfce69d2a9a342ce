//! A sampling event of the kernel, and the ring of records that it fills.

#![expect(unsafe_code, reason = "system calls, and memory shared with the kernel")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU64;

use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::Endian;
use unwind_perf::ring::{MmapPage, RingError, RingReader};

use crate::engine::{Found, StoredRecord};

/// Bytes of a page on x86; of a word there are eight.
const PAGE: usize = 4096;

/// An open event.
#[derive(Debug)]
pub struct PerfEvent {
    file: OwnedFd,
}

/// What an event shares with the kernel: the first page and the ring.
#[derive(Debug)]
pub struct EventRing {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: it is memory that belongs to no thread, accessed by atomics alone.
unsafe impl Send for EventRing {}
// SAFETY: as above.
unsafe impl Sync for EventRing {}

impl PerfEvent {
    /// Opens an event of the thread `task`, 0 for this one and -1 for all, while it runs on
    /// `cpu`.
    ///
    /// # Errors
    ///
    /// What `perf_event_open` fails with.
    pub fn open(attr: &EventAttr, task: i32, cpu: i32) -> io::Result<Self> {
        Self::open_of(attr, task, cpu, 0)
    }

    /// Opens an event of all tasks of a control group, whose folder is open, while they run on `cpu`.
    ///
    /// # Errors
    ///
    /// What `perf_event_open` fails with.
    pub fn open_in(attr: &EventAttr, group: BorrowedFd<'_>, cpu: i32) -> io::Result<Self> {
        const OF_CONTROL_GROUP: u64 = 1 << 2;
        Self::open_of(attr, group.as_raw_fd(), cpu, OF_CONTROL_GROUP)
    }

    fn open_of(attr: &EventAttr, task: i32, cpu: i32, whose: u64) -> io::Result<Self> {
        const NO_GROUP: i32 = -1;
        const CLOSE_ON_EXEC: u64 = 1 << 3;
        let mut bytes = [0; EventAttr::SIZE];
        let encoded = attr.encode(&mut bytes, Endian::NATIVE);
        encoded.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel reads as many bytes as `size` in them says, which `encode` has
        // found to be there, and writes into that field at most.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                bytes.as_mut_ptr(),
                task,
                cpu,
                NO_GROUP,
                CLOSE_ON_EXEC | whose,
            )
        };
        let fd = i32::try_from(fd).ok().filter(|&fd| fd >= 0);
        let fd = fd.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just opened it for this value alone.
        Ok(Self { file: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Maps a ring of `bytes`, a power of two of at least a page, into which the event writes.
    ///
    /// # Errors
    ///
    /// What `mmap` fails with.
    pub fn map(&self, bytes: usize) -> io::Result<EventRing> {
        EventRing::map(self.as_fd(), 0, bytes)
    }

    /// Has the event write into the ring of `other`, an event of the same CPU.
    ///
    /// # Errors
    ///
    /// What the kernel refuses it with.
    pub fn write_into(&self, other: &Self) -> io::Result<()> {
        const SET_OUTPUT: libc::c_ulong = 0x2405;
        let other = libc::c_ulong::try_from(other.file.as_raw_fd());
        self.control(SET_OUTPUT, other.map_err(|_| io::ErrorKind::InvalidInput)?)
    }

    /// Begins the sampling, of the threads that have inherited the event, too.
    ///
    /// # Errors
    ///
    /// What the kernel refuses it with.
    pub fn enable(&self) -> io::Result<()> {
        const ENABLE: libc::c_ulong = 0x2400;
        self.control(ENABLE, 0)
    }

    /// Ends the sampling, of the threads that have inherited the event, too.
    ///
    /// # Errors
    ///
    /// What the kernel refuses it with.
    pub fn disable(&self) -> io::Result<()> {
        const DISABLE: libc::c_ulong = 0x2401;
        self.control(DISABLE, 0)
    }

    /// Has a tracepoint take the hits alone for which an expression of its fields is true.
    ///
    /// # Errors
    ///
    /// What the kernel refuses it with.
    pub fn filter(&self, expression: &CStr) -> io::Result<()> {
        const SET_FILTER: libc::c_ulong = 0x4008_2406;
        // SAFETY: the kernel reads the text up to its end, which `CStr` has.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), SET_FILTER, expression.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: all requests take a number.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), request, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The id that the event's records have, those of threads that have inherited it, too.
    ///
    /// # Errors
    ///
    /// What the kernel refuses it with.
    pub fn id(&self) -> io::Result<u64> {
        const ID: libc::c_ulong = 0x8008_2407;
        let mut id = 0_u64;
        // SAFETY: the kernel writes a word into this one.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), ID, &raw mut id) } {
            0 => Ok(id),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// What reading the event gives, in the order of its `read_format`.
    ///
    /// # Errors
    ///
    /// What the kernel refuses it with.
    pub fn counts<const N: usize>(&self) -> io::Result<[u64; N]> {
        let mut counts = [0_u64; N];
        let len = size_of_val(&counts);
        // SAFETY: the kernel writes at most `len` bytes, and any bytes are numbers.
        let read = unsafe { libc::read(self.file.as_raw_fd(), counts.as_mut_ptr().cast(), len) };
        if usize::try_from(read).ok() == Some(len) {
            return Ok(counts);
        }
        Err(io::Error::last_os_error())
    }
}

impl AsFd for PerfEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl EventRing {
    /// Maps the first page and a ring of `bytes` from an offset of a file on.
    pub(crate) fn map(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let len = PAGE.checked_add(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let offset = offset.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let fd = file.as_raw_fd();
        // SAFETY: a mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, words: len >> 3 })
    }

    /// Hands out the records that there are now: a ring that fills as fast as it is read has its turn to end,
    /// too.
    pub(crate) fn drain(&self, take: &mut dyn FnMut(&dyn StoredRecord)) -> Found {
        let mut found = Found::default();
        let Ok(mut reader) = self.reader() else { return found };
        let mut left = reader.waiting();
        let bytes = self.words.saturating_sub(PAGE >> 3).saturating_mul(8);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        found.percent = left.saturating_mul(100).checked_div(bytes).unwrap_or(100);
        while left > 0 {
            let before = reader.waiting();
            let taken = reader.take(|record| {
                take(&record);
                record.header().size
            });
            match taken {
                Ok(Some(size)) => left = left.saturating_sub(size.into()),
                Ok(None) => break,
                Err(_) => {
                    found.skipped = before.saturating_sub(reader.waiting());
                    break;
                }
            }
        }
        found
    }

    /// The records that were not read yet.
    ///
    /// # Errors
    ///
    /// [`RingError`] if the ring has not a length that a ring can have.
    pub fn reader(&self) -> Result<RingReader<'_>, RingError> {
        let words = self.words();
        let (page, data) = words.split_at_checked(PAGE >> 3).unwrap_or_default();
        RingReader::new(MmapPage::new(page)?, data)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: as many words are mapped for as long as `self` lives, and all of this
        // program's accesses are atomic.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for EventRing {
    fn drop(&mut self) {
        let len = self.words.saturating_mul(size_of::<AtomicU64>());
        // SAFETY: the mapping is this value's own, and nothing borrows it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), len) };
    }
}
