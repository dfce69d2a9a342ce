//! Objects that compilers register by GDB's JIT interface: which are in the lists of a process, and where their code is
//! among what it has mapped. They are read in its memory while it is recorded, and a recording tells of them later.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::ops;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use unwind_target::Notices;
use unwind_target::clock::nanoseconds;
use unwind_target::jit::registered_objects::{JitLists, code_of};
use unwind_target::target::memory::ProcessMemory;

use crate::mapped::ranges::{Range, Ranges};
use crate::mapped::recorded_file::RecordedFile;
use crate::recording::registered_code::{Change, RegisteredCode};

/// How long it is at least until the lists of a process are read again, and how many times the CPU time that the last
/// read took: the program says how much there is to do. Time in which others had the CPU is none of it, or a busy
/// machine would leave samples without the rows of new code.
const GAP: Duration = Duration::from_millis(20);
const TIMES: u32 = 20;

/// How many bytes of objects are kept of all processes while they are recorded, how many of those with samples in the
/// recording, and how often an object may come or go.
const MAX_BYTES: usize = 256 << 20;
const MAX_RECORDED: usize = 48 << 20;
const MAX_CHANGES: usize = 1 << 17;

/// How many parts of an object have code that is looked at.
const MAX_PARTS: usize = 256;

/// Of how many files of other formats it is known that they are no objects.
const MAX_NO_OBJECTS: usize = 1 << 16;

/// All objects of a recording, each once, whichever processes have it.
#[derive(Debug, Default)]
pub(crate) struct RegisteredObjects {
    objects: Vec<Arc<RecordedFile>>,
    /// What was found so far, in order, and how many objects that names.
    changes: Vec<Change>,
    changed: usize,
    /// What a recording tells that is still to come, by process.
    told: HashMap<u32, VecDeque<Change>>,
    /// The place of an object by a hash of its bytes, which no program can foresee, and their count; `None` of what is
    /// no object.
    places: HashMap<(u64, usize), Option<usize>>,
    random: RandomState,
    bytes: usize,
    /// What was seen of a process last.
    looks: HashMap<u32, Look>,
    notices: Notices,
}

/// What the lists of a process had when they were read last.
#[derive(Debug, Default)]
struct Look {
    listed: BTreeSet<usize>,
    /// What they have no more, by the time when that was seen: samples from before, which are walked later, have it.
    going: BTreeMap<usize, u64>,
    /// How often memory for code was mapped until then.
    mapped: u64,
    /// When they are to be read again, and when what has no place may be looked for one.
    due: Option<Instant>,
    placing_due: Option<Instant>,
}

impl Look {
    /// Takes what the lists have at a time, and whether that is all of it, where `known` was placed.
    fn take(&mut self, (listed, is_whole): (BTreeSet<usize>, bool), known: &Placed, now: u64) {
        self.listed = listed;
        self.going.retain(|place, _| !self.listed.contains(place));
        let gone = known.keys().filter(|place| is_whole && !self.listed.contains(place));
        for &place in gone {
            self.going.entry(place).or_insert(now);
        }
    }

    /// What a sample of this time does not have any more.
    fn gone(&mut self, time: u64) -> Vec<usize> {
        self.going.extract_if(.., |_, since| *since <= time).map(|(place, _)| place).collect()
    }
}

/// The objects of a process by their places in [`RegisteredObjects`], and where their code is.
pub(crate) type Placed = BTreeMap<usize, Vec<PlacedCode>>;

/// Code of an object, and what it is in the place of.
#[derive(Clone, Debug)]
pub(crate) struct PlacedCode {
    code: Range,
    under: Vec<Range>,
}

impl RegisteredObjects {
    /// Those that a recording tells of. `notices` tell of what is not kept.
    pub(crate) fn new(told: &RegisteredCode, notices: Notices) -> Self {
        let object =
            |bytes: &Arc<Vec<u8>>| Arc::new(RecordedFile::of_registered(Arc::clone(bytes)));
        let mut by_process: HashMap<u32, VecDeque<Change>> = HashMap::new();
        for change in &told.changes {
            by_process.entry(change.process).or_default().push_back(change.clone());
        }
        let objects = told.objects.iter().map(object).collect();
        Self { objects, told: by_process, notices, ..Self::default() }
    }

    /// What a recording tells of a process up to a time, which it has not told before.
    pub(crate) fn told(&mut self, process: u32, time: u64) -> Vec<Change> {
        let Some(told) = self.told.get_mut(&process) else { return Vec::new() };
        let is_later = |change: &Change| change.time > time;
        let count = told.iter().position(is_later).unwrap_or(told.len());
        told.drain(..count).collect()
    }

