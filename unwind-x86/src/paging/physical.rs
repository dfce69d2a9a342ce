//! Physical memory, as far as a page walk needs it.

use core::fmt;

use unwind_core::ReadError;

/// A physical address: a guest's, where the target is one.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct PhysAddr(u64);

impl PhysAddr {
    /// An address with this value.
    #[inline]
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The value.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Read access to physical memory.
///
/// Implementors copy: the machine may be writing. A read is all or nothing and
/// never crosses a boundary of 4,096 bytes.
pub trait PhysicalMemory {
    /// Fills `buf` from the bytes at `addr`.
    ///
    /// # Errors
    ///
    /// [`ReadError::NotResident`] if the host has the memory but not resident,
    /// [`ReadError::Invalid`] if there is none at that address.
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError>;
}

impl<P: PhysicalMemory + ?Sized> PhysicalMemory for &mut P {
    #[inline]
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        (**self).read(addr, buf)
    }
}

/// Physical memory that lies in one slice, from address zero on.
///
/// What is past the end of the slice is [`ReadError::Invalid`].
#[derive(Clone, Copy, Debug)]
pub struct FlatMemory<'a>(&'a [u8]);

impl<'a> FlatMemory<'a> {
    /// The memory whose byte at address zero is the first of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl PhysicalMemory for FlatMemory<'_> {
    #[inline]
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let at = usize::try_from(addr.get()).map_err(|_| ReadError::Invalid)?;
        let bytes = self.0.get(at..).and_then(|tail| tail.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(ReadError::Invalid)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_read_is_all_or_nothing_at_the_end_of_memory() {
        let bytes = [1, 2, 3, 4];
        let mut memory = FlatMemory::new(&bytes);
        let mut buf = [0; 2];
        assert_eq!((memory.read(PhysAddr::new(2), &mut buf), buf), (Ok(()), [3, 4]));
        for addr in [3, 4, 5, 1 << 40, u64::MAX] {
            let read = memory.read(PhysAddr::new(addr), &mut buf);
            assert_eq!(read, Err(ReadError::Invalid), "{addr:#x}");
        }
    }
}
