//! The event of a recording that a user asks for.

use std::io;

use unwind_target::Untrusted;
use unwind_target::counted::counted;

use crate::recording::events::{Event, Events};
use crate::recording::held::Held;
use crate::walks::shown::{Printer, Shown};
use crate::walks::walked_stack::WalkedStack;

/// The event that was asked for is not there.
#[derive(Debug, thiserror::Error)]
#[error("{path}: there is no event {asked}, or more than one; there are: {}", listed(events))]
pub struct NoEvent {
    pub(crate) path: String,
    pub(crate) asked: Untrusted,
    pub(crate) events: Vec<(Untrusted, u64)>,
}

/// Events with the counts of their samples.
#[must_use]
pub fn listed(events: &[(Untrusted, u64)]) -> String {
    let events = events.iter();
    let events = events.map(|(name, count)| {
        format!("{} ({})", name.escaped(), counted(*count, "sample", "samples"))
    });
    events.collect::<Vec<_>>().join(", ")
}

/// What an event is called. Waits belong to the event beside which they were recorded.
pub(crate) fn name<'e>(events: &'e Events, event: &'e Event) -> &'e Untrusted {
    let first = events.all().first().unwrap_or(event);
    if event.is_of_waits() { &first.name } else { &event.name }
}

/// Whether an event is the one asked for: by its name, or by what stands before the modes if only one
/// is called that.
pub(crate) fn is_asked(asked: &Untrusted, of_event: &Untrusted, events: &Events) -> bool {
    let base = |name: &Untrusted| {
        let name = name.as_bytes();
        let end = name.iter().rposition(|&byte| byte == b':').unwrap_or(name.len());
        name.get(..end).unwrap_or(name).to_vec()
    };
    let names = || events.all().iter().map(|event| name(events, event));
    if names().any(|name| name == asked) {
        return of_event == asked;
    }
    let is_alike = |name: &Untrusted| base(name) == asked.as_bytes();
    let is_only = names().filter(|name| is_alike(name)).all(|name| name == of_event);
    is_alike(of_event) && is_only
}

/// Hands on what is of the event that was asked for, or all.
#[derive(Debug)]
pub struct ChosenEvent<'a, P> {
    asked: Option<&'a Untrusted>,
    pub printer: P,
    /// Of each event whether it is the one, its name and how many samples it has.
    events: Vec<(bool, Untrusted, u64)>,
}

impl<'a, P> ChosenEvent<'a, P> {
    pub fn new(asked: Option<&'a Untrusted>, printer: P) -> Self {
        Self { asked, printer, events: Vec::new() }
    }

    /// Why there is nothing of the event that was asked for, in a recording with these events.
    pub fn missing(&mut self, events: &Events, path: String) -> Option<NoEvent> {
        self.learn_events(events);
        let asked = self.asked.filter(|_| !self.events.iter().any(|(is_it, ..)| *is_it))?.clone();
        let events = std::mem::take(&mut self.events)
            .into_iter()
            .map(|(_, name, count)| (name, count))
            .collect();
        Some(NoEvent { path, asked, events })
    }

    fn learn_events(&mut self, events: &Events) {
        for event in events.all().iter().skip(self.events.len()) {
            let name = name(events, event);
            let is_it = self.asked.is_none_or(|asked| is_asked(asked, name, events));
            self.events.push((is_it, name.clone(), 0));
        }
    }
}

impl<P: Printer> Printer for ChosenEvent<'_, P> {
    fn print(
        &mut self,
        events: &Events,
        shown: &Shown,
        walked: Option<&WalkedStack>,
    ) -> io::Result<()> {
        self.learn_events(events);
        let is_it = match self.events.get_mut(shown.held.event) {
            Some((is_it, _, count)) => {
                *count = count.saturating_add(u64::from(shown.is_sample()));
                *is_it
            }
            None => self.asked.is_none(),
        };
        if is_it {
            return self.printer.print(events, shown, walked);
        }
        self.printer.pass_over(shown);
        Ok(())
    }

    fn read(&mut self, len: usize) {
        self.printer.read(len);
    }

    fn learn(&mut self, held: &Held) {
        self.printer.learn(held);
    }

    fn round(&mut self) {
        self.printer.round();
    }
}
