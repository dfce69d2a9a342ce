//! Object files that compilers have registered in recorded processes: a section of the file. They were in the memory
//! of these processes, which is gone when the file is read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::recording::error::PerfError;
use crate::recording::header::Feature;
use crate::recording::reader::PerfReader;

/// The feature section. perf leaves out those that it does not know.
pub(crate) const REGISTERED_CODE: Feature = Feature(252);

/// The version of the section: it rises when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// What a recording has at most: as many objects as a recorder keeps changes, and twice as many places of them in these.
const MAX_OBJECTS: usize = 1 << 17;
const MAX_PLACES: usize = 1 << 18;

/// The fewest bytes of an object: its header.
const LEAST: usize = 64;

/// The objects of a recording, and which process had which of them when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisteredCode {
    /// The bytes of each.
    pub(crate) objects: Vec<Arc<Vec<u8>>>,
    /// In the order in which they were seen.
    pub(crate) changes: Vec<Change>,
}

/// What has changed in a process by the time of a sample; objects by their places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) process: u32,
    pub(crate) time: u64,
    pub(crate) added: Vec<usize>,
    pub(crate) gone: Vec<usize>,
}

/// The head of the section, as JSON after its length in eight bytes. The objects follow it, one after the other.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    schema: u32,
    /// How many bytes each object has.
    objects: Vec<u64>,
    changes: Vec<Change>,
}

impl RegisteredCode {
    /// What a recording says; nothing if it has no such section, or one that is of no use.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if the section cannot be where the file says.
    pub(crate) fn read(reader: &mut PerfReader) -> Result<Self, PerfError> {
        let Some(place) = reader.place_of(REGISTERED_CODE)? else { return Ok(Self::default()) };
        let section = reader.section("code that compilers have registered", place)?;
        Ok(Self::of_section(&section))
    }

    /// What the bytes of the section say; nothing if they are none.
    #[must_use]
    pub fn of_section(section: &[u8]) -> Self {
        Self::parse(section).unwrap_or_default()
    }

    fn parse(section: &[u8]) -> Option<Self> {
        let (len, rest) = section.split_first_chunk()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (head, mut rest) = rest.split_at_checked(len)?;
        let head: Head = serde_json::from_slice(head).ok()?;
        let count = |change: &Change| change.added.len().saturating_add(change.gone.len());
        let places = head.changes.iter().map(count).fold(0, usize::saturating_add);
        if head.objects.len() > MAX_OBJECTS || places > MAX_PLACES {
            return None;
        }
        let mut objects = Vec::new();
        for len in head.objects {
            let len = usize::try_from(len).ok().filter(|len| *len >= LEAST)?;
            let (object, after) = rest.split_at_checked(len)?;
            objects.push(Arc::new(object.to_vec()));
            rest = after;
        }
        (head.schema == SCHEMA).then_some(Self { objects, changes: head.changes })
    }

    /// The bytes of the section; none if nothing is told.
    pub(crate) fn section(&self) -> serde_json::Result<Vec<u8>> {
        if self.objects.is_empty() {
            return Ok(Vec::new());
        }
        let len = |bytes: &[u8]| u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let objects = self.objects.iter().map(|object| len(object)).collect();
        let head = Head { schema: SCHEMA, objects, changes: self.changes.clone() };
        let head = serde_json::to_vec(&head)?;
        let mut section = len(&head).to_le_bytes().to_vec();
        section.extend(head);
        self.objects.iter().for_each(|object| section.extend_from_slice(object));
        Ok(section)
    }

    /// The bytes of all objects together.
    pub(crate) fn byte_len(&self) -> usize {
        self.objects.iter().fold(0, |sum, object| sum.saturating_add(object.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m1_registered_code_is_read_as_it_was_written_and_a_section_that_is_cut_tells_nothing() {
        let code = RegisteredCode {
            objects: vec![Arc::new(vec![1; LEAST]), Arc::new(vec![2; LEAST + 9])],
            changes: vec![Change { process: 7, time: 9, added: vec![0, 1], gone: vec![] }],
        };
        let section = code.section().unwrap();
        assert_eq!(RegisteredCode::of_section(&section), code);
        for cut in 0..section.len() {
            assert_eq!(RegisteredCode::of_section(&section[..cut]), RegisteredCode::default());
        }
        let none = RegisteredCode::default();
        assert!(none.section().unwrap().is_empty());
        // Lengths that no file has.
        let mut long = section.clone();
        long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(RegisteredCode::of_section(&long), none);
        let of_head = |head: &str| {
            let len = u64::try_from(head.len()).unwrap().to_le_bytes();
            RegisteredCode::of_section(&[&len[..], head.as_bytes()].concat())
        };
        let long = r#"{"schema":1,"objects":[18446744073709551615],"changes":[]}"#;
        assert_eq!(of_head(long), none);
        // More objects, and more places of them, than a recorder writes.
        let zeroes = |count| vec!["0"; count].join(",");
        assert_eq!(
            of_head(&format!(r#"{{"schema":1,"objects":[{}],"changes":[]}}"#, zeroes(1))),
            none
        );
        for (count, is_kept) in [(MAX_PLACES, true), (MAX_PLACES + 1, false)] {
            let change =
                format!(r#"{{"process":1,"time":1,"added":[{}],"gone":[]}}"#, zeroes(count));
            let read = of_head(&format!(r#"{{"schema":1,"objects":[],"changes":[{change}]}}"#));
            assert_eq!(read.changes.len(), usize::from(is_kept), "{count}");
        }
    }
}
