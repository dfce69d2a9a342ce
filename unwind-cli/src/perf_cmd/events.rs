//! The events of a recording, and whose record is whose.

use std::collections::HashMap;

use unwind_perf::record::{Attr, AttrFlags, DeferredLayout, Endian, EventFormat, IdPlace, Record};

use crate::perf_cmd::event_name;
use crate::perf_cmd::{Fault, PerfError};

/// More events than this nobody records at once.
const MAX_EVENTS: usize = 1 << 14;

/// An event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// Its attr, as the file has it.
    pub(crate) attr_bytes: Vec<u8>,
    pub(crate) attr: Attr,
    /// The ids of its copies, one a CPU or thread.
    pub(crate) ids: Vec<u64>,
    name: Option<String>,
}

impl Event {
    /// Its name, as the user gave it or else made up from the attr.
    pub(crate) fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| event_name::of(&self.attr))
    }

    /// The attr of the same event with whole call chains, `len` bytes long.
    pub(crate) fn merged_attr(&self, endian: Endian, len: u32) -> Vec<u8> {
        let mut bytes = self.attr_bytes.clone();
        clear_deferral(&mut bytes, endian);
        bytes.resize(usize::try_from(len).unwrap_or(bytes.len()), 0);
        if let Some(place) = bytes.get_mut(SIZE_AT..).and_then(<[u8]>::first_chunk_mut) {
            *place = endian.bytes_of_u32(len);
        }
        bytes
    }

    /// How long the attr has to be.
    ///
    /// A `perf` refuses attrs longer than those it knows, so zeros at the end
    /// that mean nothing are better left out.
    pub(crate) fn least_attr_len(&self, endian: Endian) -> u32 {
        let mut bytes = self.attr_bytes.clone();
        clear_deferral(&mut bytes, endian);
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at.saturating_add(1));
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        ATTR_SIZES.into_iter().find(|&size| size >= used).unwrap_or(self.attr.size)
    }
}

/// Where an attr says how long it is.
const SIZE_AT: usize = 4;

/// The lengths that attrs have had, from the first with `sample_max_stack` on.
const ATTR_SIZES: [u32; 5] = [112, 120, 128, 136, 144];

/// Takes the switches for deferral out of an attr.
pub(crate) fn clear_deferral(attr_bytes: &mut [u8], endian: Endian) {
    let Ok(attr) = Attr::parse(attr_bytes, endian) else {
        return;
    };
    let deferral = AttrFlags::DEFER_CALLCHAIN | AttrFlags::DEFER_OUTPUT;
    let flags = attr.format.flags.without(deferral);
    let word = endian.bytes_of_u64(Attr::flags_word(flags, endian));
    if let Some(place) = attr_bytes.get_mut(Attr::FLAGS_AT..).and_then(<[u8]>::first_chunk_mut) {
        *place = word;
    }
}

/// All events of a recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    events: Vec<Event>,
    by_id: HashMap<u64, usize>,
    /// Known from the first record on.
    place: Option<IdPlace>,
    /// Whether an event receives deferred records.
    defer_output: bool,
}

impl Events {
    /// Adds an event.
    pub(crate) fn add(
        &mut self,
        attr_bytes: Vec<u8>,
        ids: Vec<u64>,
        endian: Endian,
    ) -> Result<(), PerfError> {
        let index = self.events.len();
        if index >= MAX_EVENTS {
            return Err(PerfError::TooManyEvents(MAX_EVENTS));
        }
        let attr = Attr::parse(&attr_bytes, endian)
            .map_err(|error| PerfError::BadEvent { index, error })?;
        self.by_id.extend(ids.iter().map(|&id| (id, index)));
        self.events.push(Event { attr_bytes, attr, ids, name: None });
        self.place = None;
        self.defer_output |= attr.format.flags.contains(AttrFlags::DEFER_OUTPUT);
        Ok(())
    }

    pub(crate) fn all(&self) -> &[Event] {
        &self.events
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Event> {
        self.events.get(index)
    }

    /// The layout of an event's records.
    pub(crate) fn format(&self, index: usize) -> EventFormat {
        self.get(index).map(|event| event.attr.format).unwrap_or_default()
    }

    /// Names the event that has this id.
    pub(crate) fn set_name(&mut self, id: u64, name: String) {
        let index = self.by_id.get(&id).copied();
        if let Some(event) = index.and_then(|index| self.events.get_mut(index)) {
            event.name = Some(name);
        }
    }

    /// Names the event at `index`, if `id` is its first one.
    pub(crate) fn set_name_at(&mut self, index: usize, id: Option<u64>, name: String) {
        let event = self.events.get_mut(index);
        if let Some(event) = event.filter(|event| event.ids.first().copied() == id) {
            event.name = Some(name);
        }
    }

    /// The layout of deferred records.
    pub(crate) fn deferred_layout(&self) -> DeferredLayout {
        let flags = if self.defer_output { AttrFlags::DEFER_OUTPUT } else { AttrFlags(0) };
        DeferredLayout::of([flags])
    }

    /// Finds the event that wrote `record`.
    ///
    /// # Errors
    ///
    /// The outer one ends the reading: no record can be told from another.
    pub(crate) fn event_of(
        &mut self,
        record: &Record<'_>,
    ) -> Result<Result<usize, Fault>, PerfError> {
        let place = match self.place {
            Some(place) => place,
            None if self.events.is_empty() => return Err(PerfError::NoEvents),
            None => {
                let formats = self.events.iter().map(|event| event.attr.format);
                *self.place.insert(IdPlace::of(formats).map_err(PerfError::MixedEvents)?)
            }
        };
        // Records that a tool wrote in the kernel's name have the id 0.
        Ok(match place.id_of(record) {
            None | Some(0) => Ok(0),
            // One event, one layout: the id tells nothing.
            Some(_) if self.events.len() == 1 => Ok(0),
            Some(id) => self.by_id.get(&id).copied().ok_or(Fault::UnknownEvent(id)),
        })
    }
}
