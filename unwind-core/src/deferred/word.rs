//! The two words of marks that a task carries.

use super::client::{Slot, SlotSet};

/// What was asked of a task in the kernel entry it is in, and which entry that
/// is: all in one word, so that one access changes or sees all of it.
///
/// | bits | meaning |
/// |---|---|
/// | 0-31 | the clients that asked in this entry, a bit a slot |
/// | 32 | pending: a client asked that no delivery has seen |
/// | 33 | used: a cookie of this entry was given out |
/// | 34 | closed: requests are refused |
/// | 35-47 | how often marks of former owners were taken out, modulo 8,192 |
/// | 48-63 | the entry, modulo 65,536 |
///
/// Whoever asks is used too, so a word that is not used has nothing to reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    const ASKED: u64 = 0xffff_ffff;
    /// A client asked that no delivery has seen.
    pub(crate) const PENDING: Self = Self(1 << 32);
    const USED: Self = Self(1 << 33);
    /// Requests are refused.
    pub(crate) const CLOSED: Self = Self(1 << 34);
    const PURGE_ONE: u64 = 1 << 35;
    const PURGES: u64 = 0x1fff << 35;
    const ENTRY_SHIFT: u32 = 48;
    const ENTRY_ONE: u64 = 1 << Self::ENTRY_SHIFT;
    const ENTRY: u64 = 0xffff << Self::ENTRY_SHIFT;

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    #[expect(clippy::as_conversions, reason = "the low 32 bits, in a const fn")]
    pub(crate) const fn asked(self) -> SlotSet {
        SlotSet::from_bits((self.0 & Self::ASKED) as u32)
    }

    #[inline]
    pub(crate) const fn is_pending(self) -> bool {
        self.0 & Self::PENDING.0 != 0
    }

    #[inline]
    pub(crate) const fn is_used(self) -> bool {
        self.0 & Self::USED.0 != 0
    }

    #[inline]
    pub(crate) const fn is_closed(self) -> bool {
        self.0 & Self::CLOSED.0 != 0
    }

    #[inline]
    pub(crate) const fn entry(self) -> Entry {
        Entry(self.0 >> Self::ENTRY_SHIFT)
    }

    /// The mark of a client that need not ask any more.
    #[expect(clippy::as_conversions, reason = "widening, in a const fn")]
    pub(crate) const fn answered(slot: Slot) -> Self {
        Self(slot.set().bits() as u64 | Self::USED.0)
    }

    /// With a request of the client in `slot`.
    #[inline]
    pub(crate) const fn ask(self, slot: Slot) -> Self {
        Self(self.0 | Self::answered(slot).0 | Self::PENDING.0)
    }

    /// With a cookie given out.
    pub(crate) const fn used(self) -> Self {
        Self(self.0 | Self::USED.0)
    }

    pub(crate) const fn without_pending(self) -> Self {
        Self(self.0 & !Self::PENDING.0)
    }

    pub(crate) const fn without_closed(self) -> Self {
        Self(self.0 & !Self::CLOSED.0)
    }

    /// Without the marks of `slots`, which former owners left.
    ///
    /// The word differs from the one before, also if it loses no mark or has
    /// the mark again later: an access that expects that one fails.
    #[expect(clippy::as_conversions, reason = "widening, in a const fn")]
    pub(crate) const fn purge(self, slots: SlotSet) -> Self {
        let purges = self.0.wrapping_add(Self::PURGE_ONE) & Self::PURGES;
        Self((self.0 & !Self::PURGES & !(slots.bits() as u64)) | purges)
    }

    /// The next entry: nothing asked, nothing used.
    pub(crate) const fn next_entry(self) -> Self {
        let entry = self.0.wrapping_add(Self::ENTRY_ONE) & Self::ENTRY;
        Self(entry | (self.0 & (Self::CLOSED.0 | Self::PURGES)))
    }
}

/// The number of a kernel entry of a task: it counts those in which a cookie
/// was given out, modulo 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Entry {
    /// The bits of the number.
    pub(crate) const BITS: u32 = 16;

    #[inline]
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// Whether this is an odd block of `1 << log2` entries.
    #[inline]
    pub(crate) const fn is_odd_block(self, log2: u32) -> bool {
        self.0.wrapping_shr(log2) & 1 != 0
    }
}

/// The clients that a delivery has gone to in this entry.
///
/// | bits | meaning |
/// |---|---|
/// | 0-31 | the clients, a bit a slot |
/// | 32-62 | how often marks of former owners were taken out |
/// | 63 | the lowest bit of the entry's number |
///
/// Between a reset of [`Word`] and that of this word the last bit disagrees
/// with the new entry, and the marks do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served(u64);

