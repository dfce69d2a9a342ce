//! The events of the whole system, and the walk over all tasks that the first
//! and the last of them cost.
//!
//! Which tasks such an event is about only the host knows, and it changes while tasks move. So a walk
//! asks for each task, marks it or not, and asks again after a fence: of two that adjust a task at once
//! the later one sees the answer that holds. Forks do not wait for walks: the child can be found before
//! it asks what is wanted, and the walk says what it wants before it starts.

/// The system-wide events, and how far the walk over the tasks is.
///
/// | bits | meaning |
/// |---|---|
/// | 0-1 | the phase |
/// | 2-31 | how many events |
/// | 32-63 | which walk it is, modulo 2³² |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SystemWide(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Off,
    Attaching,
    On,
    Detaching,
}

impl SystemWide {
    pub(super) const OFF: Self = Self(0);
    const PHASE: u64 = 0b11;
    const USER: u64 = 1 << 2;
    const USERS: u64 = Self::WALK - Self::USER;
    const WALK: u64 = 1 << 32;

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    pub(super) const fn phase(self) -> Phase {
        match self.0 & Self::PHASE {
            0 => Phase::Off,
            1 => Phase::Attaching,
            2 => Phase::On,
            _ => Phase::Detaching,
        }
    }

    const fn with(self, phase: Phase) -> Self {
        let phase = match phase {
            Phase::Off => 0,
            Phase::Attaching => 1,
            Phase::On => 2,
            Phase::Detaching => 3,
        };
        Self((self.0 & !Self::PHASE) | phase)
    }

    /// Whether tasks are to have the mark.
    pub(super) const fn is_wanted(self) -> bool {
        matches!(self.phase(), Phase::Attaching | Phase::On)
    }

    /// Whether no walk has started between the two.
    pub(super) const fn is_same_walk(self, other: Self) -> bool {
        self.0 & !(Self::WALK.wrapping_sub(1)) == other.0 & !(Self::WALK.wrapping_sub(1))
    }

    /// The start of a walk.
    pub(super) const fn next(self, phase: Phase) -> Self {
        Self(self.0.wrapping_add(Self::WALK) & !Self::USERS).with(phase)
    }

    /// The start of a walk that finds out anew which tasks are to have the mark. The events
    /// stay.
    pub(super) const fn again(self) -> Self {
        Self(self.0.wrapping_add(Self::WALK)).with(Phase::Attaching)
    }

    /// The end of a walk that has marked every task for the first event.
    pub(super) const fn on(self) -> Self {
        Self(self.0 | Self::USER).with(Phase::On)
    }

    /// The end of a walk that was [made again](Self::again).
    pub(super) const fn on_again(self) -> Self {
        self.with(Phase::On)
    }

    /// The end of a walk that has unmarked every task.
    pub(super) const fn off(self) -> Self {
        self.with(Phase::Off)
    }

    pub(super) fn users(self) -> u32 {
        u32::try_from((self.0 & Self::USERS) >> Self::USER.trailing_zeros()).unwrap_or(u32::MAX)
    }

    /// With one event more, or `None` if there are as many as can be counted.
    pub(super) const fn with_user(self) -> Option<Self> {
        if self.0 & Self::USERS == Self::USERS {
            return None;
        }
        Some(Self(self.0.wrapping_add(Self::USER)))
    }

    /// With one event less, or `None` if it is the last.
    pub(super) const fn without_user(self) -> Option<Self> {
        if self.0 & Self::USERS <= Self::USER {
            return None;
        }
        Some(Self(self.0.wrapping_sub(Self::USER)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_and_the_last_event_cost_a_walk() {
        let attaching = SystemWide::OFF.next(Phase::Attaching);
        assert!(attaching.is_wanted() && attaching.users() == 0);
        let on = attaching.on();
        assert_eq!((on.phase(), on.users(), on.without_user()), (Phase::On, 1, None));
        let two = on.with_user().unwrap();
        assert_eq!((two.users(), two.without_user()), (2, Some(on)));
        assert!(two.is_same_walk(attaching));
        let detaching = on.next(Phase::Detaching);
        assert!(!detaching.is_wanted() && !detaching.is_same_walk(on));
        assert_eq!((detaching.off().phase(), detaching.users()), (Phase::Off, 0));
    }

    #[test]
    fn g15_a_walk_that_is_made_again_keeps_the_events_and_is_another_one() {
        let on = SystemWide::OFF.next(Phase::Attaching).on().with_user().unwrap();
        let again = on.again();
        assert!(again.is_wanted() && !again.is_same_walk(on));
        assert_eq!((again.phase(), again.users()), (Phase::Attaching, 2));
        let after = again.on_again();
        assert_eq!((after.phase(), after.users()), (Phase::On, 2));
        assert!(after.is_same_walk(again));
    }

    #[test]
    fn users_do_not_overflow_into_the_number_of_the_walk() {
        let full = SystemWide(SystemWide::USERS).with(Phase::On);
        assert_eq!((full.users(), full.with_user()), ((1 << 30) - 1, None));
        let last = SystemWide(u64::MAX).next(Phase::Attaching);
        assert_eq!((last.bits() >> 32, last.users()), (0, 0));
    }
}
