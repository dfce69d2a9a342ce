//! The host's memory and tasks for tests: it knows what was allocated how, who
//! may still read it, and fails when told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard};

use unwind_perf::task_data::{DataHandle, DataHost, DataLayout, TaskData};

/// A task: its number and its block.
#[derive(Debug)]
pub struct Task {
    pub number: u64,
    pub data: TaskData,
}

type Hook = Box<dyn Fn(&Host) + Send>;

/// A host whose allocations and walks over tasks can be watched and made to
/// fail.
#[derive(Default)]
pub struct Host {
    state: Mutex<State>,
    hook: Mutex<Option<Hook>>,
}

#[derive(Default)]
struct State {
    pieces: Vec<Piece>,
    free: Vec<u32>,
    tasks: BTreeMap<u64, Arc<Task>>,
    next_section: u64,
    open: Vec<u64>,
    /// Pieces that wait for the read sections that were open.
    waiting: Vec<(DataHandle, Vec<u64>)>,
    allocations: u64,
    /// Allocations from this number on fail.
    fail_from: Option<u64>,
    /// If set, the only tasks that system-wide events are about.
    wanted: Option<BTreeSet<u64>>,
    walks: u64,
    relaxes: u64,
    bump: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Free,
    Live,
    Retired,
}

#[derive(Debug)]
struct Piece {
    generation: u16,
    layout: DataLayout,
    addr: usize,
    used: Use,
}

/// A piece of memory as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed {
    pub layout: DataLayout,
    pub addr: usize,
}

impl Host {
    pub fn with_tasks(count: u64) -> Self {
        let host = Self::default();
        for number in 0..count {
            host.spawn(number);
        }
        host
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Creates a task that can be found.
    pub fn spawn(&self, number: u64) -> Arc<Task> {
        let task = Arc::new(Task { number, data: TaskData::new() });
        assert!(self.state().tasks.insert(number, Arc::clone(&task)).is_none());
        task
    }

    pub fn task(&self, number: u64) -> Arc<Task> {
        Arc::clone(&self.state().tasks[&number])
    }

    pub fn tasks(&self) -> Vec<Arc<Task>> {
        self.state().tasks.values().cloned().collect()
    }

    /// Lets the next `count` allocations succeed and all later ones fail.
    pub fn fail_after(&self, count: u64) {
        let mut state = self.state();
        state.fail_from = Some(state.allocations + count);
    }

    pub fn fail_no_more(&self) {
        self.state().fail_from = None;
    }

    /// Lets system-wide events be about these tasks only.
    pub fn want(&self, numbers: impl IntoIterator<Item = u64>) {
        self.state().wanted = Some(numbers.into_iter().collect());
    }

    /// Runs `hook` once, within the next allocation, before it is made.
    pub fn at_next_alloc(&self, hook: impl Fn(&Self) + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    pub fn open_section(&self) -> u64 {
        let mut state = self.state();
        state.next_section += 1;
        let section = state.next_section;
        state.open.push(section);
        section
    }

    pub fn close_section(&self, section: u64) {
        let mut state = self.state();
        state.open.retain(|&open| open != section);
        for (_, sections) in &mut state.waiting {
            sections.retain(|&open| open != section);
        }
        let waiting = std::mem::take(&mut state.waiting);
        let (over, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|w| w.1.is_empty());
        state.waiting = waiting;
        for (handle, _) in over {
            state.release(handle, Use::Retired);
        }
    }

    /// The block of `handle`; fails if it has been freed.
    pub fn access(&self, handle: DataHandle) -> Placed {
        let state = self.state();
        let piece = &state.pieces[usize::try_from(handle.index()).unwrap()];
        assert_eq!(piece.generation, handle.generation(), "{handle:?} was freed and reused");
        assert_ne!(piece.used, Use::Free, "{handle:?} was freed");
        Placed { layout: piece.layout, addr: piece.addr }
    }

    /// Pieces that are not freed yet.
    pub fn live(&self) -> usize {
        self.state().pieces.iter().filter(|piece| piece.used != Use::Free).count()
    }

    /// Bytes that are not freed yet.
    pub fn live_bytes(&self) -> usize {
        let state = self.state();
        let live = state.pieces.iter().filter(|piece| piece.used != Use::Free);
        live.map(|piece| piece.layout.size()).sum()
    }

    pub fn allocations(&self) -> u64 {
        self.state().allocations
    }

    /// How many walks over all tasks have started.
    pub fn walks(&self) -> u64 {
        self.state().walks
    }

    /// How often a caller waited.
    pub fn relaxes(&self) -> u64 {
        self.state().relaxes
    }
}

impl State {
    fn release(&mut self, handle: DataHandle, from: Use) {
        let piece = &mut self.pieces[usize::try_from(handle.index()).unwrap()];
        assert_eq!(piece.generation, handle.generation(), "{handle:?} is freed by a stale handle");
        assert_eq!(piece.used, from, "{handle:?} is freed twice");
        piece.used = Use::Free;
        self.free.push(handle.index());
    }
}

impl DataHost for Host {
    type Task = Arc<Task>;

    fn data<'t>(&'t self, task: &'t Arc<Task>) -> &'t TaskData {
        &task.data
    }

    fn is_wanted(&self, task: &Arc<Task>) -> bool {
        self.state().wanted.as_ref().is_none_or(|wanted| wanted.contains(&task.number))
    }

    fn alloc(&self, layout: DataLayout) -> Option<DataHandle> {
        let hook = self.hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook(self);
        }
        let mut state = self.state();
        let number = state.allocations;
        if state.fail_from.is_some_and(|from| number >= from) {
            return None;
        }
        state.allocations += 1;
        let addr = (state.bump + 8).next_multiple_of(layout.align());
        state.bump = addr + layout.size();
        let index = state.free.pop();
        let index = match index {
            Some(index) => {
                let piece = &mut state.pieces[usize::try_from(index).unwrap()];
                let generation = piece.generation.wrapping_add(1);
                *piece = Piece { generation, layout, addr, used: Use::Live };
                index
            }
            None => {
                state.pieces.push(Piece { generation: 1, layout, addr, used: Use::Live });
                u32::try_from(state.pieces.len() - 1).unwrap()
            }
        };
        DataHandle::new(index, state.pieces[usize::try_from(index).unwrap()].generation)
    }

    fn free(&self, handle: DataHandle) {
        self.state().release(handle, Use::Live);
    }

    fn free_after_readers(&self, handle: DataHandle) {
        let mut state = self.state();
        if state.open.is_empty() {
            return state.release(handle, Use::Live);
        }
        let piece = &mut state.pieces[usize::try_from(handle.index()).unwrap()];
        assert_eq!((piece.generation, piece.used), (handle.generation(), Use::Live));
        piece.used = Use::Retired;
        let open = state.open.clone();
        state.waiting.push((handle, open));
    }

    fn next_task(&self, after: Option<&Arc<Task>>) -> Option<Arc<Task>> {
        let mut state = self.state();
        let from = match after {
            Some(task) => task.number + 1,
            None => {
                state.walks += 1;
                0
            }
        };
        state.tasks.range(from..).next().map(|(_, task)| Arc::clone(task))
    }

    fn relax(&self) {
        self.state().relaxes += 1;
        std::thread::yield_now();
    }
}