    /// What has changed in a process that runs: in its lists, if they are due to be read, or in memory for
    /// code of theirs, which was mapped `mapped` times. Code of files is at `texts`; `known` objects have their places.
    pub(crate) fn look(
        &mut self,
        (process, time): (u32, u64),
        (texts, mapped): (&Ranges, u64),
        (ranges, known): (&Ranges, &Placed),
    ) -> Option<Change> {
        let mut look = self.looks.remove(&process).unwrap_or_default();
        let now = Instant::now();
        let is_due = |due: Option<Instant>| due.is_none_or(|due| now >= due);
        let (reads, places) = (is_due(look.due), is_due(look.placing_due));
        if reads {
            // That files are looked through for them happens once.
            let list = |range: &&Range| range.file.jit_list()?.checked_add(range.bias()?);
            let heads: BTreeSet<u64> = texts.all().iter().filter_map(list).collect();
            let (began, now) = (cpu_time(), nanoseconds(ClockId::Monotonic).unwrap_or(0));
            if let Some(read) = self.read(process, &JitLists::at(heads)) {
                look.take(read, known, now);
            }
            look.due = after(began, GAP);
        }
        let gone = look.gone(time);
        let change = (reads || !gone.is_empty() || (places && look.mapped != mapped)).then(|| {
            let began = cpu_time();
            look.mapped = mapped;
            if !gone.is_empty() {
                // Others may be in its place.
                look.due = None;
            }
            let added = self.missing(&look.listed, (ranges, known));
            look.placing_due = after(began, Duration::ZERO);
            Change { process, time, added, gone }
        });
        self.looks.insert(process, look);
        let mut change = change?;
        let count = change.added.len().saturating_add(change.gone.len());
        self.changed = self.changed.saturating_add(count);
        if self.changed > MAX_CHANGES && !change.added.is_empty() {
            self.tell_of_bound(process);
            // What has gone, which is no more than what came, makes room for other code.
            change.added.clear();
        }
        if change.added.is_empty() && change.gone.is_empty() {
            return None;
        }
        self.changes.push(change.clone());
        Some(change)
    }

    /// What of these objects has no code at its place, and can have it there.
    fn missing(&self, listed: &BTreeSet<usize>, (ranges, known): (&Ranges, &Placed)) -> Vec<usize> {
        let is_missing = |place: &usize| {
            known.get(place).is_none_or(|code| {
                let is_there = |placed: &PlacedCode| ranges.has(&placed.code);
                !code.iter().any(is_there) && !self.place(*place, ranges).1.is_empty()
            })
        };
        listed.iter().copied().filter(is_missing).collect()
    }

    /// The objects that the lists of a process have, and whether all of these could be read.
    fn read(&mut self, process: u32, lists: &JitLists) -> Option<(BTreeSet<usize>, bool)> {
        let thread = i32::try_from(process).ok().filter(|_| !lists.is_empty())?;
        let mut memory = ProcessMemory::open(thread).ok()?;
        let mut listed = BTreeSet::new();
        let is_whole =
            lists.read_files(&mut memory, |bytes| listed.extend(self.known(process, bytes)));
        Some((listed, is_whole))
    }

    /// The place of an object with these bytes.
    fn known(&mut self, process: u32, bytes: Vec<u8>) -> Option<usize> {
        let key = (self.random.hash_one(&bytes), bytes.len());
        if let Some(known) = self.places.get(&key) {
            return *known;
        }
        let sum = self.bytes.saturating_add(bytes.len());
        if sum > MAX_BYTES {
            self.tell_of_bound(process);
            return None;
        }
        let file = RecordedFile::of_registered(Arc::new(bytes));
        let place = file.elf().is_ok().then(|| {
            self.bytes = sum;
            self.objects.push(Arc::new(file));
            self.objects.len().saturating_sub(1)
        });
        // What is no object may be another one each time.
        if place.is_some() || self.places.len() < MAX_NO_OBJECTS {
            self.places.insert(key, place);
        }
        place
    }

    fn tell_of_bound(&self, process: u32) {
        self.notices.add(format!(
            "compilers in process {process} register more code than is kept; some of it has neither rows nor names"
        ));
    }

    /// Puts the code of an object in the place of memory that can be executed and is in no file. Returns the ranges
    /// then, and what was put there.
    fn place(&self, place: usize, ranges: &Ranges) -> (Ranges, Vec<PlacedCode>) {
        let (mut ranges, mut placed) = (ranges.clone(), Vec::new());
        let file = self.objects.get(place);
        if let Some((file, elf)) = file.and_then(|file| Some((file, file.elf().ok()?))) {
            for part in code_of(elf).take(MAX_PARTS) {
                let Some(under) = made_code(&ranges, &part) else { continue };
                let (start, end) = (part.start, part.end);
                let file = Arc::clone(file);
                let code =
                    Range { start, end, offset: start, executable: true, is_moved: false, file };
                ranges = ranges.with(code.clone(), self.random.hash_one(start));
                placed.push(PlacedCode { code, under });
            }
        }
        (ranges, placed)
    }

