//! The format of pprof: `profile.proto`, compressed by gzip.
//!
//! Messages have the fields that are written here, with the numbers of the format.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use crate::collected::call_tree::{CallTree as Stacks, FrameKind};
use crate::walks::found_by::FoundBy;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
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

/// A mapped file, of which nothing is to be looked up any more.
#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
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

/// The files, the main one first: pprof takes the first for the program. It is that in which most
/// stacks begin.
fn files(stacks: &Stacks) -> Vec<&str> {
    let file = |frame: usize| {
        let frame = stacks.frames.get(frame).filter(|frame| frame.kind == FrameKind::User)?;
        frame.file.as_deref()
    };
    let mut begun: HashMap<&str, u64> = HashMap::new();
    for (at, node) in stacks.ends() {
        if let Some(file) = stacks.stack(at).filter_map(|(frame, _)| file(frame)).last() {
            let count = begun.entry(file).or_default();
            *count = count.saturating_add(node.own);
        }
    }
    let named = stacks.frames.iter().filter_map(|frame| frame.file.as_deref());
    let mut files: Vec<&str> = named.collect();
    files.sort_by_key(|file| (Reverse(begun.get(file).copied()), *file));
    files.dedup();
    files
}

/// Writes the file, with these comments.
pub(crate) fn write<'c>(
    out: &mut impl Write,
    stacks: &Stacks,
    comments: impl Iterator<Item = &'c str>,
) -> io::Result<()> {
    let mut texts = Texts::new();
    let value = ValueType { kind: texts.place("samples"), unit: texts.place("count") };
    let functions = stacks
        .frames
        .iter()
        .enumerate()
        .map(|(at, frame)| Function { id: id(at), name: texts.place(&frame.name) });
    let function = functions.collect();
    let files = files(stacks);
    let mappings = files.iter().enumerate().map(|(at, file)| Mapping {
        id: id(at),
        filename: texts.place(file),
        has_functions: true,
    });
    let mapping = mappings.collect();
    let ids: HashMap<&str, u64> =
        files.iter().enumerate().map(|(at, &file)| (file, id(at))).collect();
    // A frame has no place for how it was found; a stack has labels.
    let key = texts.place("found");
    let labels = FoundBy::ALL.map(|found| Label { key, text: texts.place(found.words().0) });
    let comment = comments.map(|comment| texts.place(comment)).collect();
    let locations = stacks.frames.iter().enumerate().map(|(at, frame)| Location {
        id: id(at),
        // Zero is none.
        mapping_id: frame.file.as_deref().and_then(|file| ids.get(file)).copied().unwrap_or(0),
        line: vec![Line { function_id: id(at) }],
    });
    let profile = Profile {
        sample_type: vec![value],
        sample: Vec::new(),
        mapping,
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
