//! Physical frames of 4 KiB: which are free.

use super::PAGE;
use super::direct_map::{RAM_LEN, phys_of, pointer};
use crate::exclusive::Exclusive;

const FRAMES: usize = (RAM_LEN / PAGE) as usize;
const WORDS: usize = FRAMES / 64;

/// A frame with one owner: its bytes belong to the holder of this value.
///
/// It is not freed by being dropped, since page tables hold it as a number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame(u64);

struct Pool {
    /// A bit for each frame in use.
    used: [u64; WORDS],
    in_use: usize,
    next: usize,
}

static POOL: Exclusive<Pool> = Exclusive::new(Pool { used: [0; WORDS], in_use: 0, next: 0 });

unsafe extern "C" {
    static kernel_end: u8;
}

impl Frame {
    /// Takes a free frame and fills it with zeroes; `None` if all are in use.
    pub(super) fn allocate() -> Option<Self> {
        let number = POOL.with(Pool::take)?;
        let frame = Self(number as u64 * PAGE);
        frame.fill(0);
        Some(frame)
    }

    /// Gives the frame back. What still refers to it by mistake will notice.
    pub(super) fn free(self) {
        self.fill(0xcc);
        POOL.with(|pool| pool.release((self.0 / PAGE) as usize));
    }

    /// The frame at a physical address that [`phys`](Self::phys) returned.
    pub(super) const fn from_phys(phys: u64) -> Self {
        Self(phys)
    }

    pub(super) const fn phys(self) -> u64 {
        self.0
    }

    fn fill(self, byte: u8) {
        // SAFETY: the frame is memory, and belongs to the caller.
        unsafe { pointer(self.0).write_bytes(byte, PAGE as usize) }
    }

    /// Takes over the bytes of another frame.
    pub(super) fn copy_from(self, other: Self) {
        if self != other {
            // SAFETY: both are memory and, being different, do not overlap.
            unsafe {
                pointer(self.0).copy_from_nonoverlapping(pointer(other.0), PAGE as usize);
            }
        }
    }

    /// Writes `bytes` at `offset`, as far as they are in the frame.
    pub(super) fn write(self, offset: usize, bytes: &[u8]) {
        let len = bytes.len().min((PAGE as usize).saturating_sub(offset));
        for (at, byte) in bytes[..len].iter().enumerate() {
            // SAFETY: `offset + at` is inside the frame, says `len`.
            unsafe { pointer(self.0 + (offset + at) as u64).write(*byte) }
        }
    }
}

/// How many frames are in use.
pub(crate) fn frames_in_use() -> usize {
    POOL.with(|pool| pool.in_use)
}

impl Pool {
    fn take(&mut self) -> Option<usize> {
        let first = (phys_of(&raw const kernel_end).div_ceil(PAGE)) as usize;
        self.next = self.next.max(first);
        for _ in first..FRAMES {
            let number = self.next;
            self.next = if number + 1 == FRAMES { first } else { number + 1 };
            if self.used[number / 64] & 1 << (number % 64) == 0 {
                self.used[number / 64] |= 1 << (number % 64);
                self.in_use += 1;
                return Some(number);
            }
        }
        None
    }

    fn release(&mut self, number: usize) {
        let bit = 1 << (number % 64);
        assert!(self.used[number / 64] & bit != 0, "frame {number} is free already");
        self.used[number / 64] &= !bit;
        self.in_use -= 1;
    }
}
