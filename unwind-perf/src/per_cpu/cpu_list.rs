//! The events of one CPU.

use unwind_core::deferred::ClientId;

use super::place::{Generation, Inside, Occupant, Place};
use super::{EventKey, TaskKey};
use crate::sync::{AtomicU64, Ordering, Statistic, atomics, const_unless_loom};

/// The list of one CPU, with room for `EVENTS` events.
#[derive(Debug)]
#[repr(align(64))]
pub struct CpuList<const EVENTS: usize> {
    places: [Place; EVENTS],
    /// The generation of the event that was added last.
    added: AtomicU64,
    pub(super) no_event: Statistic,
    pub(super) output_failed: Statistic,
    pub(super) stale_requests: Statistic,
}

impl<const EVENTS: usize> CpuList<EVENTS> {
    const_unless_loom! {
        /// A list without events.
        #[must_use]
        pub fn new() -> Self {
            Self {
                places: atomics![Place::new(); EVENTS],
                added: AtomicU64::new(Generation::NONE.0),
                no_event: Statistic::new(),
                output_failed: Statistic::new(),
                stale_requests: Statistic::new(),
            }
        }
    }

    pub(super) fn place(&self, index: usize) -> Option<&Place> {
        self.places.get(index)
    }

    /// A free place, and its index.
    pub(super) fn free_place(&self) -> Option<(usize, &Place)> {
        self.places.iter().enumerate().find(|(_, place)| place.word().is_free())
    }

    /// Whether `client` has a live event here. The caller keeps events from
    /// being added and removed meanwhile.
    pub(super) fn has_events_of(&self, client: ClientId) -> bool {
        self.places.iter().any(|place| place.word().is_live() && place.belongs_to(client))
    }

    /// Makes an event live in a free place. The caller keeps events from being
    /// added and removed meanwhile.
    pub(super) fn occupy(&self, place: &Place, generation: Generation, event: Occupant) {
        place.occupy(generation, event);
        // A reader that sees the number sees the event.
        self.added.store(generation.0, Ordering::Release);
    }

    /// Starts a delivery to the oldest live event of `client`. `None` only if
    /// there was a moment at which it had none.
    ///
    /// An event that is removed before it is entered is skipped. One scan of
    /// the places is not enough: an event may be added after the scan has
    /// passed its place, and the last of the others may be removed before the
    /// scan reaches it. A second scan finds the new event: a reader that sees a
    /// removal also sees the generation that was added last before it.
    pub(super) fn enter_first(&self, client: ClientId) -> Option<Inside<'_>> {
        let mut after = Generation::NONE;
        loop {
            let added = self.added.load(Ordering::Acquire);
            let oldest = self
                .places
                .iter()
                .map(|place| (place, place.word()))
                .filter(|(place, word)| {
                    word.is_live() && word.generation() > after && place.belongs_to(client)
                })
                .min_by_key(|(_, word)| word.generation());
            match oldest {
                Some((place, word)) => match place.enter(word) {
                    Some(inside) => return Some(inside),
                    None => after = word.generation(),
                },
                None if added == self.added.load(Ordering::Relaxed) => return None,
                None => {}
            }
        }
    }

    /// Delivers to each live event of `client` that wants records and is about
    /// `task`, one after the other.
    pub(super) fn enter_each(
        &self,
        client: ClientId,
        task: TaskKey,
        mut deliver: impl FnMut(EventKey),
    ) {
        for place in &self.places {
            let word = place.word();
            let wanted = word.is_live()
                && word.defer_output()
                && place.belongs_to(client)
                && place.is_about(word, task);
            if let Some(inside) = wanted.then(|| place.enter(word)).flatten() {
                deliver(inside.key);
            }
        }
    }
}

impl<const EVENTS: usize> Default for CpuList<EVENTS> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn an_event_with_as_many_deliveries_as_can_be_counted_is_passed_over() {
        let (list, client) = (CpuList::<2>::new(), ClientId::from_bits(1 << 6 | 1 << 5));
        let add = |key, generation| {
            let occupant = Occupant { client, key: EventKey(key), task: None, defer_output: true };
            list.occupy(list.free_place().unwrap().1, Generation(generation), occupant);
        };
        add(1, 1);
        let inside: Vec<_> = (0..0xffff).map(|_| list.enter_first(client).unwrap()).collect();
        assert!(list.enter_first(client).is_none());
        add(2, 2);
        assert_eq!(list.enter_first(client).unwrap().key, EventKey(2));
        drop(inside);
        assert_eq!(list.enter_first(client).unwrap().key, EventKey(1));
    }
}
