//! Reads of an interpreter's memory, whose number is bounded: its lists may be in circles, and its
//! lengths any number.

use unwind_core::{Memory, ReadError, VirtAddr};

/// How many bytes are read of an interpreter at once: of a process while it is held, of a core, of a copy of memory.
const BYTES: u64 = 64 << 20;
/// What a read counts at least, since it may cost a system call.
const SHORTEST: u64 = 256;

/// Why frames of an interpreter may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Doubt {
    /// An address leads nowhere.
    #[error("its memory cannot be read at {0:#x}")]
    Unreadable(u64),
    /// There is more than is read.
    #[error("it has more than is read of it")]
    TooMuch,
    /// A list has no end.
    #[error("a list of it is a circle")]
    Circle,
    /// A thing is not what it should be.
    #[error("it is in the midst of a change, or damaged: {0}")]
    Strange(&'static str),
    /// Compiled code has functions within it, and does not tell which.
    #[error("functions may be inlined where a thread was stopped")]
    Inlined,
    /// Its file has no symbols.
    #[error("its file is stripped")]
    Stripped,
    /// Its version is none of those that are known.
    #[error("this version is not known")]
    Version,
    /// Nothing tells its version.
    #[error("its version is not known")]
    NoVersion,
}

impl Doubt {
    /// Whether nothing of the interpreter is read, which is no fault of the program.
    pub(crate) const fn is_unknown(self) -> bool {
        matches!(self, Self::Version | Self::NoVersion | Self::Stripped)
    }
}

/// The memory of a program, until a bound is reached.
#[derive(Debug)]
pub(super) struct BoundedMemory<'m, M> {
    memory: &'m mut M,
    left: u64,
}

impl<'m, M: Memory> BoundedMemory<'m, M> {
    pub(super) const fn new(memory: &'m mut M) -> Self {
        Self::of_bytes(memory, BYTES)
    }

    /// Until this number of bytes was read.
    pub(super) const fn of_bytes(memory: &'m mut M, left: u64) -> Self {
        Self { memory, left }
    }

    /// How many bytes may still be read.
    pub(super) const fn left(&self) -> u64 {
        self.left
    }

    /// Counts work on `len` bytes that were read before.
    ///
    /// # Errors
    ///
    /// [`Doubt::TooMuch`] if the bound is reached.
    pub(super) fn count(&mut self, len: usize) -> Result<(), Doubt> {
        let len = u64::try_from(len).unwrap_or(u64::MAX).max(SHORTEST);
        self.left = self.left.checked_sub(len).ok_or(Doubt::TooMuch)?;
        Ok(())
    }

    /// Fills a buffer.
    ///
    /// # Errors
    ///
    /// [`Doubt`] if a byte cannot be read, or the bound is reached.
    pub(super) fn fill(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), Doubt> {
        self.count(buf.len())?;
        let read = self.memory.read(VirtAddr::new(addr), buf);
        read.map_err(|_| Doubt::Unreadable(addr))
    }

    /// The word at an address and an offset from it.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    pub(super) fn word(&mut self, addr: u64, offset: u64) -> Result<u64, Doubt> {
        Ok(u64::from_le_bytes(self.array(addr, offset)?))
    }

    /// The same of a word of 32 bits.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    pub(super) fn half(&mut self, addr: u64, offset: u64) -> Result<u32, Doubt> {
        Ok(u32::from_le_bytes(self.array(addr, offset)?))
    }

    /// Bytes at an address and an offset from it.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    pub(super) fn array<const N: usize>(
        &mut self,
        addr: u64,
        offset: u64,
    ) -> Result<[u8; N], Doubt> {
        let addr = addr.checked_add(offset).ok_or(Doubt::Unreadable(addr))?;
        let mut bytes = [0; N];
        self.fill(addr, &mut bytes)?;
        Ok(bytes)
    }

    /// `len` bytes, of which the caller has bounded the number.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    pub(super) fn bytes(&mut self, addr: u64, len: usize) -> Result<Vec<u8>, Doubt> {
        if u64::try_from(len).unwrap_or(u64::MAX) > self.left {
            return Err(Doubt::TooMuch);
        }
        let mut bytes = vec![0; len];
        self.fill(addr, &mut bytes)?;
        Ok(bytes)
    }
}

impl<M: Memory> Memory for BoundedMemory<'_, M> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.fill(addr.get(), buf).map_err(|_| ReadError::Invalid)
    }
}
