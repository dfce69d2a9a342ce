//! Who asks for stacks.

use core::fmt;

/// How many clients can be registered at a time: a tracer takes one and
/// multiplexes inside.
// Models have two, so that they end.
pub const MAX_CLIENTS: usize = if cfg!(loom) { 2 } else { 32 };

/// A registered client: the slot it holds, and which registration it is.
///
/// Registrations have numbers that no other one has, of this instance or of
/// another, so the id of a cancelled client never becomes that of another:
/// wherever a copy of it may be, it is refused, and so it is by other
/// instances.
///
/// | bits | meaning |
/// |---|---|
/// | 0-4 | slot |
/// | 5 | set |
/// | 6-63 | number of the registration, from 1,024 |
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ClientId(u64);

impl ClientId {
    /// The id that no instance gives out: it is refused everywhere. What C
    /// leaves in a field is this one.
    pub const NONE: Self = Self(0);

    const SLOT_BITS: u32 = 6;
    const SLOT_MASK: u64 = (1 << Self::SLOT_BITS) - 1;
    /// Set in each id that was given out, so that a slot can hold other values
    /// that are equal to none.
    pub(crate) const GRANTED: u64 = 1 << 5;

    pub(crate) const fn new(slot: Slot, registration: u64) -> Self {
        Self((registration << Self::SLOT_BITS) | slot.bits())
    }

    /// The id whose [`to_bits`](Self::to_bits) these are.
    ///
    /// Bits that no registration gave out make an id that is refused: those
    /// that cannot be one make [`NONE`](Self::NONE).
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        if bits & Self::GRANTED == 0 { Self::NONE } else { Self(bits) }
    }

    /// The id as a number, to be kept in an atomic or passed through C.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn slot(self) -> Slot {
        Slot::from_low_bits(self.0)
    }

    /// The number of the registration: no other one of any instance has it,
    /// and a later one of this instance has a higher one.
    #[must_use]
    pub const fn registration(self) -> u64 {
        self.0 >> Self::SLOT_BITS
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("ClientId(none)");
        }
        write!(f, "ClientId({}#{})", self.slot().index(), self.registration())
    }
}

/// The newest registration that some marks account for.
///
/// Kept as the largest id that this registration could have, so that an id is
/// compared as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(u64);

impl Epoch {
    /// No registration.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn registration(number: u64) -> Self {
        Self((number << ClientId::SLOT_BITS) | ClientId::SLOT_MASK)
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn to_bits(self) -> u64 {
        self.0
    }

    /// Whether `client` registered no later than this.
    #[inline]
    pub(crate) const fn includes(self, client: ClientId) -> bool {
        client.0 <= self.0
    }
}

/// A place in the client table.
///
/// Kept as the bit that the slot's mark is in a [`TaskWord`](super::word::TaskWord), 32
/// to 63: that bit is tested in each request, and an id has its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

impl Slot {
    const FIRST: u32 = 32;

    /// Bits that are no slot's make an id that no client has.
    #[inline]
    #[expect(clippy::as_conversions, reason = "six bits, in a const fn")]
    const fn from_low_bits(bits: u64) -> Self {
        Self((bits & ClientId::SLOT_MASK) as u32)
    }

    /// The slot in the low six bits of a word, if there is one.
    #[expect(clippy::as_conversions, reason = "six bits, in a const fn")]
    pub(crate) const fn from_word(bits: u64) -> Option<Self> {
        let bits = (bits & ClientId::SLOT_MASK) as u32;
        if bits & Self::FIRST == 0 { None } else { Some(Self(bits)) }
    }

    /// The slot in six bits, which are not all zero.
    #[expect(clippy::as_conversions, reason = "widening, in a const fn")]
    pub(crate) const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// The bit of the slot's mark in a word.
    #[inline]
    pub(crate) const fn mark_at(self) -> u32 {
        self.0
    }

    /// The place, less than 32.
    #[inline]
    #[expect(clippy::as_conversions, reason = "five bits, in a const fn")]
    pub(crate) const fn index(self) -> usize {
        (self.0 & !Self::FIRST) as usize
    }

    #[inline]
    pub(crate) const fn set(self) -> SlotSet {
        SlotSet(1_u32.wrapping_shl(self.0))
    }

    /// All slots of the table.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (Self::FIRST..64).map(Self).take(MAX_CLIENTS)
    }
}

/// A set of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotSet(u32);

impl SlotSet {
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) const fn contains(self, slot: Slot) -> bool {
        self.0.wrapping_shr(slot.0) & 1 != 0
    }

    #[inline]
    pub(crate) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[inline]
    pub(crate) const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[inline]
    pub(crate) const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The lowest slot.
    pub(crate) const fn first(self) -> Option<Slot> {
        if self.is_empty() {
            return None;
        }
        Some(Slot(self.0.trailing_zeros() | Slot::FIRST))
    }
}

#[cfg(test)]
mod tests {
    use arrayvec::ArrayVec;

    use super::*;

    #[test]
    fn an_id_holds_its_slot_and_registration() {
        for (slot, registration) in [(0, 1), (31, 1), (5, 1 << 40), (31, (1 << 58) - 1)] {
            let slot = Slot::all().nth(slot).unwrap();
            let id = ClientId::new(slot, registration);
            assert_eq!((id.slot(), id.registration()), (slot, registration));
            assert_eq!(ClientId::from_bits(id.to_bits()), id);
        }
    }

    #[test]
    fn b1_bits_that_cannot_be_an_id_are_none_and_an_id_never_is() {
        for bits in [0, 1, 2, 31, 64, 1 << 63, !ClientId::GRANTED] {
            assert_eq!(ClientId::from_bits(bits), ClientId::NONE, "{bits:#x}");
        }
        for slot in Slot::all() {
            assert_ne!(ClientId::new(slot, 0), ClientId::NONE);
        }
    }

    #[test]
    fn newest_includes_every_slot_of_its_registration_and_none_of_the_next() {
        let newest = Epoch::registration(7);
        for slot in Slot::all() {
            assert!(newest.includes(ClientId::new(slot, 6)));
            assert!(newest.includes(ClientId::new(slot, 7)));
            assert!(!newest.includes(ClientId::new(slot, 8)));
        }
    }

    #[test]
    fn h5_the_highest_slot_is_a_slot_like_the_others() {
        let slots: ArrayVec<Slot, 32> = Slot::all().collect();
        let [first, .., other, last] = slots.into_inner().unwrap();
        assert_eq!((first.index(), last.index()), (0, 31));
        let mut set = last.set().union(first.set());
        assert!(set.contains(last) && !set.contains(other));
        assert_eq!(set.first(), Some(first));
        set = set.difference(first.set());
        assert_eq!(set.first(), Some(last));
        assert_eq!(set.difference(last.set()).first(), None);
    }
}
