//! The functions that samples of a guest are in: a section of the file. They were found in the guest's memory, which
//! is gone when the file is read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unwind_target::Untrusted;

use crate::recording::error::PerfError;
use crate::recording::header::Feature;
use crate::recording::reader::PerfReader;

/// The feature section. perf leaves out those that it does not know.
pub(crate) const GUEST_NAMES: Feature = Feature(253);

/// The version of the section: it rises when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// The most objects, and functions of each, of a recording: a guest may make them up.
const OBJECTS_LIMIT: usize = 1 << 12;
const FUNCTIONS_LIMIT: usize = 1 << 16;
/// The most bytes that all have together, and what each counts besides the bytes of its name.
const BYTES_LIMIT: usize = 64 << 20;
const EACH: usize = 64;

/// An object of a guest by what it is called and, if it has one, its build id.
pub(crate) type ObjectKey = (Untrusted, Option<Box<[u8]>>);

/// The objects of a guest that have samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestNames {
    objects: HashMap<ObjectKey, Arc<ObjectNames>>,
    /// How many bytes these have.
    bytes: usize,
}

/// The functions of an object: their starts and ends, by the addresses that it was linked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectNames {
    /// How far these addresses are above the places in the file, wrapping.
    shift: u64,
    functions: BTreeMap<u64, (u64, Untrusted)>,
}

/// The section, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Section {
    schema: u32,
    objects: Vec<Object>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Object {
    name: String,
    build_id: Option<Box<[u8]>>,
    shift: u64,
    /// Start, end, name.
    functions: Vec<(u64, u64, String)>,
}

impl GuestNames {
    /// What a recording says; nothing if it has no such section, or one that is of no use.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if the section cannot be where the file says.
    pub(crate) fn read(reader: &mut PerfReader) -> Result<Self, PerfError> {
        let Some(place) = reader.place_of(GUEST_NAMES)? else { return Ok(Self::default()) };
        let section = reader.section("names of a guest's functions", place)?;
        Ok(Self::of_section(&section))
    }

    /// What the bytes of the section say; nothing if they are none.
    #[must_use]
    pub fn of_section(section: &[u8]) -> Self {
        let told: Option<Section> = serde_json::from_slice(section).ok();
        let told = told.filter(|told| told.schema == SCHEMA);
        let mut names = Self::default();
        for object in told.into_iter().flat_map(|told| told.objects) {
            let key = (Untrusted::from(object.name), object.build_id);
            names.add_object(&key, object.shift);
            for (start, end, name) in object.functions {
                names.add_function(&key, (start, end), &Untrusted::from(name));
            }
        }
        names
    }

    /// The bytes of the section.
    pub(crate) fn section(&self) -> serde_json::Result<Vec<u8>> {
        let objects = self.objects.iter().map(|((name, build_id), names)| {
            let function = |(start, (end, name)): (&u64, &(u64, Untrusted))| {
                (*start, *end, name.escaped().to_string())
            };
            Object {
                name: name.escaped().to_string(),
                build_id: build_id.clone(),
                shift: names.shift,
                functions: names.functions.iter().map(function).collect(),
            }
        });
        serde_json::to_vec(&Section { schema: SCHEMA, objects: objects.collect() })
    }

    /// The functions of an object.
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&Arc<ObjectNames>> {
        self.objects.get(key)
    }

    /// Takes note of an object, unless that was done.
    pub(crate) fn add_object(&mut self, key: &ObjectKey, shift: u64) {
        if self.objects.contains_key(key) || self.objects.len() >= OBJECTS_LIMIT {
            return;
        }
        if self.take(&key.0) {
            let names = ObjectNames { shift, functions: BTreeMap::new() };
            self.objects.insert(key.clone(), names.into());
        }
    }

    /// Takes the bytes of a name; says whether there was room for them.
    fn take(&mut self, name: &Untrusted) -> bool {
        let bytes = self.bytes.saturating_add(name.as_bytes().len()).saturating_add(EACH);
        let is_left = bytes <= BYTES_LIMIT;
        if is_left {
            self.bytes = bytes;
        }
        is_left
    }

    /// Takes note of a function of an object that was taken note of, unless that was done.
    pub(crate) fn add_function(
        &mut self,
        key: &ObjectKey,
        (start, end): (u64, u64),
        name: &Untrusted,
    ) {
        let is_new = self.objects.get(key).is_some_and(|names| {
            !names.functions.contains_key(&start) && names.functions.len() < FUNCTIONS_LIMIT
        });
        if is_new
            && self.take(name)
            && let Some(names) = self.objects.get_mut(key)
        {
            Arc::make_mut(names).functions.insert(start, (end, name.clone()));
        }
    }
}

impl ObjectNames {
    /// How far the addresses that it was linked for are above the places in the file, wrapping.
    pub(crate) const fn shift(&self) -> u64 {
        self.shift
    }

    /// The function that holds a link-time address: where it begins and ends, and what it is called.
    pub(crate) fn function(&self, addr: u64) -> Option<(u64, u64, &Untrusted)> {
        let (start, (end, name)) = self.functions.range(..=addr).next_back()?;
        (addr < *end).then_some((*start, *end, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_guest_are_read_as_they_were_written() {
        let mut names = GuestNames::default();
        let with_id = (Untrusted::from("libc.so.6"), Some([7; 20].into()));
        let without = (Untrusted::from("init"), None);
        names.add_object(&with_id, 0x1000);
        names.add_object(&without, 0);
        names.add_object(&with_id, 0);
        names.add_function(&with_id, (0x2000, 0x2010), &Untrusted::from("read"));
        names.add_function(&with_id, (0x2000, 0x2020), &Untrusted::from("other"));
        let read = GuestNames::of_section(&names.section().unwrap());
        assert_eq!(read, names);
        let object = read.get(&with_id).unwrap();
        assert_eq!(object.shift(), 0x1000);
        let read = Untrusted::from("read");
        assert_eq!(object.function(0x200f), Some((0x2000, 0x2010, &read)));
        assert_eq!((object.function(0x2010), object.function(0x1fff)), (None, None));
    }

    #[test]
    fn names_that_a_guest_makes_up_take_bounded_memory() {
        let mut names = GuestNames::default();
        let name = Untrusted::from("x".repeat(512));
        for object in 0..4_u64 {
            let key = (Untrusted::from(object.to_string()), None);
            names.add_object(&key, 0);
            for start in 0..1 << 16 {
                names.add_function(&key, (start, start + 1), &name);
            }
        }
        let functions = names.objects.values().map(|names| names.functions.len()).sum::<usize>();
        assert!((100_000..120_000).contains(&functions), "{functions}");
        assert!(names.section().unwrap().len() < 2 * BYTES_LIMIT);
    }

    #[test]
    fn a_section_that_is_none_has_no_names() {
        for section in [&b""[..], b"[]", b"{\"schema\":2,\"objects\":[]}"] {
            assert_eq!(GuestNames::of_section(section), GuestNames::default());
        }
    }
}
