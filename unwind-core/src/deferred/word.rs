//! The two words of marks that a task carries.

use super::client::{Slot, SlotSet};

/// What was asked of a task in the kernel entry it is in, and which entry that
/// is: all in one word, so that one access changes or sees all of it.
///
/// | bits | meaning |
/// |---|---|
/// | 0-26 | [`Version`]: 1 more with each entry, 2 more each time marks of former owners are taken out, modulo 2²⁷ |
/// | 27 | renewed: the second stack of a kernel entry, which counts as an entry of its own |
/// | 28 | pending: a client asked that no delivery has seen |
/// | 29 | used: a cookie of this entry was given out |
/// | 30 | closed: requests are refused |
/// | 31 | delivered: a delivery has started, [`Served`] says who was called |
/// | 32-63 | the clients that asked in this entry, a bit a slot |
///
/// Whoever asks is used too, so a word that is not used has nothing to reset.
///
/// A request that another CPU holds up between its look at the word and its
/// mark fails if anything has changed. What is left: if the task meanwhile
/// used exactly 2²⁷ entries (or a multiple, purges counted twice) and the rest
/// of the word is the same too, it does not see that. At a million entries a
/// second that takes 134 seconds. An NMI cannot be held up so, as it holds up
/// its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskWord(u64);

impl TaskWord {
    const VERSION: u64 = (1 << 27) - 1;
    const RENEWED: u64 = 1 << 27;
    /// A client asked that no delivery has seen.
    pub(crate) const PENDING: Self = Self(1 << 28);
    const USED: u64 = 1 << 29;
    /// Requests are refused.
    pub(crate) const CLOSED: Self = Self(1 << 30);
    const DELIVERED: u64 = 1 << 31;
    const ASKED_SHIFT: u32 = 32;

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    #[expect(clippy::as_conversions, reason = "the high 32 bits, in a const fn")]
    pub(crate) const fn asked(self) -> SlotSet {
        SlotSet::from_bits((self.0 >> Self::ASKED_SHIFT) as u32)
    }

    #[inline]
    pub(crate) const fn has_asked(self, slot: Slot) -> bool {
        self.0.wrapping_shr(slot.mark_at()) & 1 != 0
    }

    /// Whether this is neither closed nor delivered: a client that has asked is still
    /// to be called.
    #[inline]
    pub(crate) const fn is_open(self) -> bool {
        self.0 & (Self::CLOSED.0 | Self::DELIVERED) == 0
    }

    #[inline]
    pub(crate) const fn is_pending(self) -> bool {
        self.0 & Self::PENDING.0 != 0
    }

    #[inline]
    pub(crate) const fn is_used(self) -> bool {
        self.0 & Self::USED != 0
    }

    #[inline]
    pub(crate) const fn is_closed(self) -> bool {
        self.0 & Self::CLOSED.0 != 0
    }

    pub(crate) const fn is_renewed(self) -> bool {
        self.0 & Self::RENEWED != 0
    }

    #[inline]
    pub(crate) const fn version(self) -> Version {
        Version(self.0 & Self::VERSION)
    }

    #[inline]
    const fn with_version(self, version: u64) -> Self {
        Self((self.0 & !Self::VERSION) | (version & Self::VERSION))
    }

    #[inline]
    #[expect(clippy::as_conversions, reason = "widening, in a const fn")]
    const fn marks(slots: SlotSet) -> u64 {
        (slots.bits() as u64) << Self::ASKED_SHIFT
    }

    /// The mark of a client that need not ask any more.
    #[inline]
    pub(crate) const fn answered(slot: Slot) -> Self {
        Self(Self::marks(slot.set()) | Self::USED)
    }

    /// With a request of the client in `slot`.
    #[inline]
    pub(crate) const fn ask(self, slot: Slot) -> Self {
        Self(self.0 | Self::answered(slot).0 | Self::PENDING.0)
    }

    /// With a cookie given out.
    pub(crate) const fn used(self) -> Self {
        Self(self.0 | Self::USED)
    }

    /// With all that is pending taken over by a delivery.
    pub(crate) const fn taken_over(self) -> Self {
        Self((self.0 | Self::DELIVERED) & !Self::PENDING.0)
    }

    pub(crate) const fn without_closed(self) -> Self {
        Self(self.0 & !Self::CLOSED.0)
    }

    /// A new entry, for the second stack of a kernel entry: the reset on the way out is due.
    pub(crate) const fn renewed(self) -> Self {
        Self(self.0 | Self::RENEWED | Self::USED)
    }

    /// Without the marks of `slots`, which former owners left.
    ///
    /// The word differs from the one before, also if it loses no mark or has
    /// the mark again later: an access that expects that one fails.
    pub(crate) const fn purge(self, slots: SlotSet) -> Self {
        Self(self.0 & !Self::marks(slots)).with_version(self.0.wrapping_add(2))
    }

    /// Without the mark of one client.
    pub(crate) const fn without(self, slot: Slot) -> Self {
        Self(self.0 & !Self::marks(slot.set()))
    }

    /// The next entry: nothing asked, nothing used, nothing delivered.
    pub(crate) const fn next_entry(self) -> Self {
        Self(self.0 & Self::CLOSED.0).with_version(self.0.wrapping_add(1))
    }
}

/// Tells an entry of a task, and which marks have been taken out in it, from
/// those before and after: it counts the entries in which a cookie was given
/// out, and twice the purges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

impl Version {
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// Changes from each entry to the next, and never within one.
    #[inline]
    pub(crate) const fn is_odd(self) -> bool {
        self.0 & 1 != 0
    }
}

