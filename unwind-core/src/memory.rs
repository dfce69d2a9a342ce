//! How the target's memory is read.

use core::fmt;
use core::sync::atomic::AtomicU64;

use crate::addr::VirtAddr;
use crate::register::WordSize;

/// Why memory could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReadError {
    /// Not here and not at this time: the page is absent and could not be
    /// brought in. The same read may work later, where faulting is allowed.
    NotResident,
    /// Never: nothing is mapped there, or it is not the target's to read.
    Invalid,
    /// Never on behalf of user code: the page is there, and is a supervisor's alone. Whoever
    /// looks into code of the kernel reads as the kernel.
    Supervisor,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotResident => "memory is not resident",
            Self::Invalid => "memory is not readable",
            Self::Supervisor => "memory is not readable by user code, but by a supervisor",
        })
    }
}

impl core::error::Error for ReadError {}

/// Read access to the target's memory.
///
/// Implementors copy: a reference into memory that the target may be writing
/// would be unsound. A read is all or nothing. An implementation for a
/// kernel's user memory must refuse addresses that are not the user's: the
/// addresses come from the target and may be anything.
///
/// Targets are little-endian, as x86 is.
pub trait Memory {
    /// Fills `buf` from the bytes at `addr`.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if any byte could not be read; `buf` is then unspecified.
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError>;

    /// Reads the 32-bit word at `addr`, aligned or not.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    fn read_u32(&mut self, addr: VirtAddr) -> Result<u32, ReadError> {
        let mut word = [0; 4];
        self.read(addr, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    /// Reads the 64-bit word at `addr`, aligned or not.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    fn read_u64(&mut self, addr: VirtAddr) -> Result<u64, ReadError> {
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// The words that hold the stack around `addr`, and the address of the first
    /// of them, where they are in memory as a copy that nothing changes: a captured
    /// stack, say. They are what [`read_u64`](Self::read_u64) would return.
    ///
    /// Lets a walk index the stack directly. `None` means that this is not supported; the
    /// walk then reads each word.
    #[inline]
    fn words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        let _ = addr;
        None
    }

    /// The same as [`words`](Self::words) of a stack that others may write to at any time: the
    /// own stack of a thread, say. Each word that a walk uses is read once.
    #[inline]
    fn shared_words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[AtomicU64])> {
        let _ = addr;
        None
    }

    /// Whether a walk takes full steps where it gets no words: steps by rows of the cache gain
    /// little where a read takes long, and a walk that never takes them there has less code.
    #[inline]
    fn lends_words_alone(&self) -> bool {
        false
    }

    /// Reads a word of the given size, zero-extended.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    #[inline]
    fn read_word(&mut self, addr: VirtAddr, size: WordSize) -> Result<u64, ReadError> {
        match size {
            WordSize::Four => self.read_u32(addr).map(u64::from),
            WordSize::Eight => self.read_u64(addr),
        }
    }

    /// Reads the word at `addr` and the one above it, as two
    /// [`read_word`](Self::read_word) would: a frame pointer leads to such a pair.
    /// One check of the range may do for both.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), of either.
    #[inline]
    fn read_pair(&mut self, addr: VirtAddr, size: WordSize) -> Result<[u64; 2], ReadError> {
        let above = addr.wrapping_add(size.bytes());
        Ok([self.read_word(addr, size)?, self.read_word(above, size)?])
    }
}

impl<M: Memory + ?Sized> Memory for &mut M {
    #[inline]
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        (**self).read(addr, buf)
    }

    #[inline]
    fn read_u32(&mut self, addr: VirtAddr) -> Result<u32, ReadError> {
        (**self).read_u32(addr)
    }

    #[inline]
    fn read_u64(&mut self, addr: VirtAddr) -> Result<u64, ReadError> {
        (**self).read_u64(addr)
    }

    #[inline]
    fn words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        (**self).words(addr)
    }

    #[inline]
    fn shared_words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[AtomicU64])> {
        (**self).shared_words(addr)
    }

    #[inline]
    fn lends_words_alone(&self) -> bool {
        (**self).lends_words_alone()
    }

    #[inline]
    fn read_word(&mut self, addr: VirtAddr, size: WordSize) -> Result<u64, ReadError> {
        (**self).read_word(addr, size)
    }

    #[inline]
    fn read_pair(&mut self, addr: VirtAddr, size: WordSize) -> Result<[u64; 2], ReadError> {
        (**self).read_pair(addr, size)
    }
}

/// Bytes that were copied from one range of the target, such as a captured
/// stack. Several ranges, `&[SliceMemory]`, are a [`Memory`] too.
#[derive(Clone, Copy, Debug)]
pub struct SliceMemory<'a> {
    start: VirtAddr,
    bytes: &'a [u8],
}

