//! One recorded branch.

use core::fmt;

/// A branch as the registers hold it; which bits mean what depends on the
/// [`Lbr`](super::Lbr).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RawBranch {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) info: u64,
}

/// A recorded call.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Branch {
    /// The address of the call instruction.
    pub from: u64,
    /// Where it went: the start of the callee, unless a stub jumped on.
    pub to: u64,
    /// What else is known of it.
    pub info: BranchInfo,
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} -> {:#x} {:?}", self.from, self.to, self.info)
    }
}

/// What the hardware knows of a branch besides its addresses.
///
/// | bits | meaning |
/// |---|---|
/// | 0-15 | cycles since the branch before it, or a [stamp](Self::stamp) |
/// | 56-59 | the kind of branch, on architectural LBRs |
/// | 60 | the cycles are counted, on architectural LBRs |
/// | 61 | it aborted a transaction |
/// | 62 | it was in a transaction |
/// | 63 | it was mispredicted |
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct BranchInfo(u64);

impl BranchInfo {
    const CYCLES: u64 = 0xffff;
    const STAMP: u64 = 0x8000;
    /// All ones is what a count saturates at.
    pub(super) const MAX_STAMP: u16 = 0x7ffe;
    pub(super) const CYCLES_COUNTED: u64 = 1 << 60;
    const ABORT: u64 = 1 << 61;
    const IN_TRANSACTION: u64 = 1 << 62;
    const MISPREDICTED: u64 = 1 << 63;
    /// The three flags, where an LBR without a register for them has them in
    /// the address.
    pub(super) const FLAGS: u64 = Self::ABORT | Self::IN_TRANSACTION | Self::MISPREDICTED;

    /// The information with these bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The cycles since the branch before it, as far as 16 bits go; zero if
    /// the hardware does not count them.
    #[must_use]
    pub fn cycles(self) -> u16 {
        u16::try_from(self.0 & Self::CYCLES).unwrap_or(u16::MAX)
    }

    /// Whether the branch was mispredicted.
    #[must_use]
    pub const fn is_mispredicted(self) -> bool {
        self.0 & Self::MISPREDICTED != 0
    }

    /// Whether the branch was in a transaction.
    #[must_use]
    pub const fn is_in_transaction(self) -> bool {
        self.0 & Self::IN_TRANSACTION != 0
    }

    /// The number that [`LbrCpu::read_stamped`](super::LbrCpu::read_stamped)
    /// has put in the place of the cycles, if it has.
    ///
    /// Where the hardware does not say whether it counted the cycles, a count
    /// of more than 32,767 looks like one too.
    #[must_use]
    pub fn stamp(self) -> Option<u16> {
        let cycles = self.0 & Self::CYCLES;
        let stamped = cycles & Self::STAMP != 0
            && cycles != Self::CYCLES
            && self.0 & Self::CYCLES_COUNTED == 0;
        stamped.then(|| u16::try_from(cycles & !Self::STAMP).unwrap_or(Self::MAX_STAMP))
    }

    pub(super) fn with_stamp(self, stamp: u16) -> Self {
        let kept = self.0 & !(Self::CYCLES | Self::CYCLES_COUNTED);
        Self(kept | Self::STAMP | u64::from(stamp.min(Self::MAX_STAMP)))
    }

    /// Whether the information tells this branch from another one at the same
    /// place: a stamp, or a count of cycles.
    pub(super) const fn is_distinguishing(self) -> bool {
        self.0 & Self::CYCLES != 0
    }
}

impl fmt::Debug for BranchInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_takes_the_place_of_the_cycles_and_of_nothing_else() {
        let counted = BranchInfo::from_bits(1 << 63 | 1 << 60 | 3 << 56 | 0x1234);
        assert_eq!((counted.cycles(), counted.stamp()), (0x1234, None));
        for stamp in [0, 1, BranchInfo::MAX_STAMP] {
            let stamped = counted.with_stamp(stamp);
            assert_eq!(stamped.stamp(), Some(stamp));
            assert_eq!(stamped.bits() >> 56, 0x83);
            assert!(stamped.is_mispredicted() && stamped.is_distinguishing());
        }
    }

    #[test]
    fn a_count_of_cycles_is_no_stamp_where_the_hardware_says_that_it_counted() {
        for cycles in [0, 0x7fff, 0x8000, 0xfffe, 0xffff] {
            assert_eq!(BranchInfo::from_bits(1 << 60 | cycles).stamp(), None);
        }
        assert_eq!(BranchInfo::from_bits(0xffff).stamp(), None, "it saturates there");
        assert_eq!(BranchInfo::from_bits(0x7fff).stamp(), None);
    }
}
