//! The events of a recording, and whose record is whose.

use std::collections::{BTreeMap, HashMap};

use unwind_perf::record::{
    self, Attr, AttrFlags, BranchSampleType, DeferredLayout, Endian, EventFormat, IdPlace, Record,
    SampleType,
};
use unwind_target::Untrusted;

use crate::recording::error::{Fault, PerfError};
use crate::recording::event_name;

/// The name of the event whose samples are taken when a CPU switches away from a thread. A
/// sample's period is the time until the thread runs again, in nanoseconds.
pub(crate) const OFF_CPU: &str = "offcpu-time";

/// More events than a recording has.
const MAX_EVENTS: usize = 1 << 14;

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its attr, as the file has it.
    pub(crate) attr_bytes: Vec<u8>,
    pub attr: Attr,
    /// The ids of its copies, one a CPU or thread.
    pub(crate) ids: Vec<u64>,
    /// As the user gave it or else made up from the attr.
    pub name: Untrusted,
}

impl Event {
    /// Whether its samples are of waits.
    pub(crate) fn is_of_waits(&self) -> bool {
        self.name.as_bytes() == OFF_CPU.as_bytes()
    }

    /// The attr of the same event with whole call chains, `len` bytes long.
    pub(crate) fn merged_attr(&self, endian: Endian, len: u32, is_joined: bool) -> Vec<u8> {
        let mut bytes = self.attr_bytes.clone();
        make_whole(&mut bytes, endian, is_joined);
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
    pub(crate) fn least_attr_len(&self, endian: Endian, is_joined: bool) -> u32 {
        let mut bytes = self.attr_bytes.clone();
        make_whole(&mut bytes, endian, is_joined);
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at.saturating_add(1));
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        ATTR_SIZES.into_iter().find(|&size| size >= used).unwrap_or(self.attr.size)
    }
}

/// Where an attr says how long it is.
const SIZE_AT: usize = 4;

/// The lengths that attrs have had, from the first with `sample_max_stack` on.
const ATTR_SIZES: [u32; 5] = [112, 120, 128, 136, 144];

/// Makes an attr one of an event whose samples have whole call chains: without the switches
/// for deferral, and without registers and stacks to walk; `is_joined` says that calls which the
/// CPU recorded are in the chains, too.
pub(crate) fn make_whole(attr_bytes: &mut [u8], endian: Endian, is_joined: bool) {
    let Ok(attr) = Attr::parse(attr_bytes, endian) else {
        return;
    };
    let mut cleared = AttrFlags::DEFER_CALLCHAIN | AttrFlags::DEFER_OUTPUT;
    let mut put = |at: usize, bytes: &[u8]| {
        let place = attr_bytes.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
        if let Some(place) = place {
            place.copy_from_slice(bytes);
        }
    };
    if is_to_walk(&attr) {
        cleared |= AttrFlags::EXCLUDE_CALLCHAIN_USER;
        let user = SampleType::REGS_USER | SampleType::STACK_USER;
        let fields = attr.format.sample_type.difference(user);
        put(Attr::SAMPLE_TYPE_AT, &endian.bytes_of_u64(fields.bits()));
        put(Attr::USER_REGISTERS_AT, &[0; 12]);
    }
    let branches = attr.format.branch_sample_type;
    if is_joined && branches.contains(BranchSampleType::CALL_STACK) {
        let others = branches.difference(BranchSampleType::CALL_STACK);
        put(Attr::BRANCH_SAMPLE_TYPE_AT, &endian.bytes_of_u64(others.bits()));
    }
    let flags = attr.format.flags.difference(cleared);
    put(Attr::FLAGS_AT, &endian.bytes_of_u64(Attr::flags_word(flags, endian)));
}

/// All events of a recording.
#[derive(Clone, Debug, Default)]
pub struct Events {
    events: Vec<Event>,
    by_id: HashMap<u64, usize>,
    /// Where records have the id of their event, if all events so far agree.
    place: Option<Result<IdPlace, record::Error>>,
    /// Whether an event receives deferred records.
    defer_output: bool,
    /// How many events have names of each width.
    widths: BTreeMap<usize, usize>,
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
        // All agree that agree with the first one.
        let first = self.events.first().map_or(attr.format, |first| first.attr.format);
        if !matches!(self.place, Some(Err(_))) {
            self.place = Some(IdPlace::of([first, attr.format]));
        }
        let name = Untrusted::from(event_name::of(&attr));
        count_width(&mut self.widths, &name);
        self.events.push(Event { attr_bytes, attr, ids, name });
        self.defer_output |= attr.format.flags.contains(AttrFlags::DEFER_OUTPUT);
        Ok(())
    }

    pub(crate) fn all(&self) -> &[Event] {
        &self.events
    }

    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Event> {
        self.events.get(index)
    }

    /// The layout of an event's records.
    pub(crate) fn format(&self, index: usize) -> EventFormat {
        self.get(index).map(|event| event.attr.format).unwrap_or_default()
    }

    /// How many characters the longest name has.
    #[must_use]
    pub fn name_width(&self) -> usize {
        self.widths.last_key_value().map_or(0, |(&width, _)| width)
    }

    /// Names the event that has this id.
    pub(crate) fn set_name(&mut self, id: u64, name: Untrusted) {
        if let Some(&index) = self.by_id.get(&id) {
            self.rename(index, name);
        }
    }

    /// Names the event at `index`, if `id` is its first one.
    pub(crate) fn set_name_at(&mut self, index: usize, id: Option<u64>, name: Untrusted) {
        if self.get(index).is_some_and(|event| event.ids.first().copied() == id) {
            self.rename(index, name);
        }
    }

    fn rename(&mut self, index: usize, name: Untrusted) {
        let Some(event) = self.events.get_mut(index) else {
            return;
        };
        let width = event.name.escaped().width();
        if let Some(count) = self.widths.get_mut(&width) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.widths.remove(&width);
            }
        }
        count_width(&mut self.widths, &name);
        event.name = name;
    }

    /// The layout of deferred records.
    pub(crate) fn deferred_layout(&self) -> DeferredLayout {
        let flags = if self.defer_output { AttrFlags::DEFER_OUTPUT } else { AttrFlags::empty() };
        DeferredLayout::of([flags])
    }

    /// Finds the event that wrote `record`.
    ///
    /// # Errors
    ///
    /// The outer one ends the reading: no record can be told from another.
    pub(crate) fn event_of(&self, record: &Record<'_>) -> Result<Result<usize, Fault>, PerfError> {
        let place = self.place.ok_or(PerfError::NoEvents)?.map_err(PerfError::MixedEvents)?;
        // Records that a tool wrote in the kernel's name have the id 0.
        Ok(match place.id_of(record) {
            None | Some(0) => Ok(0),
            // One event, one layout: the id tells nothing.
            Some(_) if self.events.len() == 1 => Ok(0),
            Some(id) => self.by_id.get(&id).copied().ok_or(Fault::UnknownEvent(id)),
        })
    }
}

fn count_width(widths: &mut BTreeMap<usize, usize>, name: &Untrusted) {
    let count = widths.entry(name.escaped().width()).or_default();
    *count = count.saturating_add(1);
}

/// Whether samples of an event have what it takes to walk their stacks.
pub(crate) fn is_to_walk(attr: &Attr) -> bool {
    let needed = SampleType::REGS_USER | SampleType::STACK_USER | SampleType::CALLCHAIN;
    attr.format.sample_type.contains(needed)
}
