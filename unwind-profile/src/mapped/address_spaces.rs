//! What code is where in each process of a recording, as its records so far say.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::{iter, ops};

use unwind_perf::record::{Comm, Lifecycle, Mapping, Misc, RecordType, Task};
use unwind_target::Untrusted;
use unwind_target::jit::jit_dump::JitDump;
use unwind_target::jit::jit_maps::{MAX_PARENTS, Maker};
use unwind_target::target::processes::Processes;

use crate::mapped::files::RecordedFiles;
use crate::mapped::lifetimes::Lifetimes;
use crate::mapped::moved_text::{MovedText, MovedTexts};
use crate::mapped::ranges::{Range, Ranges};
use crate::mapped::recorded_file::RecordedFile;
use crate::mapped::registered_objects::{Placed, RegisteredObjects};
use crate::recording::held::{Held, Meaning};
use crate::recording::registered_code::RegisteredCode;

/// The process that mappings of the kernel itself are said to be of.
const KERNEL: u32 = u32::MAX;

/// Of how many processes at a time such files are read: each is open.
const MAX_JIT_DUMPS: usize = 64;

/// The address spaces of all processes, and that of the kernel.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    processes: HashMap<u32, Space>,
    lifetimes: Lifetimes,
    kernel: Space,
    files: RecordedFiles,
    /// What compilers tell of their code, by process.
    jit_dumps: HashMap<u32, (Untrusted, JitDump)>,
    /// The newest generation of any space.
    generation: u64,
    moved: MovedTexts,
    /// What compilers register by GDB's JIT interface.
    registered: RegisteredObjects,
    /// Makes the priorities of ranges, which a recording cannot foresee.
    random: RandomState,
}

impl Spaces {
    /// Spaces of a recording that knows these build ids, by the names of files.
    pub(crate) fn new(files: RecordedFiles) -> Self {
        let moved = MovedTexts::new(files.notices().clone());
        let registered = RegisteredObjects::new(files.registered(), files.notices().clone());
        Self { files, moved, registered, ..Self::default() }
    }

    /// All files that were mapped so far.
    pub(crate) const fn files(&self) -> &RecordedFiles {
        &self.files
    }

    /// Takes note of the files that the frames of a stack are in.
    pub(crate) fn note_stack(&mut self, task: Task, stack: impl IntoIterator<Item = u64>) {
        self.lifetimes.sampled(task);
        let Some(space) = self.processes.get(&task.pid) else { return };
        let mut last: Option<&Range> = None;
        for addr in stack {
            // Most frames are in the file of the one before.
            if last.is_some_and(|range| (range.start..range.end).contains(&addr)) {
                continue;
            }
            last = space.find(addr);
            if let Some(range) = last {
                range.file.note_sample();
            }
        }
    }

    /// Learns from a record of a mapping, or of a thread's beginning, exec or end.
    pub(crate) fn take(&mut self, held: &Held) {
        let Some(record) = held.record() else {
            return;
        };
        match record.kind() {
            RecordType::MMAP | RecordType::MMAP2 => {
                if let Ok(mapping) = Mapping::decode(&record, held.format) {
                    let mode = record.header().misc.cpu_mode();
                    if matches!(mode, Misc::GUEST_KERNEL | Misc::GUEST_USER) {
                        self.map_guest(&mapping, held.time);
                    } else {
                        let is_kernel = mode == Misc::KERNEL || mapping.task.pid == KERNEL;
                        self.map(&mapping, is_kernel, held.time);
                    }
                }
            }
            RecordType::FORK => {
                if let Ok(fork) = Lifecycle::decode(&record, held.format) {
                    self.fork(fork.parent, fork.task, held.time);
                    self.lifetimes.live(fork.task);
                }
            }
            RecordType::EXIT => {
                if let Ok(exit) = Lifecycle::decode(&record, held.format)
                    && let Some(ended) = self.lifetimes.exit(exit.task)
                {
                    self.forget(ended);
                }
            }
            RecordType::COMM => {
                let Ok(comm) = Comm::decode(&record, held.format) else { return };
                match held.meaning {
                    Meaning::Exec => {
                        self.lifetimes.exec(comm.task.pid);
                        self.forget(comm.task.pid);
                    }
                    _ => self.lifetimes.live(comm.task),
                }
            }
            _ => {}
        }
    }

