//! The profiles of OpenTelemetry, as version 1.10 of its protocol has them: `v1development`, which
//! may still change.

use std::collections::HashMap;
use std::io::{self, Write};

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesDictionary,
    ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use crate::collected::call_tree::{Frame, FrameKind, NOT_KEPT, Node};
use crate::collected::time_line::Thread;
use crate::collected::view::View;
use crate::recording::code_names::Language;
use crate::walks::found_by::FoundBy;

/// About how many bytes a stack or a sample takes besides its frames.
const FIXED: usize = 128;

/// What is sent: one profile. Its stacks, each with all of its frames, take about `room` bytes at
/// most; the others are counted apart.
pub(crate) fn request(view: &View<'_>, room: usize) -> ExportProfilesServiceRequest {
    let View { labels, time_line, ledger, .. } = *view;
    let mut dictionary = Dictionary::new(room);
    let samples = samples(&mut dictionary, view);
    let ledger = ledger.classes().map(|(class, reason, count)| {
        let key = match reason {
            Some(reason) => format!("unwind.ledger.{class}.{reason}"),
            None => format!("unwind.ledger.{class}"),
        };
        dictionary.attribute(&key, Value::IntValue(i64::try_from(count).unwrap_or(i64::MAX)))
    });
    let attribute_indices = ledger.collect();
    let profile = Profile {
        sample_type: Some(dictionary.value_type("samples", "count")),
        samples,
        time_unix_nano: labels.since_epoch(time_line.start()).unwrap_or(0),
        duration_nano: time_line.duration(),
        profile_id: labels.id(view.ledger, time_line).to_vec(),
        attribute_indices,
        ..Profile::default()
    };
    let scope = InstrumentationScope {
        name: "unwind".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope = ScopeProfiles { scope: Some(scope), profiles: vec![profile], ..Default::default() };
    let of_resource =
        [("host.name", Some(&labels.host)), ("service.version", labels.release.as_ref())];
    let of_resource = of_resource.into_iter().filter_map(|(key, text)| {
        let value = Value::StringValue(text.filter(|text| !text.is_empty())?.clone());
        let value = Some(AnyValue { value: Some(value) });
        Some(KeyValue { key: key.to_owned(), value, ..KeyValue::default() })
    });
    let resource = Resource { attributes: of_resource.collect(), ..Resource::default() };
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(resource),
            scope_profiles: vec![scope],
            ..ResourceProfiles::default()
        }],
        dictionary: Some(dictionary.tables),
    }
}

/// Writes what is sent.
///
/// # Errors
///
/// Those of `out`.
pub(super) fn write(out: &mut impl Write, view: &View<'_>, room: usize) -> io::Result<()> {
    out.write_all(&request(view, room).encode_to_vec())
}

/// How often each thread had each stack.
fn samples(dictionary: &mut Dictionary, view: &View<'_>) -> Vec<Sample> {
    let View { profile, time_line, .. } = *view;
    let mut counts: HashMap<(Option<usize>, usize), u64> = HashMap::new();
    let mut rest: HashMap<usize, u64> = profile.ends().map(|(end, node)| (end, node.own)).collect();
    for (cell, count) in time_line.cells() {
        // Others are in the rest.
        let Some(end) = cell.stack.end() else { continue };
        let sum = counts.entry((Some(cell.thread()), end)).or_default();
        *sum = sum.saturating_add(count.into());
        if let Some(rest) = rest.get_mut(&end) {
            *rest = rest.saturating_sub(count.into());
        }
    }
    counts.extend(rest.into_iter().map(|(end, count)| ((None, end), count)));
    let mut counts: Vec<_> = counts.into_iter().filter(|&(_, count)| count > 0).collect();
    counts.sort_unstable();
    let mut threads: HashMap<usize, Vec<i32>> = HashMap::new();
    let mut stacks: HashMap<usize, Option<i32>> = HashMap::new();
    let mut without_room = 0_u64;
    let mut samples = Vec::new();
    for ((thread, end), count) in counts {
        let frames = profile.nodes_to(end).filter_map(|node| {
            let frame = profile.frames.get(node.frame)?;
            Some((node, frame))
        });
        let stack = *stacks.entry(end).or_insert_with(|| dictionary.stack(frames));
        let Some(stack_index) = stack.filter(|_| dictionary.take(FIXED)) else {
            without_room = without_room.saturating_add(count);
            continue;
        };
        let of_thread = thread.and_then(|thread| Some((thread, time_line.threads.get(thread)?)));
        let attribute_indices = of_thread.map(|(at, thread)| {
            threads.entry(at).or_insert_with(|| dictionary.thread(thread)).clone()
        });
        samples.push(Sample {
            stack_index,
            attribute_indices: attribute_indices.unwrap_or_default(),
            values: vec![i64::try_from(count).unwrap_or(i64::MAX)],
            ..Sample::default()
        });
    }
    if without_room > 0 {
        let values = vec![i64::try_from(without_room).unwrap_or(i64::MAX)];
        let stack_index = dictionary.stack_without_room();
        samples.push(Sample { stack_index, values, ..Sample::default() });
    }
    samples
}

/// What samples refer to by its place. The first of each table is empty.
struct Dictionary {
    tables: ProfilesDictionary,
    texts: HashMap<String, i32>,
    mappings: HashMap<i32, i32>,
    /// By the place of the frame in the profile, and how it was found.
    locations: HashMap<(usize, usize), i32>,
    functions: HashMap<(i32, i32), i32>,
    attributes: HashMap<(i32, String), i32>,
    /// About how many bytes more it may take.
    room: usize,
}

