//! Sections that tools wrote: those in `testdata/sframe`, and those in a
//! directory of the same layout that the environment variable
//! `SFRAME_REFERENCE` names.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// A section that some tool wrote, and what goes with it.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// Path without `.sframe.bin`.
    pub stem: PathBuf,
    /// The section.
    pub bytes: Vec<u8>,
    /// Where it is linked, 0 in a relocatable object.
    pub addr: u64,
}

impl Fixture {
    /// The text of the file beside the section with this ending.
    #[must_use]
    pub fn text(&self, ending: &str) -> Option<String> {
        fs::read_to_string(with_ending(&self.stem, ending)).ok()
    }

    /// The path, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.stem.display().to_string()
    }

    /// Whether the path has a directory of this name.
    #[must_use]
    pub fn is_in(&self, directory: &str) -> bool {
        self.stem.components().any(|part| part.as_os_str() == directory)
    }
}

/// Every well-formed section.
///
/// # Panics
///
/// If there are too few to be all.
#[must_use]
pub fn sections() -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for stem in stems().into_iter().filter(|stem| !stem.components().any(is_malformed)) {
        let addr = [".sframe.vaddr", ".vaddr"]
            .iter()
            .find_map(|ending| fs::read_to_string(with_ending(&stem, ending)).ok())
            .map_or(0, |text| {
                u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap()
            });
        let bytes = fs::read(with_ending(&stem, ".sframe.bin")).unwrap();
        fixtures.push(Fixture { stem, bytes, addr });
    }
    assert!(fixtures.len() >= 30, "only {} fixtures found", fixtures.len());
    fixtures
}

/// Every damaged section.
///
/// # Panics
///
/// If there are too few to be all.
#[must_use]
pub fn malformed_sections() -> Vec<Fixture> {
    let fixtures: Vec<_> = stems()
        .into_iter()
        .filter(|stem| stem.components().any(is_malformed))
        .map(|stem| {
            let bytes = fs::read(with_ending(&stem, ".sframe.bin")).unwrap();
            Fixture { stem, bytes, addr: 0 }
        })
        .collect();
    assert!(fixtures.len() >= 44, "only {} fixtures found", fixtures.len());
    fixtures
}

fn is_malformed(part: std::path::Component<'_>) -> bool {
    part.as_os_str() == "malformed"
}

fn stems() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("sframe");
    let given = env::var_os("SFRAME_REFERENCE").map(PathBuf::from);
    let mut stems = Vec::new();
    for root in [Some(own), given].into_iter().flatten() {
        collect(&root, &mut stems);
    }
    stems.sort();
    stems
}

fn collect(directory: &Path, stems: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, stems);
        } else if let Some(stem) = path.to_str().unwrap().strip_suffix(".sframe.bin") {
            stems.push(stem.into());
        }
    }
}

fn with_ending(stem: &Path, ending: &str) -> PathBuf {
    let mut path = stem.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

/// Every address of these ranges (start and size), and some beside them, in
/// order. Of a very long range, the beginning.
#[must_use]
pub fn addresses(ranges: impl IntoIterator<Item = (u64, u32)>) -> Vec<u64> {
    let mut addresses = Vec::new();
    for (start, size) in ranges {
        let len = u64::from(size).min(0x2000);
        addresses.extend((0..len + 24).map(|offset| start.wrapping_add(offset)));
        addresses.extend((1..24).map(|offset| start.wrapping_sub(offset)));
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