    /// Forgets what a process has, which has ended or executes another program.
    fn forget(&mut self, process: u32) {
        self.processes.remove(&process);
        self.jit_dumps.remove(&process);
        self.moved.forget(process);
        self.registered.forget(process);
    }

    /// Takes note of what a guest has mapped: by the monitor's process, or by the guest's own ones and its kernel.
    fn map_guest(&mut self, mapping: &Mapping<'_>, time: u64) {
        let Some(end) = mapping.addr.checked_add(mapping.len).filter(|_| mapping.len != 0) else {
            return;
        };
        let (start, offset, executable) = (mapping.addr, mapping.offset, mapping.executable);
        let range = Range {
            start,
            end,
            offset,
            executable,
            is_moved: false,
            file: self.files.guest_file(mapping, time),
        };
        let priority = self.random.hash_one(start);
        let space = match mapping.task.pid {
            KERNEL => &mut self.kernel,
            process => self.processes.entry(process).or_default(),
        };
        space.guest = space.guest.with(range, priority);
    }

    pub(crate) fn map(&mut self, mapping: &Mapping<'_>, is_kernel: bool, time: u64) {
        let Some(end) = mapping.addr.checked_add(mapping.len).filter(|_| mapping.len != 0) else {
            return;
        };
        if !is_kernel {
            self.lifetimes.revive(mapping.task.pid);
            self.find_dump(mapping);
        }
        let range = Range {
            start: mapping.addr,
            end,
            offset: mapping.offset,
            executable: mapping.executable,
            is_moved: false,
            file: self.files.file(mapping, time),
        };
        let priority = self.random.hash_one(range.start);
        let space = match is_kernel {
            true => &mut self.kernel,
            false => self.processes.entry(mapping.task.pid).or_default(),
        };
        if space.ranges.has(&range) {
            // Nothing changes, and rows that are kept stay.
            return;
        }
        let is_code = |range: &Range| range.file.has_code();
        if is_code(&range) || space.ranges.any_in(range.start, range.end, &is_code) {
            self.generation = self.generation.saturating_add(1);
            space.generation = self.generation;
        }
        let (is_memory, executable) = (range.file.is_memory(), range.executable);
        let is_made = is_memory && executable && !is_kernel;
        space.made_code = space.made_code.saturating_add(is_made.into());
        let registered =
            if is_memory { space.registered_in(range.start..range.end) } else { Vec::new() };
        if range.executable && range.file.path().is_some() {
            space.texts = space.texts.with(range.clone(), priority);
        }
        space.ranges = space.ranges.with(range, priority);
        for code in registered {
            let priority = self.random.hash_one(code.start);
            space.ranges = space.ranges.with(code, priority);
        }
        if is_made {
            let proof = (self.files.proof(), self.files.processes());
            let range = mapping.addr..end;
            let texts = space.texts.clone();
            let found = self.moved.find(proof, &texts, mapping.task, &range, time);
            self.put(mapping.task.pid, found);
        }
    }

    /// Puts code that was moved to memory in the place of that.
    fn put(&mut self, process: u32, found: Vec<Range>) {
        if found.is_empty() {
            return;
        }
        self.generation = self.generation.saturating_add(1);
        let space = self.processes.entry(process).or_default();
        space.generation = self.generation;
        for range in found {
            let priority = self.random.hash_one(range.start);
            space.ranges = space.ranges.with(range, priority);
        }
    }

    /// The code that was found to be moved to memory since the last call, by its bytes.
    pub(crate) fn take_moved(&mut self) -> Vec<MovedText> {
        self.moved.take()
    }

    /// A new process has what the one that started it had. A new thread has its process's.
    fn fork(&mut self, parent: Task, child: Task, time: u64) {
        if parent.pid != child.pid {
            self.read_dump(parent.pid, time);
            let space = self.processes.get(&parent.pid).cloned().unwrap_or_default();
            let parents = [parent.pid].into_iter().chain(space.parents.iter().copied());
            let parents = parents.take(MAX_PARENTS).collect();
            self.processes.insert(child.pid, Space { parents, ..space });
        }
    }

