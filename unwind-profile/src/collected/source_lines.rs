//! The lines of the source at which functions were sampled themselves, and their text.
//!
//! Paths are those of the compiler, so the maker of a program chooses which files are named.
//! Only lines around samples are shown.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use unwind_target::files::{regular_file, source_file};
use unwind_target::lines::place::{Place, Places};
use unwind_target::untrusted::escaped;

use crate::collected::call_tree::{Frame, MAX_LABEL};
use crate::collected::debug_info::{DebugInfo, DwarfFile};
use crate::collected::line_samples::{FileSamples, LineSamples};
use crate::mapped::names::function_name;

/// For how many files of a recording DWARF is read, how many addresses of each are asked for, and
/// how long the reading of another file is begun.
const MAX_FILES: usize = 64;
const MAX_ADDRS: usize = 8 << 10;
const TIME: Duration = Duration::from_secs(20);

/// How many lines stand around a sampled one, how many characters of a line are shown, and how many bytes
/// of all lines.
const AROUND: u32 = 3;
const MAX_LINE: usize = 240;
const MAX_TEXT: usize = 8 << 20;

/// Samples of a function at a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceLine {
    /// The place of the function's frame in the profile.
    pub(crate) frame: usize,
    /// The place of the source in [`SourceLines::sources`].
    pub(crate) source: usize,
    pub(crate) line: u32,
    pub(crate) count: u64,
    /// The function that was inlined there, to be shown as it is; empty if there is none.
    pub(crate) inlined: String,
}

/// A file of the source. Its texts may be shown as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) path: String,
    /// Lines around those with samples, if it can be read.
    pub(crate) text: BTreeMap<u32, String>,
    /// Whether it has been changed since the program was made.
    pub(crate) is_newer: bool,
}

/// The lines of a recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceLines {
    pub(crate) sources: Vec<Source>,
    /// By frame, each with the line with most samples first.
    pub(crate) lines: Vec<SourceLine>,
    /// Samples of functions whose line is not known.
    pub(crate) without_line: u64,
    /// What could not be read, a line each.
    pub(crate) problems: Vec<String>,
}

/// A source that was named: by its path, and when the newest program was made of it.
#[derive(Debug, Default)]
struct Named {
    places: HashMap<String, usize>,
    made: Vec<Option<SystemTime>>,
    paths: Vec<String>,
}

impl Named {
    fn place(&mut self, path: &str, made: Option<SystemTime>) -> usize {
        if let Some(&place) = self.places.get(path) {
            return place;
        }
        let place = self.paths.len();
        self.places.insert(path.to_owned(), place);
        self.paths.push(path.to_owned());
        self.made.push(made);
        place
    }
}

/// What tells lines apart: frame, source, line, and the name of what was inlined there.
type Key = (usize, usize, u32, String);

impl SourceLines {
    /// Looks up the lines of samples. The text of sources is read if `with_text`.
    ///
    /// `frames` are those of the profile: a function that was inlined is named where the samples
    /// are those of another one.
    pub(crate) fn find(
        samples: LineSamples,
        frames: &[Frame],
        info: &DebugInfo,
        with_text: bool,
    ) -> Self {
        let mut found = Self { without_line: samples.left_out, ..Self::default() };
        let (mut named, mut counts) = (Named::default(), HashMap::<Key, u64>::new());
        let end = Instant::now().checked_add(TIME);
        for (at, of_file) in samples.into_files().into_iter().enumerate() {
            let is_late = at >= MAX_FILES || end.is_some_and(|end| Instant::now() > end);
            let asked = (!is_late).then(|| places(&of_file, info)).flatten();
            let Some(Found { made, places, problem }) = asked else {
                found.without_line = found.without_line.saturating_add(of_file.samples());
                continue;
            };
            if let Some(problem) = problem {
                found.problems.push(format!("{}: lines: {problem}", of_file.file.name.escaped()));
            }
            for ((addr, frame), count) in of_file.counts {
                let key = places.get(&addr).and_then(|places| {
                    let (innermost, path, line) = line_of(places)?;
                    let is_inlined = |name: &String| {
                        places.len() > 1 && frames.get(frame).is_none_or(|own| own.name != *name)
                    };
                    let inlined = Some(inlined_name(innermost)).filter(is_inlined);
                    let inlined = inlined.unwrap_or_default();
                    Some((frame, named.place(path, made), line, inlined))
                });
                let sum = match key {
                    Some(key) => counts.entry(key).or_default(),
                    None => &mut found.without_line,
                };
                *sum = sum.saturating_add(count);
            }
        }
        let lines = counts.into_iter().map(|((frame, source, line, inlined), count)| SourceLine {
            frame,
            source,
            line,
            count,
            inlined,
        });
        found.lines = lines.collect();
        found.lines.sort_by(|a, b| {
            let key = |line: &SourceLine| (line.frame, std::cmp::Reverse(line.count));
            let place = |line: &SourceLine| (line.source, line.line);
            key(a).cmp(&key(b)).then(place(a).cmp(&place(b))).then(a.inlined.cmp(&b.inlined))
        });
        found.sources = named.sources(&found.lines, with_text);
        found
    }
}

