//! The memory of a task's data, which belongs to the host.

use core::fmt;

/// Which piece of the host's memory, and which use of it.
///
/// A host gives each piece an index, and counts the generation up whenever it
/// hands the piece out again. So a handle that outlives its piece is
/// recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DataHandle(u64);

impl DataHandle {
    pub(super) const BITS: u32 = 40;
    const INDEX_BITS: u32 = 24;

    /// How many pieces there can be at a time: more than Linux has task
    /// numbers.
    pub const MAX_PIECES: u32 = 1 << Self::INDEX_BITS;

    /// The handle with this index and generation, or `None` if the index is
    /// not below [`MAX_PIECES`](Self::MAX_PIECES).
    #[must_use]
    pub fn new(index: u32, generation: u16) -> Option<Self> {
        let high = u64::from(generation) << Self::INDEX_BITS;
        (index < Self::MAX_PIECES).then_some(Self(high | u64::from(index)))
    }

    /// Which piece.
    #[must_use]
    pub fn index(self) -> u32 {
        let index = self.0 & u64::from(Self::MAX_PIECES).wrapping_sub(1);
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    /// Which use of the piece.
    #[must_use]
    pub fn generation(self) -> u16 {
        u16::try_from(self.0 >> Self::INDEX_BITS).unwrap_or(u16::MAX)
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for DataHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataHandle({}#{})", self.index(), self.generation())
    }
}

/// How much memory the data of a task needs, as the PMU says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DataLayout {
    size: usize,
    align: usize,
}

impl DataLayout {
    /// `size` bytes at a multiple of `align` bytes, or `None` if `align` is not
    /// a power of two.
    #[must_use]
    pub const fn new(size: usize, align: usize) -> Option<Self> {
        if align.is_power_of_two() { Some(Self { size, align }) } else { None }
    }

    /// What a value of type `T` needs.
    #[must_use]
    pub const fn of<T>() -> Self {
        Self { size: size_of::<T>(), align: align_of::<T>() }
    }

    /// Bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        self.size
    }

    /// Bytes, a power of two.
    #[must_use]
    pub const fn align(self) -> usize {
        self.align
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_holds_its_index_and_generation() {
        for (index, generation) in [(0, 0), (DataHandle::MAX_PIECES - 1, u16::MAX), (7, 1)] {
            let handle = DataHandle::new(index, generation).unwrap();
            assert_eq!((handle.index(), handle.generation()), (index, generation));
            assert!(handle.bits() < 1 << DataHandle::BITS);
            assert_eq!(DataHandle::from_bits(handle.bits()), handle);
        }
        assert_eq!(DataHandle::new(DataHandle::MAX_PIECES, 0), None);
    }

    #[test]
    fn r2_2_an_alignment_is_a_power_of_two() {
        assert_eq!(DataLayout::new(788, 48), None);
        assert_eq!(DataLayout::new(788, 0), None);
        let layout = DataLayout::new(788, 64).unwrap();
        assert_eq!((layout.size(), layout.align()), (788, 64));
        assert_eq!(DataLayout::of::<[u64; 3]>(), DataLayout::new(24, align_of::<u64>()).unwrap());
    }
}