impl<'a> SliceMemory<'a> {
    /// `bytes` as they were at `start`. Anything else is
    /// [`ReadError::Invalid`].
    #[must_use]
    pub const fn new(start: VirtAddr, bytes: &'a [u8]) -> Self {
        Self { start, bytes }
    }

    /// The bytes from an address on; none are none.
    fn from(&self, addr: VirtAddr) -> Option<&'a [u8]> {
        let at = usize::try_from(addr.checked_offset_from(self.start)?).ok()?;
        self.bytes.get(at..).filter(|bytes| !bytes.is_empty())
    }

    #[cfg(not(before_rust_1_88))]
    #[expect(clippy::incompatible_msrv, reason = "left out for older compilers, see build.rs")]
    #[inline]
    fn whole_words(&self) -> &'a [[u8; 8]] {
        self.bytes.as_chunks().0
    }

    #[inline]
    fn array<const N: usize>(&self, addr: VirtAddr) -> Result<[u8; N], ReadError> {
        // An address below the start becomes an offset past any end.
        let at = addr.get().wrapping_sub(self.start.get());
        let at = usize::try_from(at).map_err(|_| ReadError::Invalid)?;
        // An end that wraps lies below the start, which is no range either.
        let bytes = self.bytes.get(at..at.wrapping_add(N)).and_then(|bytes| bytes.first_chunk());
        bytes.copied().ok_or(ReadError::Invalid)
    }
}

impl Memory for SliceMemory<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let at = addr.checked_offset_from(self.start).ok_or(ReadError::Invalid)?;
        let at = usize::try_from(at).map_err(|_| ReadError::Invalid)?;
        let tail = self.bytes.get(at..).ok_or(ReadError::Invalid)?;
        buf.copy_from_slice(tail.get(..buf.len()).ok_or(ReadError::Invalid)?);
        Ok(())
    }

    #[inline]
    fn read_u32(&mut self, addr: VirtAddr) -> Result<u32, ReadError> {
        self.array(addr).map(u32::from_le_bytes)
    }

    #[inline]
    fn read_u64(&mut self, addr: VirtAddr) -> Result<u64, ReadError> {
        self.array(addr).map(u64::from_le_bytes)
    }

    // Without it a walk reads word by word: slower, and the same.
    #[cfg(not(before_rust_1_88))]
    #[inline]
    fn words(&mut self, _: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        Some((self.start, self.whole_words()))
    }

    #[inline]
    fn read_pair(&mut self, addr: VirtAddr, size: WordSize) -> Result<[u64; 2], ReadError> {
        match size {
            WordSize::Four => {
                let [a, b, c, d, e, f, g, h] = self.array(addr)?;
                let pair = [[a, b, c, d], [e, f, g, h]];
                Ok(pair.map(u32::from_le_bytes).map(u64::from))
            }
            WordSize::Eight => {
                let [a, b, c, d, e, f, g, h, high @ ..]: [u8; 16] = self.array(addr)?;
                Ok([[a, b, c, d, e, f, g, h], high].map(u64::from_le_bytes))
            }
        }
    }
}

