//! The system of the machine: its tasks, and the memory for their data.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use unwind_core::deferred::{ClientId, Host, RequestContext, ScheduleError, TaskKind, TaskState};
use unwind_perf::task_data::{DataHandle, DataHost, DataLayout, TaskData};
use unwind_x86::lbr::{LbrState, LbrTask};

/// A task: its blocks, what it really does, and what is expected of it.
#[derive(Debug)]
pub struct Task {
    pub number: u64,
    pub state: TaskState,
    pub data: TaskData,
    /// Its call stack, outermost call first.
    pub stack: RefCell<Vec<(u64, u64)>>,
    pub in_kernel: Cell<bool>,
    pub exiting: Cell<bool>,
    /// The CPU on which it runs.
    pub on: Cell<Option<usize>>,
    /// Which clients asked in this entry, and whether they were served.
    pub asked: RefCell<BTreeMap<ClientId, bool>>,
    pub cookie: Cell<Option<u64>>,
    /// The works of its events that are queued, by the event's key.
    pub work: RefCell<BTreeSet<u64>>,
    /// How many events of its own hold its data.
    pub attached: Cell<u32>,
    /// How many of its calls, from the inner end, the record has to have.
    pub recorded: Cell<usize>,
    /// Where its record was saved when it left the CPU.
    pub saved: Cell<Option<DataHandle>>,
    /// It was forked when there was no memory for the mark.
    pub unmarked: Cell<bool>,
}

impl Task {
    fn new(number: u64) -> Self {
        Self {
            number,
            state: TaskState::new(),
            data: TaskData::new(),
            stack: RefCell::default(),
            in_kernel: Cell::new(true),
            exiting: Cell::default(),
            on: Cell::default(),
            asked: RefCell::default(),
            cookie: Cell::default(),
            work: RefCell::default(),
            attached: Cell::default(),
            recorded: Cell::default(),
            saved: Cell::default(),
            unmarked: Cell::default(),
        }
    }

    /// Whether an address is one of this task's code.
    pub fn owns(&self, addr: u64) -> bool {
        addr >> 20 == self.number
    }
}

/// Memory for the state of one task.
#[derive(Debug)]
struct Piece {
    generation: u16,
    state: Option<Box<LbrState>>,
}

#[derive(Debug, Default)]
pub struct System {
    pub tasks: RefCell<BTreeMap<u64, Rc<Task>>>,
    created: Cell<u64>,
    pieces: RefCell<Vec<Piece>>,
    free: RefCell<Vec<u32>>,
    /// A context switch reads.
    reading: Cell<bool>,
    retired: RefCell<Vec<DataHandle>>,
    /// How many pieces there may be at a time.
    pub room: Cell<usize>,
    in_use: Cell<usize>,
    pub cannot_schedule: Cell<bool>,
}

impl System {
    pub fn spawn(&self) -> Rc<Task> {
        self.created.set(self.created.get() + 1);
        let task = Rc::new(Task::new(self.created.get()));
        self.tasks.borrow_mut().insert(task.number, Rc::clone(&task));
        task
    }

    /// Pieces of memory that are not free.
    pub fn live(&self) -> usize {
        self.pieces.borrow().iter().filter(|piece| piece.state.is_some()).count()
    }

    /// What a context switch does, in a read section.
    pub fn read_section<T>(&self, body: impl FnOnce() -> T) -> T {
        assert!(!self.reading.replace(true));
        let result = body();
        self.reading.set(false);
        for handle in self.retired.take() {
            self.release(handle);
        }
        result
    }

    /// Works on the state at `handle`, which has to be there.
    pub fn with_state<T>(&self, handle: DataHandle, body: impl FnOnce(LbrTask<'_>) -> T) -> T {
        let mut pieces = self.pieces.borrow_mut();
        let piece = &mut pieces[usize::try_from(handle.index()).unwrap()];
        assert_eq!(piece.generation, handle.generation(), "{handle:?} was freed");
        let state = piece.state.as_mut().expect("it was freed");
        let owner = u64::from(handle.index()) << 16 | u64::from(handle.generation());
        body(LbrTask { owner, state })
    }

    fn release(&self, handle: DataHandle) {
        let mut pieces = self.pieces.borrow_mut();
        let piece = &mut pieces[usize::try_from(handle.index()).unwrap()];
        assert_eq!(piece.generation, handle.generation(), "{handle:?} is freed by a stale handle");
        assert!(piece.state.take().is_some(), "{handle:?} is freed twice");
        self.free.borrow_mut().push(handle.index());
        self.in_use.set(self.in_use.get() - 1);
    }
}

impl DataHost for System {
    type Task = Rc<Task>;

    fn data<'t>(&'t self, task: &'t Rc<Task>) -> &'t TaskData {
        &task.data
    }

    fn alloc(&self, layout: DataLayout) -> Option<DataHandle> {
        assert_eq!(layout, DataLayout::of::<LbrState>());
        assert!(!self.reading.get(), "no allocation in a read section");
        if self.in_use.get() >= self.room.get() {
            return None;
        }
        self.in_use.set(self.in_use.get() + 1);
        let mut pieces = self.pieces.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            pieces.push(Piece { generation: 0, state: None });
            u32::try_from(pieces.len() - 1).unwrap()
        });
        let piece = &mut pieces[usize::try_from(index).unwrap()];
        piece.generation = piece.generation.wrapping_add(1);
        piece.state = Some(Box::default());
        DataHandle::new(index, piece.generation)
    }

    fn free(&self, handle: DataHandle) {
        self.release(handle);
    }

    fn free_after_readers(&self, handle: DataHandle) {
        if self.reading.get() {
            self.retired.borrow_mut().push(handle);
        } else {
            self.release(handle);
        }
    }

    fn next_task(&self, after: Option<&Rc<Task>>) -> Option<Rc<Task>> {
        let from = after.map_or(0, |task| task.number + 1);
        self.tasks.borrow().range(from..).next().map(|(_, task)| Rc::clone(task))
    }

    fn relax(&self) {
        unreachable!("there is no one to wait for: one thread does everything");
    }
}

/// The same for the deferral core.
#[derive(Debug)]
pub struct Hooks(pub Rc<System>);

impl Host for Hooks {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.state
    }

    fn task_kind(&self, task: &Task) -> TaskKind {
        if task.exiting.get() { TaskKind::Exiting } else { TaskKind::User }
    }

    fn in_nmi(&self) -> bool {
        true
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, _: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        if self.0.cannot_schedule.get() { Err(ScheduleError) } else { Ok(()) }
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {
        unreachable!("there is no one to wait for: one thread does everything");
    }
}