/// What is known of the addresses of a file.
struct Found {
    /// When the file was made, as far as it tells.
    made: Option<SystemTime>,
    places: HashMap<u64, Places>,
    problem: Option<String>,
}

/// The places of the addresses with most samples of a file, if that has DWARF.
fn places(of_file: &FileSamples, info: &DebugInfo) -> Option<Found> {
    let elf = of_file.file.elf().ok()?;
    let mut by_addr = BTreeMap::<u64, u64>::new();
    for (&(addr, _), &count) in &of_file.counts {
        let sum = by_addr.entry(addr).or_default();
        *sum = sum.saturating_add(count);
    }
    let mut addrs: Vec<(u64, u64)> = by_addr.into_iter().collect();
    addrs.sort_by_key(|&(addr, count)| (std::cmp::Reverse(count), addr));
    addrs.truncate(MAX_ADDRS);
    let addrs: Vec<u64> = addrs.into_iter().map(|(addr, _)| addr).collect();
    let dwarf = DwarfFile::of(&of_file.file, info)?;
    let (places, error) = info.lines.find(dwarf.elf(&of_file.file)?, &addrs);
    let places = addrs.iter().copied().zip(places).collect();
    let made = elf.opened().and_then(|file| file.ok()?.metadata().ok()?.modified().ok());
    Some(Found { made, places, problem: error.map(|error| error.to_string()) })
}

/// The innermost place, its file and its line.
fn line_of(places: &Places) -> Option<(&Place, &str, u32)> {
    let innermost = places.first()?;
    Some((innermost, innermost.file.as_deref()?, innermost.line.filter(|&line| line > 0)?))
}

/// The name of an inlined function, to be shown as it is.
fn inlined_name(place: &Place) -> String {
    let name = place.function.as_deref().unwrap_or("?");
    function_name(name.as_bytes()).escaped().at_most(MAX_LABEL).to_string()
}

impl Named {
    /// The sources, with the text around these lines if that is wanted.
    fn sources(self, lines: &[SourceLine], with_text: bool) -> Vec<Source> {
        let mut wanted = vec![BTreeSet::new(); self.paths.len()];
        for line in lines {
            let around = line.line.saturating_sub(AROUND).max(1)..=line.line.saturating_add(AROUND);
            wanted.get_mut(line.source).into_iter().for_each(|set| set.extend(around.clone()));
        }
        let mut room = if with_text { MAX_TEXT } else { 0 };
        let all = self.paths.iter().zip(self.made).zip(wanted);
        let source = |((path, made), wanted): ((&String, Option<SystemTime>), BTreeSet<u32>)| {
            let shown = escaped(path).at_most(MAX_LABEL).to_string();
            let read = if room > 0 { read_lines(path, &wanted, &mut room) } else { None };
            let (text, changed) = read.unwrap_or_default();
            let is_newer = changed.zip(made).is_some_and(|(changed, made)| changed > made);
            Source { path: shown, text, is_newer }
        };
        all.map(source).collect()
    }
}

/// The lines of these numbers of a source, and when it was changed.
fn read_lines(
    path: &str,
    wanted: &BTreeSet<u32>,
    room: &mut usize,
) -> Option<(BTreeMap<u32, String>, Option<SystemTime>)> {
    let path = Path::new(path);
    if !path.is_absolute() || !source_file::is_source(path) {
        return None;
    }
    let file = regular_file::open(path).ok()?;
    let changed = file.metadata().ok()?.modified().ok();
    let mut lines = BTreeMap::new();
    for (number, line) in source_file::lines(file, wanted).ok()? {
        let shown = shown_code(&line);
        *room = room.checked_sub(shown.len())?;
        lines.insert(number, shown);
    }
    Some((lines, changed))
}

/// A line of code, to be shown as it is: with spaces for tabs, and backslashes as they are.
fn shown_code(line: &[u8]) -> String {
    let parts = line.split(|&byte| byte == b'\\').map(|part| {
        let columns: Vec<&[u8]> = part.split(|&byte| byte == b'\t').collect();
        escaped(&columns.join(&b"    "[..])).at_most(MAX_LINE).to_string()
    });
    let parts: Vec<String> = parts.collect();
    parts.join("\\").chars().take(MAX_LINE).collect()
}