    /// Takes note of a file that a compiler tells its code in.
    fn find_dump(&mut self, mapping: &Mapping<'_>) {
        let process = mapping.task.pid;
        if self.jit_dumps.contains_key(&process) {
            return;
        }
        if self.jit_dumps.len() >= MAX_JIT_DUMPS {
            self.jit_dumps.retain(|&process, _| !self.lifetimes.has_ended(process));
        }
        if self.jit_dumps.len() < MAX_JIT_DUMPS
            && let Some(dump) =
                JitDump::open(mapping.name, process, self.files.processes(), self.files.notices())
        {
            self.jit_dumps.insert(process, (Untrusted::from(mapping.name), dump));
        }
    }

    /// Maps the code that a compiler has told up to a time, as if it was in files.
    fn read_dump(&mut self, process: u32, time: u64) {
        let Some((name, dump)) = self.jit_dumps.get_mut(&process) else { return };
        let space = self.processes.entry(process).or_default();
        let (generation, random) = (&mut self.generation, &self.random);
        dump.read_to(time, |code| {
            let (start, end) = (code.start, code.end);
            if space.find(start).is_some_and(|range| range.file.registered().is_some()) {
                // Its object has more.
                return;
            }
            let file = Arc::new(RecordedFile::of_jit(name.clone(), code));
            let range =
                Range { start, end, offset: start, executable: true, is_moved: false, file };
            *generation = generation.saturating_add(1);
            space.generation = *generation;
            space.ranges = space.ranges.with(range, random.hash_one(start));
        });
    }

    /// Maps the code that compilers have registered up to a time, as if it was in files.
    pub(crate) fn read_registered(&mut self, process: u32, time: u64) {
        let has_made_code = |space: &&mut Space| space.made_code > 0;
        let Some(space) = self.processes.get_mut(&process).filter(has_made_code) else { return };
        let changes = match self.files.processes() {
            Processes::Running => {
                let known = (&space.ranges, &*space.registered);
                let mapped = (&space.texts, space.made_code);
                self.registered.look((process, time), mapped, known).into_iter().collect()
            }
            Processes::Since(_) | Processes::Unknown => self.registered.told(process, time),
        };
        for change in changes {
            self.generation = self.generation.saturating_add(1);
            space.generation = self.generation;
            let placed = Arc::make_mut(&mut space.registered);
            self.registered.make(&change, &mut space.ranges, placed);
        }
    }

    /// What compilers have registered and has samples, to be told in a recording.
    pub(crate) fn registered(&self) -> RegisteredCode {
        self.registered.recorded()
    }

    /// What a process has at a time, up to which all records were taken.
    pub(crate) fn of(&mut self, task: Task, time: u64) -> Space {
        self.lifetimes.sampled(task);
        self.read_dump(task.pid, time);
        self.read_registered(task.pid, time);
        if self.moved.is_waiting() {
            let texts = self.processes.get(&task.pid).map(|space| space.texts.clone());
            let found = self.moved.find_again(&texts.unwrap_or_default(), task, time);
            self.put(task.pid, found);
        }
        let space = self.processes.get(&task.pid).cloned().unwrap_or_default();
        Space { process: task.pid, processes: self.files.processes(), ..space }
    }

    /// Takes note of the release of the kernel.
    pub(crate) fn learn_release(&mut self, told: Option<&Untrusted>) {
        self.kernel.release = told.cloned().map(Arc::new);
    }

    /// What the kernel has now.
    pub(crate) fn of_kernel(&self) -> Space {
        self.kernel.clone()
    }
}

