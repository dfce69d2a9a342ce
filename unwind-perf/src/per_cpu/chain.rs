//! The events of one CPU, or of no CPU: a list, and those that were taken for more.
//!
//! The oldest event is found, not kept: a list that deliveries walk while events come and go would need
//! a grace period to free what was unlinked. Places are fixed, events have numbers that rise, and the
//! first event has the smallest number. A second scan finds an event that was added during the
//! first one while the last of the others was removed.

use unwind_core::deferred::ClientId;

use super::EventKey;
use super::cpu_list::CpuList;
use super::place::{Generation, Inside, Occupant, Place};
use super::subject::Subject;
use crate::sync::Ordering;

/// A list of events with the lists that continue it.
///
/// Lists are added under the lock of the [owners](super::owners::Owners) and stay. A reader
/// that sees an event sees the list that it is in: both come before the number of the
/// event that was added last, which the reader loads first.
#[derive(Debug)]
pub(super) struct Chain<'a, const EVENTS: usize> {
    pub(super) head: &'a CpuList<EVENTS>,
    /// All lists of the registry: a list names the next one by its number here.
    pub(super) lists: &'a [CpuList<EVENTS>],
}

/// A place in a chain: the number of the list, zero for the first and else one more than
/// its index among all lists, and the index in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PlaceIndex {
    list: u32,
    place: usize,
}

impl<'a, const EVENTS: usize> Chain<'a, EVENTS> {
    /// The lists, each with its number.
    fn lists(&self) -> impl Iterator<Item = (u32, &'a CpuList<EVENTS>)> + use<'a, EVENTS> {
        let lists = self.lists;
        let after = move |&(_, list): &(u32, &'a CpuList<EVENTS>)| {
            let next = list.next.load(Ordering::Relaxed);
            Some((next, by_number(lists, next)?))
        };
        // No list is in a chain twice.
        core::iter::successors(Some((0, self.head)), after).take(lists.len().saturating_add(1))
    }

    fn places(&self) -> impl Iterator<Item = &'a Place> + use<'a, EVENTS> {
        self.lists().flat_map(|(_, list)| list.places())
    }

    pub(super) fn place(&self, at: PlaceIndex) -> Option<&'a Place> {
        let list = if at.list == 0 { self.head } else { by_number(self.lists, at.list)? };
        list.places().get(at.place)
    }

    /// A free place.
    pub(super) fn free_place(&self) -> Option<(PlaceIndex, &'a Place)> {
        self.lists().find_map(|(list, in_list)| {
            let mut places = in_list.places().iter().enumerate();
            let (place, free) = places.find(|(_, place)| place.word().is_free())?;
            Some((PlaceIndex { list, place }, free))
        })
    }

    /// Adds the list at `index`, which is in no chain and has no events, to the end. The
    /// caller keeps lists from being added meanwhile.
    pub(super) fn extend(&self, index: usize) {
        let number = u32::try_from(index).ok().and_then(|index| index.checked_add(1));
        if let (Some(number), Some((_, last))) = (number, self.lists().last()) {
            last.next.store(number, Ordering::Relaxed);
        }
    }

    /// Whether `client` has a live event here. The caller keeps events from
    /// being added and removed meanwhile.
    pub(super) fn has_events_of(&self, client: ClientId) -> bool {
        self.places().any(|place| place.word().is_live() && place.belongs_to(client))
    }

    /// Makes an event live in a free place. The caller keeps events from being
    /// added and removed meanwhile.
    pub(super) fn occupy(&self, place: &Place, generation: Generation, event: Occupant) {
        place.occupy(generation, event);
        // A reader that sees the number sees the event.
        self.head.added.store(generation.0, Ordering::Release);
    }

