//! A task of the model and of the instance, and what its host answers.

use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use unwind_core::deferred::*;

use crate::sim;

/// What the model knows of a task.
pub(crate) struct ModelTask {
    /// What its user stack looks like.
    pub(crate) stack: u64,
    pub(crate) kind: TaskKind,
    pub(crate) closed: bool,
    /// The cookie of the entry, once someone got it.
    pub(crate) cookie: Option<Cookie>,
    /// Who asked in this entry, and what was their stack.
    pub(crate) asked: BTreeMap<ClientId, u64>,
    pub(crate) served: BTreeSet<ClientId>,
    pub(crate) pending: bool,
    /// Whether this is the second stack of a kernel entry.
    pub(crate) renewed: bool,
    /// The entry whose stack the task's own cache holds.
    pub(crate) cached: Option<Cookie>,
}

impl ModelTask {
    pub(crate) fn new(stack: u64) -> Self {
        Self {
            stack,
            kind: TaskKind::User,
            closed: false,
            cookie: None,
            asked: BTreeMap::new(),
            served: BTreeSet::new(),
            pending: false,
            renewed: false,
            cached: None,
        }
    }

    pub(crate) fn end_entry(&mut self) {
        self.cookie = None;
        self.asked.clear();
        self.served.clear();
        self.renewed = false;
    }

    pub(crate) fn refusal(&self) -> Option<Refusal> {
        match self.kind {
            _ if self.closed => Some(Refusal::Exiting),
            TaskKind::User => None,
            TaskKind::KernelThread => Some(Refusal::KernelThread),
            TaskKind::UserWorker => Some(Refusal::UserWorker),
            TaskKind::Exiting => Some(Refusal::Exiting),
            // `NoUserRegisters`: the model has no other kind.
            _ => Some(Refusal::NoUserRegisters),
        }
    }
}

/// A task of the instance, with its own cache.
pub(crate) struct RealTask {
    pub(crate) state: TaskState,
    pub(crate) kind: Cell<TaskKind>,
    pub(crate) cache: RefCell<sim::Cache>,
}

/// What the hooks answer, and what happens in them.
pub(crate) struct ModelHost {
    pub(crate) cpu: Cell<u32>,
    pub(crate) in_nmi: Cell<bool>,
    pub(crate) schedule_fails: Cell<bool>,
    /// Something that happens when a delivery is being scheduled.
    pub(crate) in_schedule: RefCell<Option<Box<dyn Fn()>>>,
}

impl Host for ModelHost {
    type Task = RealTask;

    fn state<'t>(&self, task: &'t RealTask) -> &'t TaskState {
        &task.state
    }

    fn task_kind(&self, task: &RealTask) -> TaskKind {
        task.kind.get()
    }

    fn in_nmi(&self) -> bool {
        self.in_nmi.get()
    }

    fn cpu(&self) -> u32 {
        self.cpu.get()
    }

    fn schedule(&self, _: &RealTask, _: RequestContext) -> Result<(), ScheduleError> {
        let action = self.in_schedule.borrow_mut().take();
        if let Some(action) = action {
            action();
        }
        if self.schedule_fails.get() { Err(ScheduleError) } else { Ok(()) }
    }

    fn clock(&self) -> u64 {
        7
    }

    fn relax(&self) {
        panic!("nothing runs that a cancellation could wait for");
    }
}

/// A random number that is used up bit by bit.
#[derive(Clone, Copy)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn pick(&mut self, sides: usize) -> usize {
        let sides = sides as u64;
        let side = self.0 % sides;
        self.0 /= sides;
        side as usize
    }

    pub(crate) fn other(self) -> Self {
        Self(self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) >> 7)
    }
}
