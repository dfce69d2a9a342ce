//! The functions that compilers have inlined: their code is a part of another function's, and
//! they have frames of their own in a report.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unwind_target::counted::counted;
use unwind_target::lines::MOST_ADDRS;
use unwind_target::{LineReader, Untrusted};

use crate::collected::call_tree::{CallTree, Frame};
use crate::collected::debug_info::{DebugInfo, DwarfFile};
use crate::mapped::names::function_name;
use crate::mapped::recorded_file::RecordedFile;

/// How many addresses are looked up, and how long the look at more of them is begun.
const MAX_ADDRS: usize = 1 << 17;
const TIME: Duration = Duration::from_secs(20);

/// Frames whose code may have been inlined, one for each address.
#[derive(Debug)]
pub(crate) struct CodeFrames {
    info: DebugInfo,
    files: HashMap<usize, FileFrames>,
    count: usize,
}

/// Those of one file.
#[derive(Debug)]
struct FileFrames {
    file: Arc<RecordedFile>,
    dwarf: Option<DwarfFile>,
    /// Link-time addresses, each with the place of its frame in the profile.
    frames: Vec<(u64, usize)>,
    /// How many addresses more there are.
    without: usize,
}

/// The functions that were inlined where frames are.
#[derive(Debug, Default)]
pub(crate) struct Inlined {
    /// By the place of the frame: that function first which its own calls.
    pub(crate) functions: HashMap<usize, Vec<Untrusted>>,
    /// What could not be found out, a line each.
    pub(crate) problems: Vec<String>,
}

impl CodeFrames {
    pub(crate) fn new(info: DebugInfo) -> Self {
        Self { info, files: HashMap::new(), count: 0 }
    }

    /// One without frames that looks for debug files at the same places.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.info.clone())
    }

    /// The place in a profile of the frame at a link-time address of a file: one of its own if
    /// others may be inlined there.
    pub(crate) fn place(
        &mut self,
        profile: &mut CallTree,
        file: &Arc<RecordedFile>,
        addr: u64,
        frame: Frame,
    ) -> Option<usize> {
        let of_file = self.files.entry(Arc::as_ptr(file).addr()).or_insert_with(|| FileFrames {
            file: Arc::clone(file),
            dwarf: DwarfFile::of(file, &self.info),
            frames: Vec::new(),
            without: 0,
        });
        if of_file.dwarf.is_none() {
            return profile.frame(frame);
        }
        if self.count >= MAX_ADDRS {
            of_file.without = of_file.without.saturating_add(1);
            return profile.frame(frame);
        }
        let place = profile.new_frame(frame)?;
        of_file.frames.push((addr, place));
        self.count = self.count.saturating_add(1);
        Some(place)
    }

    /// Whether no frame stands apart.
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Reads DWARF for what was inlined there.
    pub(crate) fn find(self) -> Inlined {
        let (mut found, lines) = (Inlined::default(), self.info.lines);
        let mut files: Vec<FileFrames> = self.files.into_values().collect();
        files.retain(|of_file| !of_file.frames.is_empty());
        files.sort_by(|a, b| {
            let key = |of_file: &FileFrames| Reverse(of_file.frames.len());
            key(a).cmp(&key(b)).then(a.file.name.as_bytes().cmp(b.file.name.as_bytes()))
        });
        let end = Instant::now().checked_add(TIME);
        let is_late = || end.is_some_and(|end| Instant::now() > end);
        for mut of_file in files {
            of_file.frames.sort_unstable();
            let mut unknown = of_file.without;
            let mut problem = None;
            for part in of_file.frames.chunks(MOST_ADDRS) {
                let known =
                    if is_late() { 0 } else { of_file.ask(&lines, part, &mut found, &mut problem) };
                unknown = unknown.saturating_add(part.len().saturating_sub(known));
            }
            let name = of_file.file.name.escaped();
            if let Some(problem) = problem {
                found.problems.push(format!("{name}: inlined functions: {problem}"));
            } else if unknown > 0 {
                let unknown = u64::try_from(unknown).unwrap_or(u64::MAX);
                let unknown = counted(unknown, "address", "addresses");
                let problem = format!("{name}: inlined functions: {unknown} not looked up");
                found.problems.push(problem);
            }
        }
        found
    }
}

impl FileFrames {
    /// Looks up what was inlined at some addresses. Returns of how many that is known.
    fn ask(
        &self,
        lines: &LineReader,
        part: &[(u64, usize)],
        found: &mut Inlined,
        problem: &mut Option<String>,
    ) -> usize {
        let Some(elf) = self.dwarf.as_ref().and_then(|dwarf| dwarf.elf(&self.file)) else {
            return 0;
        };
        let addrs: Vec<u64> = part.iter().map(|&(addr, _)| addr).collect();
        let (places, error) = lines.find(elf, &addrs);
        if let Some(error) = error {
            *problem = Some(error.to_string());
        }
        let known = places.len();
        for (&(_, frame), places) in part.iter().zip(places) {
            // The last one is the function that has the code, which has its frame.
            let Some((_, inlined)) = places.split_last() else { continue };
            let names = inlined.iter().rev().map(|place| {
                place.function.as_ref().map_or_else(
                    || Untrusted::from("[inlined function without a name]"),
                    |name| function_name(name.as_bytes()),
                )
            });
            let names: Vec<Untrusted> = names.collect();
            if !names.is_empty() {
                found.functions.insert(frame, names);
            }
        }
        known
    }
}
