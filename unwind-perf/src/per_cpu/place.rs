//! A place for one event in the list of a CPU.

use unwind_core::deferred::ClientId;

use super::EventKey;
use super::subject::{Filter, Subject};
use crate::sync::{AtomicU64, Ordering, const_unless_loom, counter};

/// The place: an event that is live here, one that is going away, or none.
///
/// The event's fields are written before the event becomes live and do not
/// change while a delivery to it runs.
#[derive(Debug)]
pub(super) struct Place {
    word: AtomicU64,
    client: AtomicU64,
    key: AtomicU64,
    /// The task or the group that it is about.
    about: AtomicU64,
}

/// What is known of an event that is added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occupant {
    pub(super) client: ClientId,
    pub(super) key: EventKey,
    pub(super) filter: Filter,
    pub(super) defer_output: bool,
}

impl Place {
    const_unless_loom! {
        pub(super) fn new() -> Self {
            Self {
                word: AtomicU64::new(0),
                client: AtomicU64::new(0),
                key: AtomicU64::new(0),
                about: AtomicU64::new(0),
            }
        }
    }

    pub(super) fn word(&self) -> PlaceWord {
        PlaceWord(self.word.load(Ordering::Acquire))
    }

    /// Makes an event live here. The place is free, and no other thread changes
    /// what is in it.
    pub(super) fn occupy(&self, generation: Generation, event: Occupant) {
        self.client.store(event.client.to_bits(), Ordering::Release);
        self.key.store(event.key.0, Ordering::Relaxed);
        let (kind, about) = event.filter.to_bits();
        self.about.store(about, Ordering::Relaxed);
        let word = PlaceWord::live(generation, kind, event.defer_output);
        self.word.store(word.0, Ordering::Release);
    }

    /// Keeps the event from being chosen any more; `false` if it is not live
    /// here.
    ///
    /// This is at once the unlinking from the list and the clearing of the
    /// event's back pointer. A reader that sees it sees all events that were
    /// added before.
    pub(super) fn unlink(&self, generation: Generation) -> bool {
        let live = self.word().is_live_as(generation);
        if live {
            self.word.fetch_and(!PlaceWord::LIVE, Ordering::Release);
        }
        live
    }

    /// Whether a delivery to an event that was unlinked still runs.
    pub(super) fn is_running(&self, generation: Generation) -> bool {
        let word = self.word();
        // A place with another event in it was free in between.
        word.generation() == generation && word.running() != 0
    }

    /// Whether the live event that was seen here belongs to `client`, if it
    /// still is there when it is [entered](Self::enter).
    ///
    /// A reader that sees that another profiler has the place sees all events
    /// that were added before.
    pub(super) fn belongs_to(&self, client: ClientId) -> bool {
        self.client.load(Ordering::Acquire) == client.to_bits()
    }

    /// Whether the event is about `subject`, if it still is there when it is
    /// [entered](Self::enter).
    pub(super) fn is_about(&self, word: PlaceWord, subject: impl Subject) -> bool {
        Filter::from_bits(word.filter(), self.about.load(Ordering::Relaxed)).is_about(subject)
    }

    /// Starts a delivery to the event that `word` is about. `None` if it is
    /// not live any more.
    ///
    /// One access sees that it is live and counts the delivery, so a removal
    /// comes before both or after both. That access acquires nothing: what was
    /// written before the event became live came with `word`, which is of the
    /// same generation.
    pub(super) fn enter(&self, mut word: PlaceWord) -> Option<Inside<'_>> {
        let generation = word.generation();
        loop {
            let entered = word.entered()?;
            let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            match self.word.compare_exchange(word.0, entered.0, done, failed) {
                Ok(_) => {
                    let key = EventKey(self.key.load(Ordering::Relaxed));
                    return Some(Inside { place: self, key });
                }
                Err(found) if PlaceWord(found).is_live_as(generation) => word = PlaceWord(found),
                Err(_) => return None,
            }
        }
    }
}

/// A delivery to an event that runs. Removing the event waits for its end.
#[derive(Debug)]
pub(super) struct Inside<'a> {
    place: &'a Place,
    pub(super) key: EventKey,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.place.word.fetch_sub(PlaceWord::ONE_RUNNING, Ordering::Release);
    }
}

/// The number of an event, unique over all registries: of two events in a list
/// the older one has the smaller number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Generation(pub(super) u64);

counter! {
    /// The generation of the next event.
    static NEXT: AtomicU64 = 1;
}

impl Generation {
    /// Before all events.
    pub(super) const NONE: Self = Self(0);
    const LAST: u64 = u64::MAX >> PlaceWord::GENERATION_SHIFT;

    /// A number that no other event has, of this registry or another, or
    /// `None` if they are used up: after 203 days at a million a second.
    pub(super) fn fresh() -> Option<Self> {
        let generation = NEXT.fetch_add(1, Ordering::Relaxed);
        (generation <= Self::LAST).then_some(Self(generation))
    }
}

/// The state of a place.
///
/// | bits | meaning |
/// |---|---|
/// | 0-15 | how many deliveries to the event run |
/// | 16 | the event is live |
/// | 17 | it wants records |
/// | 18-19 | whether it is about all tasks, one, or a group: [`Filter`] |
/// | 20-63 | its generation |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaceWord(u64);

