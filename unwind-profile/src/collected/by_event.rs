//! The samples of each event by themselves: what one counts is nothing that may be added to what
//! another does.

use std::io;

use unwind_target::Untrusted;

use crate::collected::collector::Collector;
use crate::mapped::names::Names;
use crate::recording::events::{Event, Events};
use crate::recording::held::Held;
use crate::session::recorded_stacks::RecordedStacks;
use crate::walks::chosen_event::{is_asked, name};
use crate::walks::shown::{Printer, Shown};
use crate::walks::walked_stack::WalkedStack;

/// How many events are put together each by itself, if none was asked for.
const MOST: usize = 32;

/// The name under which the events beyond these are put together.
const MORE_EVENTS: &[u8] = b"[more events]";

/// A collector for each event, or for the one that was asked for.
#[derive(Debug)]
pub(crate) struct ByEvent {
    asked: Option<Untrusted>,
    /// By name. The first is there before its event is known.
    collectors: Vec<(Untrusted, Collector)>,
    /// The place of the collector that has what all share.
    at: usize,
    /// Where samples of the events of this recording go: to a collector or, if they were not asked
    /// for, to a count.
    places: Vec<Place>,
    /// How many samples others have, by name.
    pub(crate) others: Vec<(Untrusted, u64)>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Collector(usize),
    Other(usize),
}

impl ByEvent {
    /// Of the event `asked`, or of each, by collectors like this one.
    pub(crate) fn new(asked: Option<Untrusted>, first: Collector) -> Self {
        Self {
            asked,
            collectors: vec![(Untrusted::from(&b""[..]), first)],
            at: 0,
            places: Vec::new(),
            others: Vec::new(),
        }
    }

    /// Continues with another recording.
    pub(crate) fn begin(&mut self, names: Names, recorded: RecordedStacks) {
        self.places.clear();
        let mut shared = Some((names, recorded));
        for (at, (_, collector)) in self.collectors.iter_mut().enumerate() {
            match shared.take_if(|_| at == self.at) {
                Some((names, recorded)) => collector.begin(names, recorded),
                None => collector.forget_codes(),
            }
        }
    }

    /// All collectors, with the names of their events.
    pub(crate) fn collectors(&mut self) -> impl Iterator<Item = (&Untrusted, &mut Collector)> {
        self.collectors.iter_mut().map(|(name, collector)| (&*name, collector))
    }

    /// The same at the end. One event at least has been seen, if there were samples.
    pub(crate) fn into_collectors(self) -> Vec<(Untrusted, Collector)> {
        self.collectors
    }

    /// Whether the event that was asked for is there, or none was.
    pub(crate) fn has_asked(&self) -> bool {
        let name = self.collectors.first().map(|(name, _)| name.as_bytes());
        self.asked.is_none() || name.is_some_and(|name| !name.is_empty())
    }

    /// Finds out what the events of a recording are, also those without samples.
    pub(crate) fn learn_events(&mut self, events: &Events) {
        let known = self.places.len();
        for event in events.all().iter().skip(known) {
            let place = self.place(events, event);
            self.places.push(place);
        }
    }

    /// Where the samples of an event go.
    fn place(&mut self, events: &Events, event: &Event) -> Place {
        let unnamed = Untrusted::from(&b"[unnamed]"[..]);
        let name = name(events, event);
        let name = if name.as_bytes().is_empty() { &unnamed } else { name };
        if self.asked.as_ref().is_some_and(|asked| !is_asked(asked, name, events)) {
            return Place::Other(self.other(name));
        }
        if let Some(at) = self.collectors.iter().position(|(other, _)| other == name) {
            return Place::Collector(at);
        }
        if let Some((first, _)) = self.collectors.first_mut()
            && first.as_bytes().is_empty()
        {
            *first = name.clone();
            return Place::Collector(0);
        }
        let more = Untrusted::from(MORE_EVENTS);
        let is_last = self.collectors.len() >= MOST;
        if is_last && let Some(at) = self.collectors.iter().position(|(other, _)| *other == more) {
            return Place::Collector(at);
        }
        let count = events.all().len().clamp(1, MOST);
        let Some((_, first)) = self.collectors.first() else { return Place::Other(0) };
        let collector = first.another(count);
        self.collectors.push((if is_last { more } else { name.clone() }, collector));
        Place::Collector(self.collectors.len().saturating_sub(1))
    }

    fn other(&mut self, name: &Untrusted) -> usize {
        let found = self.others.iter().position(|(other, _)| other == name);
        found.unwrap_or_else(|| {
            self.others.push((name.clone(), 0));
            self.others.len().saturating_sub(1)
        })
    }

    /// The collector at a place, which then has what all share.
    fn collector(&mut self, at: usize) -> Option<&mut Collector> {
        if at != self.at {
            let [one, other] = self.collectors.get_disjoint_mut([self.at, at]).ok()?;
            one.1.lend(&mut other.1);
            self.at = at;
        }
        self.collectors.get_mut(at).map(|(_, collector)| collector)
    }
}

impl Printer for ByEvent {
    fn print(
        &mut self,
        events: &Events,
        shown: &Shown,
        walked: Option<&WalkedStack>,
    ) -> io::Result<()> {
        if !shown.is_sample() {
            return Ok(());
        }
        self.learn_events(events);
        match self.places.get(shown.held.event).copied() {
            Some(Place::Collector(at)) => match self.collector(at) {
                Some(collector) => collector.print(events, shown, walked),
                None => Ok(()),
            },
            Some(Place::Other(at)) => {
                if let Some((_, count)) = self.others.get_mut(at) {
                    *count = count.saturating_add(1);
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn read(&mut self, _: usize) {}

    fn learn(&mut self, held: &Held) {
        if let Some((_, collector)) = self.collectors.get_mut(self.at) {
            collector.learn(held);
        }
    }
}