    /// Makes a change of the objects of a process in what it has mapped.
    pub(crate) fn make(&self, change: &Change, ranges: &mut Ranges, placed: &mut Placed) {
        for gone in &change.gone {
            for PlacedCode { code, under } in placed.remove(gone).unwrap_or_default() {
                let is_there = ranges.has(&code);
                for range in under.into_iter().filter(|_| is_there) {
                    let priority = self.random.hash_one(range.start);
                    *ranges = ranges.with(range, priority);
                }
            }
        }
        for &added in &change.added {
            let (with, code) = self.place(added, ranges);
            *ranges = with;
            placed.insert(added, code);
        }
    }

    /// Forgets that the lists of a process were read.
    pub(crate) fn forget(&mut self, process: u32) {
        self.looks.remove(&process);
    }

    /// Those with samples, to be told in a recording, as far as they have room there.
    pub(crate) fn recorded(&self) -> RegisteredCode {
        let mut recorded = RegisteredCode::default();
        let (mut places, mut room) = (HashMap::new(), MAX_RECORDED);
        let with_samples = self.objects.iter().enumerate().filter(|(_, file)| file.has_samples());
        for (at, bytes) in with_samples.filter_map(|(at, file)| Some((at, file.registered()?))) {
            if let Some(rest) = room.checked_sub(bytes.len()) {
                room = rest;
                places.insert(at, recorded.objects.len());
                recorded.objects.push(Arc::clone(bytes));
            }
        }
        let kept = |all: &[usize]| all.iter().filter_map(|at| places.get(at).copied()).collect();
        let changes = self.changes.iter().map(|change| Change {
            added: kept(&change.added),
            gone: kept(&change.gone),
            ..*change
        });
        recorded.changes =
            changes.filter(|change| !(change.added.is_empty() && change.gone.is_empty())).collect();
        recorded
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::ThreadCPUTime).unwrap_or(0))
}

/// When to do again what was begun at a CPU time of this thread and ends now.
fn after(began: Duration, least: Duration) -> Option<Instant> {
    let took = cpu_time().saturating_sub(began);
    Instant::now().checked_add(took.saturating_mul(TIMES).max(least))
}