    /// Starts a delivery to the oldest live event of `client` that is about `subject`. `None`
    /// only if there was a moment at which it had none.
    ///
    /// An event that is removed before it is entered is skipped. One scan of
    /// the places is not enough: an event may be added after the scan has
    /// passed its place, and the last of the others may be removed before the
    /// scan reaches it. A second scan finds the new event: a reader that sees a
    /// removal also sees the generation that was added last before it.
    pub(super) fn enter_first(
        &self,
        client: ClientId,
        subject: impl Subject,
    ) -> Option<Inside<'a>> {
        let mut after = Generation::NONE;
        loop {
            let added = self.head.added.load(Ordering::Acquire);
            let oldest = self
                .places()
                .map(|place| (place, place.word()))
                .filter(|&(place, word)| {
                    word.is_live()
                        && word.generation() > after
                        && place.belongs_to(client)
                        && place.is_about(word, subject)
                })
                .min_by_key(|(_, word)| word.generation());
            match oldest {
                Some((place, word)) => match place.enter(word) {
                    Some(inside) => return Some(inside),
                    None => after = word.generation(),
                },
                None if added == self.head.added.load(Ordering::Relaxed) => return None,
                None => {}
            }
        }
    }

    /// Delivers to each live event of `client` that wants records and is about
    /// `subject`, one after the other.
    pub(super) fn enter_each(
        &self,
        client: ClientId,
        subject: impl Subject,
        mut deliver: impl FnMut(EventKey),
    ) {
        for place in self.places() {
            let word = place.word();
            let wanted = word.is_live()
                && word.defer_output()
                && place.belongs_to(client)
                && place.is_about(word, subject);
            if let Some(inside) = wanted.then(|| place.enter(word)).flatten() {
                deliver(inside.key);
            }
        }
    }
}

fn by_number<const EVENTS: usize>(
    lists: &[CpuList<EVENTS>],
    number: u32,
) -> Option<&CpuList<EVENTS>> {
    lists.get(usize::try_from(number.checked_sub(1)?).ok()?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;

    use super::super::TaskKey;
    use super::super::subject::Filter;
    use super::*;

    #[test]
    fn an_event_with_as_many_deliveries_as_can_be_counted_is_passed_over() {
        let (list, client) = (CpuList::<2>::new(), ClientId::from_bits(1 << 6 | 1 << 5));
        let chain = Chain { head: &list, lists: &[] };
        let add = |key, generation| {
            let occupant =
                Occupant { client, key: EventKey(key), filter: Filter::All, defer_output: true };
            chain.occupy(chain.free_place().unwrap().1, Generation(generation), occupant);
        };
        let enter = || chain.enter_first(client, TaskKey(1));
        add(1, 1);
        let inside: Vec<_> = (0..0xffff).map(|_| enter().unwrap()).collect();
        assert!(enter().is_none());
        add(2, 2);
        assert_eq!(enter().unwrap().key, EventKey(2));
        drop(inside);
        assert_eq!(enter().unwrap().key, EventKey(1));
    }

    #[test]
    fn g5_lists_that_continue_another_are_searched_with_it() {
        let (head, client) = (CpuList::<1>::new(), ClientId::from_bits(1 << 6 | 1 << 5));
        let lists = [CpuList::new(), CpuList::new(), CpuList::new()];
        let chain = Chain { head: &head, lists: &lists };
        let mut places = Vec::new();
        for (key, extension) in [(1, Some(2)), (2, Some(0)), (3, None)] {
            let (at, place) = chain.free_place().unwrap();
            let occupant =
                Occupant { client, key: EventKey(key), filter: Filter::All, defer_output: true };
            chain.occupy(place, Generation(10 - key), occupant);
            assert!(core::ptr::eq(chain.place(at).unwrap(), place));
            places.push(place);
            if let Some(index) = extension {
                assert!(chain.free_place().is_none());
                chain.extend(index);
            }
        }
        assert!(chain.free_place().is_none());
        let own = |list: &CpuList<1>, place: &Place| core::ptr::eq(&list.places()[0], place);
        assert!(own(&head, places[0]) && own(&lists[2], places[1]) && own(&lists[0], places[2]));
        // The oldest is in the list that was added last.
        assert_eq!(chain.enter_first(client, TaskKey(1)).unwrap().key, EventKey(3));
        let mut each = Vec::new();
        chain.enter_each(client, TaskKey(1), |key| each.push(key.0));
        assert_eq!(each, [1, 2, 3]);
        assert!(chain.has_events_of(client));
    }
}