/// The clients that a delivery has gone to.
///
/// | bits | meaning |
/// |---|---|
/// | 0-31 | the clients, a bit a slot |
/// | 32-63 | how often marks were taken out, modulo 2³² |
///
/// A mark counts only if [`TaskWord`] has the client's too: the request that sets that one
/// sees to it that this one is not left over from before.
///
/// An access that is held up while marks were taken out exactly 2³² times, once
/// an entry, and that then finds the same ones, does not see it: after 71
/// minutes at a million entries a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served(u64);

impl Served {
    const SLOTS: u64 = 0xffff_ffff;

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
    pub(crate) const fn slots(self) -> SlotSet {
        SlotSet::from_bits((self.0 & Self::SLOTS) as u32)
    }

    #[inline]
    pub(crate) const fn has(self, slot: Slot) -> bool {
        self.slots().contains(slot)
    }

    /// The mark of a client.
    #[expect(clippy::as_conversions, reason = "widening, in a const fn")]
    pub(crate) const fn mark(slot: Slot) -> Self {
        Self(slot.set().bits() as u64)
    }

    /// Without some marks, and not the word it was, also if it has them again
    /// later.
    #[expect(clippy::as_conversions, reason = "widening, in a const fn")]
    pub(crate) const fn take_out(self, slots: SlotSet) -> Self {
        Self((self.0 & !(slots.bits() as u64)).wrapping_add(1 << 32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(bits: u32) -> SlotSet {
        SlotSet::from_bits(bits)
    }

    fn slot(index: u32) -> Slot {
        slots(1 << index).first().unwrap()
    }

    #[test]
    fn whoever_asks_is_pending_and_used() {
        let word = TaskWord::from_bits(0).ask(slot(31));
        assert_eq!(word.asked(), slots(1 << 31));
        assert!(word.is_pending() && word.is_used() && !word.is_closed());
        let seen = word.taken_over();
        assert!(!seen.is_pending() && seen.is_used());
        assert_eq!(seen.asked(), word.asked());
    }

    #[test]
    fn closed_and_delivered_entries_take_a_closer_look() {
        let word = TaskWord::from_bits(0).ask(slot(31)).ask(slot(0));
        assert!(word.is_open());
        assert!(!word.taken_over().is_open());
        // Also with requests that came later.
        assert!(!word.taken_over().ask(slot(1)).is_open());
        assert!(!TaskWord::from_bits(word.bits() | TaskWord::CLOSED.bits()).is_open());
        assert!(word.taken_over().next_entry().is_open());
    }

    #[test]
    fn the_next_entry_keeps_closed_and_forgets_the_rest() {
        let word = TaskWord::from_bits(u64::MAX);
        let next = word.next_entry();
        assert_eq!(next.version().number(), 0);
        assert!(next.is_closed() && !next.is_used() && !next.is_pending());
        assert!(next.without_closed().is_open() && next.asked().is_empty());
        assert_eq!(next.without_closed().next_entry().version().number(), 1);
    }

    #[test]
    fn g16_a_renewed_entry_ends_as_one_that_was_used_and_the_next_is_not_renewed() {
        let word = TaskWord::from_bits(TaskWord::VERSION).ask(slot(3)).taken_over();
        let renewed = word.next_entry().renewed();
        assert!(renewed.is_renewed() && renewed.is_used() && renewed.is_open());
        assert!(renewed.asked().is_empty() && !renewed.is_pending());
        assert_eq!(renewed.version(), word.next_entry().version());
        assert!(renewed.purge(slots(1)).is_renewed() && renewed.ask(slot(0)).is_renewed());
        assert!(!renewed.next_entry().is_renewed());
    }

    #[test]
    fn entries_are_odd_by_turns_whatever_is_purged_in_them() {
        let last = (1 << 27) - 1;
        for number in [0, 1, 2, 0x7fff, 0x8000, 0xffff, 0x1_0000, 1 << 26, last - 2, last - 1, last]
        {
            let word = TaskWord::from_bits(!TaskWord::VERSION | number);
            let version = word.version();
            assert_eq!((version.number(), version.is_odd()), (number, number % 2 == 1));
            assert_eq!(word.purge(slots(0)).version().is_odd(), version.is_odd());
            assert_ne!(word.next_entry().version().is_odd(), version.is_odd());
        }
    }

    #[test]
    fn b3_b13_no_two_to_the_twenty_seventh_words_in_a_row_are_equal() {
        let first = TaskWord::from_bits(0);
        let mut word = first;
        for step in 1..1_u64 << 20 {
            word = if step % 3 == 0 { word.purge(slots(0)) } else { word.next_entry() };
            assert_ne!(word, first, "{step}");
        }
        let after = |steps| TaskWord::from_bits(TaskWord::VERSION & steps).next_entry();
        assert_ne!(after((1 << 27) - 2), first);
        assert_eq!(after((1 << 27) - 1), first, "and then they are");
    }

    #[test]
    fn a_purge_always_changes_the_word() {
        let full = TaskWord::from_bits(u64::MAX);
        assert_ne!(full.purge(slots(0)), full);
        assert_eq!(full.purge(slots(0)).asked(), full.asked());
        assert!(full.purge(slots(0)).is_pending() && full.purge(slots(0)).is_used());
        assert_eq!(full.purge(slots(1)).asked(), slots(!1));
        let again = full.purge(slots(1)).ask(slot(0));
        assert_eq!(again.asked(), full.asked());
        assert_ne!(again, full);
    }

    #[test]
    fn taking_a_served_mark_out_and_making_it_again_is_another_word() {
        let served = Served::from_bits(0b1010);
        let without = served.take_out(slots(0b1000));
        assert_eq!(without.slots(), slots(0b0010));
        let again = Served::from_bits(without.bits() | Served::mark(slot(3)).bits());
        assert_eq!(again.slots(), served.slots());
        assert_ne!(again, served);
    }
}