/// What is in a part of the ranges, if that is code all over that the program has made and no object has: what a dump
/// tells of it is less than what an object does.
fn made_code(ranges: &Ranges, part: &ops::Range<u64>) -> Option<Vec<Range>> {
    let (mut all, mut at) = (Vec::new(), part.start);
    while at < part.end {
        let range = ranges.find(at)?;
        if !(range.executable && (range.file.is_memory() || range.file.is_function())) {
            return None;
        }
        let end = range.end.min(part.end);
        all.push(Range { start: at, end, offset: range.file_offset(at), ..range.clone() });
        at = end;
    }
    Some(all)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use unwind_perf::record::{Mapping, Task};

    use super::*;
    use crate::mapped::address_spaces::Spaces;
    use crate::mapped::files::RecordedFiles;
    use crate::mapped::origin::Origin;

    /// An object with code at an address, `fill` bytes longer than it has to be.
    fn object(addr: u64, size: u64, fill: usize) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        bytes.extend(0x3e_0001_u32.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        // Entry, program headers, section headers; flags and sizes.
        [0, 0, 64].into_iter().for_each(|word: u64| bytes.extend(word.to_le_bytes()));
        bytes.extend(0_u32.to_le_bytes());
        [64, 56, 0, 64, 3, 2].into_iter().for_each(|half: u16| bytes.extend(half.to_le_bytes()));
        bytes.resize(128, 0);
        let mut section = |name: u32, kind: u32, words: [u64; 4]| {
            bytes.extend(name.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            words.into_iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            bytes.resize(bytes.len() + 24, 0);
        };
        // Flags, address, offset, size: what is allocated and executable, and names.
        section(1, 1, [6, addr, 0, size]);
        section(0, 3, [0, 0, 256, 7]);
        bytes.extend(b"\0.text\0");
        bytes.resize(bytes.len() + fill, 0);
        bytes
    }

    fn spaces(told: RegisteredCode) -> Spaces {
        let origin = Origin { registered: Arc::new(told), ..Origin::default() };
        Spaces::new(RecordedFiles::default().of_origin(&origin))
    }

    const TASK: Task = Task { pid: 1, tid: 1 };

    fn map(spaces: &mut Spaces, range: ops::Range<u64>) {
        spaces.map(&Mapping::of_code(TASK, range, b"//anon"), false, 0);
    }

    #[test]
    fn m1_registered_code_is_where_and_when_a_recording_tells() {
        let change = |time, added: &[usize], gone: &[usize]| Change {
            process: 1,
            time,
            added: added.to_vec(),
            gone: gone.to_vec(),
        };
        let mut spaces = spaces(RegisteredCode {
            objects: [(0x1800, 0x100), (0x1880, 0x10), (0x2ff0, 0x20), (0x2000, u64::MAX)]
                .map(|(addr, size)| Arc::new(object(addr, size, 0)))
                .to_vec(),
            // The last two are not in one mapping, and there is no fifth one.
            changes: vec![change(10, &[0, 2, 3, 4], &[]), change(20, &[1], &[0])],
        });
        map(&mut spaces, 0x1000..0x3000);
        let at = |spaces: &mut Spaces, time, addr| {
            let space = spaces.of(TASK, time);
            let range = space.find(addr).unwrap().clone();
            let is_registered = range.file.registered().is_some();
            assert_eq!(is_registered, range.link_time(addr) == Some(addr));
            is_registered.then_some(range.start..range.end)
        };
        assert_eq!(at(&mut spaces, 9, 0x1800), None);
        assert_eq!(at(&mut spaces, 10, 0x1800), Some(0x1800..0x1900));
        for other in [0x17ff, 0x1900, 0x2000, 0x2ff0] {
            assert_eq!(at(&mut spaces, 10, other), None, "{other:#x}");
        }
        // A program that changes the protection of memory maps it again.
        let before = spaces.of(TASK, 10).generation;
        map(&mut spaces, 0x1000..0x3000);
        assert_eq!(at(&mut spaces, 19, 0x18ff), Some(0x1800..0x1900));
        assert_eq!(at(&mut spaces, 20, 0x1800), None);
        assert_eq!(at(&mut spaces, 20, 0x1880), Some(0x1880..0x1890));
        assert_ne!(spaces.of(TASK, 20).generation, before);
    }

    #[test]
    fn m1_samples_from_before_an_object_went_have_it() {
        let placed = |places: &[usize]| places.iter().map(|&place| (place, vec![])).collect();
        let listed = |places: &[usize]| (places.iter().copied().collect(), true);
        let (known, mut look): (Placed, _) = (placed(&[0, 1, 2]), Look::default());
        look.take(listed(&[0, 2]), &known, 10);
        look.take(listed(&[2]), &known, 20);
        assert!(look.gone(9).is_empty());
        assert_eq!(look.gone(10), [1]);
        // It is there again before that was to go.
        look.take(listed(&[0, 2]), &placed(&[0, 2]), 30);
        assert!(look.gone(u64::MAX).is_empty());
        // A list that was not read to its end does not say that the rest is gone.
        look.take((BTreeSet::new(), false), &placed(&[0, 2]), 40);
        assert!(look.gone(u64::MAX).is_empty());
    }

    #[test]
    fn m1_an_object_is_kept_once_and_all_in_bounds() {
        let notices = Notices::default();
        let mut objects = RegisteredObjects::new(&RegisteredCode::default(), notices.clone());
        let bytes = object(0x1000, 0x10, 0);
        assert_eq!(objects.known(1, bytes.clone()), Some(0));
        assert_eq!(objects.known(2, bytes), Some(0));
        assert_eq!(objects.known(1, b"no object".to_vec()), None);
        assert_eq!(objects.places.len(), 2);
        for number in 0..=MAX_NO_OBJECTS {
            assert_eq!(objects.known(1, number.to_le_bytes().to_vec()), None);
        }
        assert_eq!(objects.places.len(), MAX_NO_OBJECTS);
        objects.bytes = MAX_BYTES - 1_000;
        assert_eq!(objects.known(1, object(0x2000, 0x10, 1_000)), None);
        assert!(notices.take()[0].contains("more code than is kept"));
        let large = |number: u64| {
            Arc::new(RecordedFile::of_registered(Arc::new(object(number << 12, 0x10, 20 << 20))))
        };
        objects.objects.extend((0..4).map(large));
        assert_eq!(objects.known(1, object(0x3000, 0x10, 100)), Some(5));
        // Without samples none is told; with them, what there is room for.
        let added = (0..objects.objects.len()).collect();
        objects.changes.push(Change { process: 1, time: 5, added, gone: vec![] });
        assert_eq!(objects.recorded(), RegisteredCode::default());
        objects.objects.iter().skip(1).for_each(|object| object.note_sample());
        let recorded = objects.recorded();
        // Two of the large ones, and the last one.
        assert_eq!(recorded.objects.len(), 3);
        let expected = Change { process: 1, time: 5, added: vec![0, 1, 2], gone: vec![] };
        assert_eq!(recorded.changes, [expected]);
    }
}