/// What is mapped in one process at one time. Cloning costs nothing that grows with it.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// The process, of a sample's space.
    pub(crate) process: u32,
    /// What is known of that.
    pub(crate) processes: Processes,
    /// The processes whose code it has, as it came from them without an exec; the last one first.
    pub(crate) parents: Arc<[u32]>,
    pub ranges: Ranges,
    /// What its guest has mapped, if it is a monitor: kernel and user code. Of a recording of a guest alone, what its
    /// process or its kernel has.
    pub(crate) guest: Ranges,
    /// Where code of files was mapped, also if memory without a file has taken its place.
    pub(crate) texts: Ranges,
    /// How often memory without a file was mapped that can be executed.
    pub(crate) made_code: u64,
    /// The objects that compilers have registered in it.
    pub(crate) registered: Arc<Placed>,
    /// The release of the kernel, of its own space, where a record has said it.
    pub(crate) release: Option<Arc<Untrusted>>,
    /// A number that no space has in which tables say anything else of any code; 0 if
    /// they say nothing.
    pub(crate) generation: u64,
}

impl Space {
    /// The process, as one that has made code.
    pub(crate) fn maker(&self) -> Maker<'_> {
        Maker { process: self.process, parents: &self.parents, processes: self.processes }
    }

    /// The range that holds an address.
    #[must_use]
    pub fn find(&self, addr: u64) -> Option<&Range> {
        self.ranges.find(addr)
    }

    /// The code that compilers have registered in a part of it: where memory is mapped again it stays what it is, until
    /// the lists tell otherwise.
    fn registered_in(&self, part: ops::Range<u64>) -> Vec<Range> {
        /// What is more is put there when the lists are read next.
        const MOST: usize = 1 << 10;
        if self.registered.is_empty() {
            return Vec::new();
        }
        let first = self.find(part.start).or_else(|| self.ranges.after(part.start));
        let all = iter::successors(first, |range| self.ranges.after(range.start));
        let all = all.take_while(|range| range.start < part.end).take(MOST);
        let is_inside = |range: &&Range| range.file.registered().is_some() && range.end <= part.end;
        all.filter(is_inside).filter(|range| range.start >= part.start).cloned().collect()
    }

    /// The first range that `is_wanted`.
    pub(crate) fn find_range(&self, is_wanted: &impl Fn(&Range) -> bool) -> Option<&Range> {
        self.ranges.find_range(is_wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_changes_with_the_ranges_and_not_else() {
        let mut spaces = Spaces::default();
        let task = |pid| Task { pid, tid: pid };
        let map = |spaces: &mut Spaces, pid, name| {
            let mapping = Mapping::of_code(task(pid), 0x1000..0x3000, name);
            spaces.map(&mapping, false, 0);
            spaces.of(task(pid), 0).generation
        };
        assert_eq!(spaces.of(task(1), 0).generation, 0);
        let first = map(&mut spaces, 1, b"/a");
        assert_ne!(first, 0);
        assert_eq!(map(&mut spaces, 1, b"/a"), first, "it is there");
        spaces.fork(task(1), task(2), 0);
        assert_eq!(spaces.of(task(2), 0).generation, first, "a child has the same");
        let second = map(&mut spaces, 2, b"/b");
        let third = map(&mut spaces, 1, b"/b");
        assert!(![0, first].contains(&second) && ![0, first, second].contains(&third));
        assert_eq!(map(&mut spaces, 2, b"/b"), second);
        assert!(![0, first, second, third].contains(&map(&mut spaces, 2, b"/a")));
        assert_eq!(spaces.of(task(1), 0).generation, third, "what another process maps");
    }

    #[test]
    fn memory_without_code_changes_the_generation_only_where_code_was() {
        let mut spaces = Spaces::default();
        let task = Task { pid: 1, tid: 1 };
        let map = |spaces: &mut Spaces, range, name| {
            spaces.map(&Mapping::of_code(task, range, name), false, 0);
            spaces.of(task, 0).generation
        };
        let first = map(&mut spaces, 0x1000..0x3000, b"/a");
        assert_eq!(map(&mut spaces, 0x3000..0x9000, b"//anon"), first);
        assert_eq!(map(&mut spaces, 0x4000..0x5000, b"[heap]"), first);
        assert_eq!(map(&mut spaces, 0x800..0x1000, b"//anon"), first);
        assert!(spaces.of(task, 0).find(0x4000).is_some(), "it is mapped all the same");
        let second = map(&mut spaces, 0x2000..0x4000, b"//anon");
        assert_ne!(second, first);
        assert_ne!(map(&mut spaces, 0x4000..0x5000, b"/b"), second);
    }
}