impl Served {
    const SLOTS: u64 = 0xffff_ffff;
    const PURGE_ONE: u64 = 1 << 32;
    const PURGES: u64 = 0x7fff_ffff << 32;
    const ODD: u64 = 1 << 63;

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// The clients served in `entry`.
    #[inline]
    #[expect(clippy::as_conversions, reason = "the low 32 bits, in a const fn")]
    pub(crate) const fn within(self, entry: Entry) -> SlotSet {
        if (self.0 & Self::ODD != 0) == entry.is_odd_block(0) {
            SlotSet::from_bits((self.0 & Self::SLOTS) as u32)
        } else {
            SlotSet::from_bits(0)
        }
    }

    /// The mark of a client.
    #[expect(clippy::as_conversions, reason = "widening, in a const fn")]
    pub(crate) const fn mark(slot: Slot) -> Self {
        Self(slot.set().bits() as u64)
    }

    pub(crate) const fn with(self, mark: Self) -> Self {
        Self(self.0 | mark.0)
    }

    /// Without the marks of `slots`, which former owners left, and never the
    /// word it was.
    #[expect(clippy::as_conversions, reason = "widening, in a const fn")]
    pub(crate) const fn purge(self, slots: SlotSet) -> Self {
        let purges = self.0.wrapping_add(Self::PURGE_ONE) & Self::PURGES;
        Self((self.0 & !Self::PURGES & !(slots.bits() as u64)) | purges)
    }

    /// Whether the marks have the same owners in both.
    pub(crate) const fn same_purge(self, other: Self) -> bool {
        (self.0 ^ other.0) & Self::PURGES == 0
    }

    /// Nobody served in `entry` yet.
    pub(crate) const fn reset_for(self, entry: Entry) -> Self {
        let odd = if entry.is_odd_block(0) { Self::ODD } else { 0 };
        Self((self.0 & Self::PURGES) | odd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(bits: u32) -> SlotSet {
        SlotSet::from_bits(bits)
    }

    fn slot(index: u32) -> Slot {
        let mut set = slots(1 << index);
        set.pop().unwrap()
    }

    #[test]
    fn whoever_asks_is_pending_and_used() {
        let word = Word::from_bits(0).ask(slot(31));
        assert_eq!(word.asked(), slots(1 << 31));
        assert!(word.is_pending() && word.is_used() && !word.is_closed());
        let seen = word.without_pending();
        assert!(!seen.is_pending() && seen.is_used());
        assert_eq!(seen.asked(), word.asked());
    }

    #[test]
    fn the_next_entry_keeps_closed_and_forgets_the_rest() {
        let word = Word::from_bits(u64::MAX);
        let next = word.next_entry();
        assert_eq!(next.entry().number(), 0);
        assert!(next.is_closed() && !next.is_used() && !next.is_pending());
        assert!(next.asked().is_empty());
        assert_eq!(next.without_closed().next_entry().entry().number(), 1);
    }

    #[test]
    fn a_purge_always_changes_the_word() {
        let full = Word::from_bits(u64::MAX);
        assert_eq!(full.purge(slots(0)).entry(), full.entry());
        assert_ne!(full.purge(slots(0)), full);
        assert_eq!(full.purge(slots(1)).asked(), slots(!1));
        let again = full.purge(slots(1)).ask(slot(0));
        assert_eq!(again.asked(), full.asked());
        assert_ne!(again, full);

        let full = Served::from_bits(u64::MAX);
        assert!(!full.purge(slots(0)).same_purge(full));
        let odd = Word::from_bits(u64::MAX).entry();
        assert_eq!(full.purge(slots(5)).within(odd), slots(!5));
    }

    #[test]
    fn served_marks_count_in_their_own_entry_only() {
        let word = Word::from_bits(0);
        let (even, odd) = (word.entry(), word.next_entry().entry());
        let served = Served::from_bits(0).with(Served::mark(slot(3)));
        assert_eq!(served.within(even), slots(8));
        assert_eq!(served.within(odd), slots(0));
        let reset = served.reset_for(odd);
        assert_eq!((reset.within(even), reset.within(odd)), (slots(0), slots(0)));
        assert_eq!(reset.with(Served::mark(slot(1))).within(odd), slots(2));
    }

    #[test]
    fn blocks_of_entries_alternate() {
        let entry = |number: u64| Word::from_bits(number << Word::ENTRY_SHIFT).entry();
        assert!(!entry(0x7fff).is_odd_block(15) && entry(0x8000).is_odd_block(15));
        assert!(entry(0xffff).is_odd_block(15) && !entry(0).is_odd_block(15));
        assert!(entry(1).is_odd_block(0) && !entry(2).is_odd_block(0));
    }
}