impl PlaceWord {
    const ONE_RUNNING: u64 = 1;
    const RUNNING: u64 = 0xffff;
    const LIVE: u64 = 1 << 16;
    const WANTS_RECORDS: u64 = 1 << 17;
    const FILTER_SHIFT: u32 = 18;
    const FILTER: u64 = 0b11;
    const GENERATION_SHIFT: u32 = 20;

    const fn live(generation: Generation, filter: u64, defer_output: bool) -> Self {
        let filter = (filter & Self::FILTER) << Self::FILTER_SHIFT;
        let records = if defer_output { Self::WANTS_RECORDS } else { 0 };
        Self(generation.0 << Self::GENERATION_SHIFT | Self::LIVE | filter | records)
    }

    pub(super) const fn is_live(self) -> bool {
        self.0 & Self::LIVE != 0
    }

    pub(super) fn is_live_as(self, generation: Generation) -> bool {
        self.is_live() && self.generation() == generation
    }

    /// Whether the place is free.
    pub(super) const fn is_free(self) -> bool {
        !self.is_live() && self.running() == 0
    }

    pub(super) const fn defer_output(self) -> bool {
        self.0 & Self::WANTS_RECORDS != 0
    }

    const fn filter(self) -> u64 {
        (self.0 >> Self::FILTER_SHIFT) & Self::FILTER
    }

    pub(super) const fn generation(self) -> Generation {
        Generation(self.0 >> Self::GENERATION_SHIFT)
    }

    const fn running(self) -> u64 {
        self.0 & Self::RUNNING
    }

    /// With one delivery more, or `None` if the event is not live or there are
    /// as many as can be counted.
    const fn entered(self) -> Option<Self> {
        if !self.is_live() || self.running() == Self::RUNNING {
            return None;
        }
        Some(Self(self.0.wrapping_add(Self::ONE_RUNNING)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{GroupKey, TaskKey};
    use super::*;

    fn occupant(key: u64) -> Occupant {
        let client = ClientId::from_bits(1 << 5);
        Occupant {
            client,
            key: EventKey(key),
            filter: Filter::Task(TaskKey(7)),
            defer_output: true,
        }
    }

    #[test]
    fn r0_16_deliveries_are_counted_and_not_flagged() {
        let place = Place::new();
        place.occupy(Generation(3), occupant(11));
        let word = place.word();
        let (one, two) = (place.enter(word).unwrap(), place.enter(word).unwrap());
        assert_eq!((one.key, two.key), (EventKey(11), EventKey(11)));
        assert!(place.unlink(Generation(3)));
        // A flag would be cleared by the end of the first.
        drop(one);
        assert!(place.is_running(Generation(3)) && !place.word().is_free());
        drop(two);
        assert!(!place.is_running(Generation(3)) && place.word().is_free());
    }

    #[test]
    fn r0_15_what_is_unlinked_cannot_be_entered() {
        let place = Place::new();
        place.occupy(Generation(1), occupant(1));
        let before = place.word();
        assert!(!place.unlink(Generation(2)), "another event");
        assert!(place.unlink(Generation(1)));
        assert!(!place.unlink(Generation(1)), "twice");
        assert!(place.enter(before).is_none());
        assert!(place.enter(place.word()).is_none(), "also by who saw it unlinked");
        place.occupy(Generation(2), occupant(2));
        assert!(place.enter(before).is_none(), "the next event in the place is not meant");
        assert_eq!(place.enter(place.word()).unwrap().key, EventKey(2));
    }

    #[test]
    fn r0_15_a_removal_does_not_wait_for_the_next_event_in_its_place() {
        let place = Place::new();
        place.occupy(Generation(1), occupant(1));
        let of_first = place.enter(place.word()).unwrap();
        assert!(place.unlink(Generation(1)));
        drop(of_first);
        place.occupy(Generation(2), occupant(2));
        let _of_next = place.enter(place.word()).unwrap();
        assert!(!place.is_running(Generation(1)) && place.is_running(Generation(2)));
    }

    #[test]
    fn b10_no_two_events_have_one_generation_and_later_ones_have_higher_ones() {
        let (first, second) = (Generation::fresh().unwrap(), Generation::fresh().unwrap());
        assert!(Generation::NONE < first && first < second);
        assert!(second.0 <= Generation::LAST && Generation::LAST == (1 << 44) - 1);
    }

    #[test]
    fn the_word_keeps_its_fields_apart() {
        let generation = Generation(Generation::LAST);
        let (group, _) = Filter::Group(GroupKey(9)).to_bits();
        let word = PlaceWord::live(generation, group, false);
        assert!(word.is_live_as(generation) && !word.defer_output());
        assert_eq!(word.filter(), group);
        assert_eq!(word.running(), 0);
        let full = PlaceWord(word.0 | PlaceWord::RUNNING);
        assert_eq!(full.entered(), None);
        assert_eq!(word.entered().unwrap().generation(), generation);
        assert!(!PlaceWord(0).is_live() && PlaceWord(0).is_free());
    }
}