/// Adds to a table, and returns where that is.
fn push<T>(table: &mut Vec<T>, entry: T) -> i32 {
    let place = i32::try_from(table.len()).unwrap_or(i32::MAX);
    table.push(entry);
    place
}

impl Dictionary {
    fn new(room: usize) -> Self {
        let tables = ProfilesDictionary {
            mapping_table: vec![Mapping::default()],
            location_table: vec![Location::default()],
            function_table: vec![Function::default()],
            link_table: vec![Link::default()],
            string_table: vec![String::new()],
            attribute_table: vec![KeyValueAndUnit::default()],
            stack_table: vec![Stack::default()],
        };
        Self {
            tables,
            texts: HashMap::from([(String::new(), 0)]),
            mappings: HashMap::new(),
            locations: HashMap::new(),
            functions: HashMap::new(),
            attributes: HashMap::new(),
            room,
        }
    }

    /// Whether there is room for this many bytes; if so, it is taken.
    fn take(&mut self, bytes: usize) -> bool {
        let rest = self.room.checked_sub(bytes);
        self.room = rest.unwrap_or(self.room);
        rest.is_some()
    }

    fn text(&mut self, text: &str) -> i32 {
        if let Some(&place) = self.texts.get(text) {
            return place;
        }
        let place = push(&mut self.tables.string_table, text.to_owned());
        self.texts.insert(text.to_owned(), place);
        place
    }

    fn value_type(&mut self, what: &str, unit: &str) -> ValueType {
        ValueType { type_strindex: self.text(what), unit_strindex: self.text(unit) }
    }

    fn attribute(&mut self, key: &str, value: Value) -> i32 {
        let key_strindex = self.text(key);
        let known = (key_strindex, format!("{value:?}"));
        if let Some(&place) = self.attributes.get(&known) {
            return place;
        }
        let value = Some(AnyValue { value: Some(value) });
        let entry = KeyValueAndUnit { key_strindex, value, ..KeyValueAndUnit::default() };
        let place = push(&mut self.tables.attribute_table, entry);
        self.attributes.insert(known, place);
        place
    }

    fn thread(&mut self, thread: &Thread) -> Vec<i32> {
        vec![
            self.attribute("process.pid", Value::IntValue(thread.process.into())),
            self.attribute("thread.id", Value::IntValue(thread.thread.into())),
            self.attribute("thread.name", Value::StringValue(thread.name.clone())),
        ]
    }

    /// The stack of these frames, the innermost first, if there is room for it.
    fn stack<'f>(&mut self, frames: impl Iterator<Item = (&'f Node, &'f Frame)>) -> Option<i32> {
        let mut location_indices = Vec::new();
        for (node, frame) in frames {
            location_indices.push(self.location(node, frame));
        }
        let bytes = location_indices.len().saturating_mul(size_of::<i32>());
        self.take(bytes.saturating_add(FIXED))
            .then(|| push(&mut self.tables.stack_table, Stack { location_indices }))
    }

    fn stack_without_room(&mut self) -> i32 {
        let function = self.function(NOT_KEPT, None);
        let lines = vec![Line { function_index: function, ..Line::default() }];
        let location = Location { lines, ..Location::default() };
        let location = push(&mut self.tables.location_table, location);
        push(&mut self.tables.stack_table, Stack { location_indices: vec![location] })
    }

    fn function(&mut self, name: &str, file: Option<&str>) -> i32 {
        let name_strindex = self.text(name);
        let file = self.text(file.unwrap_or_default());
        let table = &mut self.tables.function_table;
        *self
            .functions
            .entry((name_strindex, file))
            .or_insert_with(|| push(table, Function { name_strindex, ..Function::default() }))
    }

    fn location(&mut self, node: &Node, frame: &Frame) -> i32 {
        let found = node.found.shown();
        if let Some(&place) = self.locations.get(&(node.frame, found)) {
            return place;
        }
        let function_index = self.function(&frame.name, frame.file.as_deref());
        let mapping_index = frame.file.as_deref().map_or(0, |file| self.mapping(file));
        let kind = match frame.kind {
            FrameKind::User => Some("native"),
            FrameKind::Kernel => Some("kernel"),
            FrameKind::Interpreted(Language::Python) => Some("cpython"),
            FrameKind::Interpreted(_) => Some("v8js"),
            FrameKind::Note => None,
        };
        let kind = kind.map(|kind| Value::StringValue(kind.to_owned()));
        let kind = kind.map(|kind| self.attribute("profile.frame.type", kind));
        let word = FoundBy::ALL.get(found).map_or("none", |found| found.words().0);
        let word = kind.map(|_| self.attribute("unwind.found", Value::StringValue(word.into())));
        let location = Location {
            mapping_index,
            lines: vec![Line { function_index, ..Line::default() }],
            attribute_indices: kind.into_iter().chain(word).collect(),
            ..Location::default()
        };
        let place = push(&mut self.tables.location_table, location);
        self.locations.insert((node.frame, found), place);
        place
    }

    fn mapping(&mut self, file: &str) -> i32 {
        let filename_strindex = self.text(file);
        let table = &mut self.tables.mapping_table;
        *self
            .mappings
            .entry(filename_strindex)
            .or_insert_with(|| push(table, Mapping { filename_strindex, ..Mapping::default() }))
    }
}