/// Several ranges, as of a core file: each address is read from the first one that has it, and
/// a read may continue from one range into the next. For few ranges: they are looked at in order.
impl Memory for &[SliceMemory<'_>] {
    fn read(&mut self, mut addr: VirtAddr, mut buf: &mut [u8]) -> Result<(), ReadError> {
        while !buf.is_empty() {
            let bytes = self.iter().find_map(|range| range.from(addr)).ok_or(ReadError::Invalid)?;
            let len = bytes.len().min(buf.len());
            let (now, later) = buf.split_at_mut_checked(len).ok_or(ReadError::Invalid)?;
            now.copy_from_slice(bytes.get(..len).ok_or(ReadError::Invalid)?);
            addr = addr.wrapping_add(u64::try_from(len).map_err(|_| ReadError::Invalid)?);
            buf = later;
        }
        Ok(())
    }

    #[cfg(not(before_rust_1_88))]
    #[inline]
    fn words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        let range = self.iter().find(|range| range.from(addr).is_some())?;
        Some((range.start, range.whole_words()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_one_memory_with_holes() {
        let bytes: [u8; 40] = core::array::from_fn(|at| u8::try_from(at).unwrap());
        let at = |start, range| SliceMemory::new(VirtAddr::new(start), &bytes[range]);
        // Out of order, two that touch, one up to the last address.
        let last = u64::MAX - 7;
        let ranges = [at(0x1010, 16..40), at(0x1000, 0..16), at(last, 0..8), at(0x2000, 0..0)];
        let mut memory = &ranges[..];
        for (addr, is_there) in [
            (0x0fff, false),
            (0x1000, true),
            (0x100c, true),
            (0x1020, true),
            (0x1021, false),
            (0x2000, false),
            (last, true),
            (last + 1, false),
        ] {
            let word = memory.read_u64(VirtAddr::new(addr));
            let first = if addr == last { 0 } else { u8::try_from(addr & 0xff).unwrap() };
            let expected = core::array::from_fn(|at| first.wrapping_add(u8::try_from(at).unwrap()));
            let expected = is_there.then(|| u64::from_le_bytes(expected));
            assert_eq!(word.ok(), expected, "{addr:#x}");
        }
        let mut all = [0; 40];
        assert_eq!(memory.read(VirtAddr::new(0x1000), &mut all), Ok(()));
        assert_eq!(all, bytes);
        assert_eq!(memory.words(VirtAddr::new(0x2000)), None);
        let words = memory.words(VirtAddr::new(0x1018)).map(|(start, words)| (start, words.len()));
        if let Some(words) = words {
            assert_eq!(words, (VirtAddr::new(0x1010), 3));
        }
    }

    #[test]
    fn a_read_is_all_or_nothing_at_both_ends() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let mut memory = SliceMemory::new(VirtAddr::new(0x1000), &bytes);
        assert_eq!(memory.read_u64(VirtAddr::new(0x1001)), Ok(0x0908_0706_0504_0302));
        assert_eq!(memory.read_word(VirtAddr::new(0x1000), WordSize::Four), Ok(0x0403_0201));
        let mut lent = &mut memory;
        let pair = Memory::read_pair(&mut lent, VirtAddr::new(0x1001), WordSize::Four);
        assert_eq!(pair, Ok([0x0504_0302, 0x0908_0706]));
        for addr in [0, 0xfff, 0x1002, 0x1009, u64::MAX] {
            assert_eq!(memory.read_u64(VirtAddr::new(addr)), Err(ReadError::Invalid), "{addr:#x}");
            let mut buf = [0; 8];
            assert_eq!(memory.read(VirtAddr::new(addr), &mut buf), Err(ReadError::Invalid));
        }
    }

    #[test]
    fn words_and_pairs_of_them_are_the_bytes_wherever_they_lie() {
        let bytes: [u8; 37] = core::array::from_fn(|at| u8::try_from(at).unwrap());
        for start in [0x1000, 0x1003, 0, u64::MAX - 36] {
            let mut memory = SliceMemory::new(VirtAddr::new(start), &bytes);
            for offset in -40..80_i64 {
                let addr = VirtAddr::new(start.wrapping_add_signed(offset));
                let mut word = [0; 8];
                let expected = memory.read(addr, &mut word).map(|()| u64::from_le_bytes(word));
                assert_eq!(memory.read_u64(addr), expected, "{start:#x} {offset}");
                for size in [WordSize::Four, WordSize::Eight] {
                    let above = addr.wrapping_add(size.bytes());
                    let low = memory.read_word(addr, size);
                    let pair = low.and_then(|low| Ok([low, memory.read_word(above, size)?]));
                    assert_eq!(memory.read_pair(addr, size), pair, "{start:#x} {offset}");
                }
            }
            let mut plain = memory;
            let words = memory.words(VirtAddr::new(start));
            if cfg!(before_rust_1_88) {
                assert_eq!(words, None);
                continue;
            }
            let (mut addr, words) = words.unwrap();
            assert_eq!(words.len(), 4);
            for word in words {
                assert_eq!(plain.read_u64(addr), Ok(u64::from_le_bytes(*word)), "{addr}");
                addr = addr.wrapping_add(8);
            }
        }
    }

    #[test]
    fn the_provided_words_agree_with_the_bytes() {
        struct Bytes;
        impl Memory for Bytes {
            fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
                for (byte, value) in buf.iter_mut().zip(addr.get()..) {
                    *byte = u8::try_from(value & 0xff).unwrap();
                }
                Ok(())
            }
        }
        assert_eq!(Bytes.read_u32(VirtAddr::new(0x10)), Ok(0x1312_1110));
        assert_eq!(
            Bytes.read_word(VirtAddr::new(0x10), WordSize::Eight),
            Ok(0x1716_1514_1312_1110)
        );
        assert_eq!(
            Bytes.read_pair(VirtAddr::new(0x10), WordSize::Four),
            Ok([0x1312_1110, 0x1716_1514])
        );
    }
}
