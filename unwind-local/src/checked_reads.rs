//! Memory of which nothing is known, read by calls that cannot fault, of which there are few.

use unwind_core::ReadError;

use crate::raw::readable::{PAGE, page, read_any};

/// The most calls in a walk. They take 50 us at most where one takes 400 ns: a thread that is
/// interrupted more often than its walks take does nothing else.
pub(crate) const MOST_CALLS: u16 = 96;

/// How many pages can be asked for in the time of such a call.
const PAGES_A_CALL: u16 = 4;

/// How many bytes are read for one word.
const WINDOW: usize = 32;

/// How many of these are below the word: instructions are compared from before a return address on.
const BELOW: u64 = 8;

/// The checked reads of a walk.
#[derive(Debug)]
pub(crate) struct CheckedReads {
    /// How many pages could still be asked for.
    pages_left: u16,
    /// A page that could not be read; or no page's address.
    absent: u64,
    /// What was read last for a word, and from where on.
    window: [u8; WINDOW],
    window_len: usize,
    window_addr: u64,
}

impl CheckedReads {
    /// None yet.
    #[inline]
    pub(crate) const fn new() -> Self {
        Self {
            pages_left: MOST_CALLS.saturating_mul(PAGES_A_CALL),
            absent: u64::MAX,
            window: [0; WINDOW],
            window_len: 0,
            window_addr: 0,
        }
    }

    /// Fills `buf` from an address. [`ReadError::NotResident`] if this walk has had its calls.
    #[cold]
    #[inline(never)]
    pub(crate) fn read(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        let len = u64::try_from(buf.len()).unwrap_or(u64::MAX);
        let last = addr.checked_add(len).ok_or(ReadError::Invalid)?.saturating_sub(1);
        let is_one_page = page(addr) == page(last);
        if is_one_page && page(addr) == self.absent {
            return Err(ReadError::Invalid);
        }
        if self.copy(addr, buf) {
            return Ok(());
        }
        if !self.pay(PAGES_A_CALL) {
            return Err(ReadError::NotResident);
        }
        let is_read = match is_one_page && buf.len() <= size_of::<u64>() {
            true => self.fill(addr) && self.copy(addr, buf),
            false => read_any(addr, buf),
        };
        if is_read {
            return Ok(());
        }
        if is_one_page {
            self.absent = page(addr);
        }
        Err(ReadError::Invalid)
    }

    /// Whether this many pages may be asked for; if so, they are counted.
    pub(crate) fn pay_for_pages(&mut self, pages: u64) -> bool {
        u16::try_from(pages).is_ok_and(|pages| self.pay(pages))
    }

    fn pay(&mut self, pages: u16) -> bool {
        let left = self.pages_left.checked_sub(pages);
        self.pages_left = left.unwrap_or(self.pages_left);
        left.is_some()
    }

    /// Reads what is near to an address, in its page.
    fn fill(&mut self, addr: u64) -> bool {
        let start = addr.saturating_sub(BELOW).max(page(addr));
        let rest = usize::try_from(page(addr).saturating_add(PAGE).wrapping_sub(start));
        self.window_len = rest.map_or(WINDOW, |rest| rest.min(WINDOW));
        self.window_addr = start;
        let is_read =
            self.window.get_mut(..self.window_len).is_some_and(|window| read_any(start, window));
        if !is_read {
            self.window_len = 0;
        }
        is_read
    }

    /// From what was read last; `false` if that has not all of it.
    fn copy(&self, addr: u64, buf: &mut [u8]) -> bool {
        let at = addr.checked_sub(self.window_addr).and_then(|at| usize::try_from(at).ok());
        let window = self.window.get(..self.window_len).unwrap_or_default();
        let bytes = at.and_then(|at| window.get(at..)?.get(..buf.len()));
        let Some(bytes) = bytes else { return false };
        buf.copy_from_slice(bytes);
        true
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use super::*;

    /// A word of this address, and how many calls it took.
    fn read(reads: &mut CheckedReads, addr: u64) -> (Result<u64, ReadError>, u16) {
        let (before, mut word) = (reads.pages_left, [0; 8]);
        let result = reads.read(addr, &mut word).map(|()| u64::from_le_bytes(word));
        (result, (before - reads.pages_left) / PAGES_A_CALL)
    }

    #[test]
    fn words_beside_one_that_was_read_need_no_call() {
        let words = [1_u64, 2, 3, 4, 5, 6, 7];
        let addr = u64::try_from(words.as_ptr().expose_provenance()).unwrap();
        let mut reads = CheckedReads::new();
        assert_eq!(read(&mut reads, addr + 8), (Ok(2), 1));
        // Unless a page ends in between.
        let is_near = page(addr) == page(addr + 31);
        let calls = u16::from(!is_near);
        assert_eq!(read(&mut reads, addr + 16), (Ok(3), calls));
        assert_eq!(read(&mut reads, addr), (Ok(1), calls));
        assert_eq!(read(&mut reads, addr + 40), (Ok(6), 1));
    }

    #[test]
    fn a_page_that_cannot_be_read_is_asked_for_once() {
        let mut reads = CheckedReads::new();
        assert_eq!(read(&mut reads, 16), (Err(ReadError::Invalid), 1));
        assert_eq!(read(&mut reads, 8), (Err(ReadError::Invalid), 0));
        assert_eq!(read(&mut reads, 2048), (Err(ReadError::Invalid), 0));
        // The last word of the page, and one of the next.
        assert_eq!(read(&mut reads, PAGE - 4), (Err(ReadError::Invalid), 1));
        assert_eq!(read(&mut reads, u64::MAX - 3).0, Err(ReadError::Invalid));
    }

    #[test]
    fn a_walk_has_a_number_of_calls() {
        let words = [1_u64; 1024];
        let addr = u64::try_from(words.as_ptr().expose_provenance()).unwrap();
        let mut reads = CheckedReads::new();
        let far = |at: u16| addr + u64::from(at) * 64;
        for at in 0..MOST_CALLS {
            assert_eq!(read(&mut reads, far(at)), (Ok(1), 1), "{at}");
        }
        assert_eq!(read(&mut reads, far(MOST_CALLS)), (Err(ReadError::NotResident), 0));
    }
}
