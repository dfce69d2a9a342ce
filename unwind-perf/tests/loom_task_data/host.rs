//! The host of the models: two tasks, and memory that knows what is live.

use std::sync::Mutex;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use unwind_perf::task_data::*;

use crate::guarded::Guarded;

/// Two tasks, the second of which appears when it is published, and memory
/// that knows what is live. Allocating and freeing write the memory, and order
/// nothing.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) tasks: [TaskData; 2],
    second_is_listed: AtomicBool,
    live: Mutex<Vec<bool>>,
    memory: [Guarded; 8],
    /// How many pieces of memory there are at a time.
    room: usize,
    /// Which tasks system-wide events are about; `None` for all.
    wanted: Option<[AtomicBool; 2]>,
}

impl Host {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_room(usize::MAX)
    }

    pub(crate) fn with_room(room: usize) -> Arc<Self> {
        Arc::new(Self::make(room, None))
    }

    fn make(room: usize, wanted: Option<[AtomicBool; 2]>) -> Self {
        Self {
            tasks: [TaskData::new(), TaskData::new()],
            second_is_listed: AtomicBool::new(false),
            live: Mutex::default(),
            memory: core::array::from_fn(|_| Guarded::new()),
            room,
            wanted,
        }
    }

    /// Both tasks are listed, and events are about these of them.
    pub(crate) fn with_filter(wanted: [bool; 2]) -> Arc<Self> {
        let host = Self::make(usize::MAX, Some(wanted.map(AtomicBool::new)));
        host.publish_second();
        Arc::new(host)
    }

    /// The one to whom a task belongs moves it. Orders nothing.
    pub(crate) fn want(&self, task: usize, wanted: bool) {
        self.wanted.as_ref().unwrap()[task].store(wanted, Ordering::Relaxed);
    }

    pub(crate) fn publish_second(&self) {
        self.second_is_listed.store(true, Ordering::Release);
    }

    pub(crate) fn live(&self) -> usize {
        self.live.lock().unwrap().iter().filter(|&&live| live).count()
    }

    pub(crate) fn users(&self) -> [u32; 2] {
        [self.tasks[0].users(), self.tasks[1].users()]
    }

    pub(crate) fn memory(&self, handle: DataHandle) -> &Guarded {
        &self.memory[usize::try_from(handle.index()).unwrap()]
    }

    /// Uses the data of a task, which has some.
    pub(crate) fn access(&self, task: usize) {
        self.memory(self.tasks[task].handle().unwrap()).read();
    }
}

impl DataHost for Host {
    type Task = usize;

    fn data<'t>(&'t self, task: &'t usize) -> &'t TaskData {
        &self.tasks[*task]
    }

    fn is_wanted(&self, task: &usize) -> bool {
        let Some(wanted) = &self.wanted else { return true };
        wanted[*task].load(Ordering::Relaxed)
    }

    fn alloc(&self, _: DataLayout) -> Option<DataHandle> {
        if self.live() == self.room {
            return None;
        }
        let mut live = self.live.lock().unwrap();
        live.push(true);
        let handle = DataHandle::new(u32::try_from(live.len() - 1).unwrap(), 1)?;
        self.memory(handle).write();
        Some(handle)
    }

    fn free(&self, handle: DataHandle) {
        let index = usize::try_from(handle.index()).unwrap();
        assert!(std::mem::replace(&mut self.live.lock().unwrap()[index], false), "freed twice");
        self.memory(handle).write();
    }

    fn free_after_readers(&self, handle: DataHandle) {
        self.free(handle);
    }

    fn next_task(&self, after: Option<&usize>) -> Option<usize> {
        match after {
            None => Some(0),
            Some(0) => self.second_is_listed.load(Ordering::Acquire).then_some(1),
            Some(_) => None,
        }
    }

    fn relax(&self) {
        thread::yield_now();
    }
}
