//! A sampling event of the kernel and the ring of records that it fills.

#![expect(unsafe_code, reason = "a system call, and memory shared with the kernel")]

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use unwind_perf::record::{AttrFlags, BranchSampleType, EventFormat, ReadFormat, SampleType};

use crate::error::Error;

/// What is sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attr {
    /// Samples a second of CPU time.
    pub(crate) rate: u32,
    /// Bytes of stack.
    pub(crate) stack: u32,
    /// Start at an exec, else at once.
    pub(crate) on_exec: bool,
}

/// The fields of a sample: those that tools need of one whose stack is walked later.
pub(crate) const FORMAT: EventFormat = EventFormat {
    sample_type: SampleType::IP
        .union(SampleType::TID)
        .union(SampleType::TIME)
        .union(SampleType::PERIOD)
        .union(SampleType::CALLCHAIN)
        .union(SampleType::REGS_USER)
        .union(SampleType::STACK_USER),
    read_format: ReadFormat::empty(),
    flags: AttrFlags::EXCLUDE_KERNEL
        .union(AttrFlags::EXCLUDE_HV)
        .union(AttrFlags::FREQ)
        .union(AttrFlags::SAMPLE_ID_ALL)
        .union(AttrFlags::EXCLUDE_CALLCHAIN_USER),
    branch_sample_type: BranchSampleType::empty(),
};

/// The general registers, rip, flags, cs and ss, by the kernel's numbers.
const REGISTERS: u64 = 0xff_0fff;

impl Attr {
    /// A `perf_event_attr`, as words.
    pub(crate) fn words(&self) -> [u64; 16] {
        const SOFTWARE: u64 = 1;
        const CPU_CLOCK: u64 = 0;
        const DISABLED: u64 = 1 << 0;
        const INHERIT: u64 = 1 << 1;
        const MMAP: u64 = 1 << 8;
        const COMM: u64 = 1 << 9;
        const ENABLE_ON_EXEC: u64 = 1 << 12;
        const TASK: u64 = 1 << 13;
        const MMAP2: u64 = 1 << 23;
        const COMM_EXEC: u64 = 1 << 24;
        /// Mappings say the build id of their file: since Linux 5.12.
        const BUILD_ID: u64 = 1 << 34;
        let start = if self.on_exec { DISABLED | ENABLE_ON_EXEC } else { 0 };
        let size = u64::try_from(size_of::<[u64; 16]>()).unwrap_or_default();
        let side_band = MMAP | MMAP2 | BUILD_ID | COMM | COMM_EXEC | TASK;
        let flags = FORMAT.flags.bits() | start | INHERIT | side_band;
        let mut words = [0; 16];
        let fields = [
            SOFTWARE | size << 32,
            CPU_CLOCK,
            self.rate.into(),
            FORMAT.sample_type.bits(),
            0,
            flags,
        ];
        for (word, field) in words.iter_mut().zip(fields) {
            *word = field;
        }
        let [.., registers, stack, _, _, _, _] = &mut words;
        *registers = REGISTERS;
        // The kernel takes multiples of eight.
        *stack = u64::from(self.stack & !7);
        words
    }
}

/// Where in the first page of a ring the kernel writes up to where it has
/// written, and reads up to where its reader has read.
const HEAD_AT: usize = 1024;
const TAIL_AT: usize = 1032;

const PAGE: usize = 4096;
/// Bytes of records, a power of two.
const RING: usize = 8 << 20;

/// An open event and its ring.
#[derive(Debug)]
pub(crate) struct Event {
    /// The page of [`HEAD_AT`] and [`TAIL_AT`], then `RING` bytes of records.
    ring: NonNull<u8>,
    _file: OwnedFd,
}

impl Event {
    /// Opens an event of the thread `task`, 0 for this one, and of those that
    /// it will start, while they run on `cpu`.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] and [`Error::Map`].
    pub(crate) fn open(attr: &Attr, task: i32, cpu: i32) -> Result<Self, Error> {
        const NO_GROUP: i32 = -1;
        const CLOSE_ON_EXEC: u64 = 1 << 3;
        let words = attr.words();
        // SAFETY: the kernel reads as many bytes of `words` as they say they
        // are, and writes none.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                words.as_ptr(),
                task,
                cpu,
                NO_GROUP,
                CLOSE_ON_EXEC,
            )
        };
        let fd = i32::try_from(fd).ok().filter(|&fd| fd >= 0);
        let fd = fd.ok_or_else(|| Error::Open(io::Error::last_os_error()))?;
        // SAFETY: the kernel has just opened it for this value alone.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a mapping at an address of the kernel's choice touches no
        // other memory.
        let ring = unsafe {
            libc::mmap(
                ptr::null_mut(),
                PAGE.saturating_add(RING),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if ring == libc::MAP_FAILED {
            return Err(Error::Map(io::Error::last_os_error()));
        }
        match NonNull::new(ring.cast()) {
            Some(ring) => Ok(Self { ring, _file: file }),
            None => Err(Error::Map(io::ErrorKind::AddrNotAvailable.into())),
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: both places are inside the first page, which is mapped as
        // long as `self` lives.
        let place = unsafe { self.ring.add(at) };
        // SAFETY: aligned to eight bytes, and the kernel accesses them as
        // whole words.
        unsafe { AtomicU64::from_ptr(place.as_ptr().cast()) }
    }

    /// Moves all records that are in the ring to the end of `records`.
    pub(crate) fn drain(&mut self, records: &mut Vec<u8>) {
        let head = self.word(HEAD_AT).load(Ordering::Acquire);
        let tail = self.word(TAIL_AT).load(Ordering::Relaxed);
        let place = |count: u64| usize::try_from(count).unwrap_or_default() & RING.wrapping_sub(1);
        let len = usize::try_from(head.wrapping_sub(tail)).unwrap_or_default().min(RING);
        let first = len.min(RING.wrapping_sub(place(tail)));
        for (from, len) in [(place(tail), first), (0, len.wrapping_sub(first))] {
            let Some(len) = NonZeroUsize::new(len) else { continue };
            let mut copy = vec![0; len.get()];
            // SAFETY: `from` is below `RING`, and the first page is before it.
            let source = unsafe { self.ring.add(PAGE.saturating_add(from)) };
            // SAFETY: `from + len` is at most `RING`, `copy` is as long, and
            // the kernel does not write between the tail and the head.
            unsafe { ptr::copy_nonoverlapping(source.as_ptr(), copy.as_mut_ptr(), len.get()) };
            records.append(&mut copy);
        }
        self.word(TAIL_AT).store(head, Ordering::Release);
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrows it.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), PAGE.saturating_add(RING)) };
    }
}
