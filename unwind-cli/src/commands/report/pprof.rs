//! The format of pprof: `profile.proto`, compressed by gzip.
//!
//! Messages have the fields that are written here, with the numbers of the format.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use crate::commands::report::found_by::FoundBy;
use crate::commands::report::profile::Profile as Stacks;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// The texts of a profile, the first of which is empty.
#[derive(Debug)]
struct Texts {
    texts: Vec<String>,
    places: HashMap<String, i64>,
}

impl Texts {
    fn new() -> Self {
        Self { texts: vec![String::new()], places: HashMap::from([(String::new(), 0)]) }
    }

    fn place(&mut self, text: &str) -> i64 {
        if let Some(&place) = self.places.get(text) {
            return place;
        }
        let place = i64::try_from(self.texts.len()).unwrap_or(i64::MAX);
        self.texts.push(text.to_owned());
        self.places.insert(text.to_owned(), place);
        place
    }
}

/// The id of the function and of the location of a frame: ids begin with one.
fn id(frame: usize) -> u64 {
    u64::try_from(frame).unwrap_or(u64::MAX).saturating_add(1)
}

/// Writes the file, with these comments.
pub(crate) fn write<'c>(
    out: &mut impl Write,
    stacks: &Stacks,
    comments: impl Iterator<Item = &'c str>,
) -> io::Result<()> {
    let mut texts = Texts::new();
    let value = ValueType { kind: texts.place("samples"), unit: texts.place("count") };
    let functions = stacks.frames.iter().enumerate().map(|(at, frame)| Function {
        id: id(at),
        name: texts.place(&frame.name),
        filename: texts.place(frame.file.as_deref().unwrap_or_default()),
    });
    let function = functions.collect();
    // A frame has no place for how it was found; a stack has labels.
    let key = texts.place("found");
    let labels = FoundBy::ALL.map(|found| Label { key, text: texts.place(found.words().0) });
    let comment = comments.map(|comment| texts.place(comment)).collect();
    let locations = (0..stacks.frames.len())
        .map(|at| Location { id: id(at), line: vec![Line { function_id: id(at) }] });
    let profile = Profile {
        sample_type: vec![value],
        sample: Vec::new(),
        location: locations.collect(),
        function,
        string_table: texts.texts,
        comment,
    };
    let mut out = GzEncoder::new(out, Compression::default());
    out.write_all(&profile.encode_to_vec())?;
    // Messages one after the other are one, with the samples of all: no two stacks need be in
    // memory at a time.
    for (at, node) in stacks.ends() {
        let mut ways: Vec<_> = stacks.nodes_to(at).map(|node| node.found.shown()).collect();
        ways.sort_unstable();
        ways.dedup();
        let sample = Sample {
            location_id: stacks.stack(at).map(|(frame, _)| id(frame)).collect(),
            value: vec![i64::try_from(node.own).unwrap_or(i64::MAX)],
            label: ways.into_iter().filter_map(|way| labels.get(way).copied()).collect(),
        };
        let part = Profile { sample: vec![sample], ..Profile::default() };
        out.write_all(&part.encode_to_vec())?;
    }
    out.finish().map(drop)
}
