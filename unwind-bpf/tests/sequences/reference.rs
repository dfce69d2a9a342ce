//! The same events, seen by [`DeferredUnwind`], and what the program has to write of them.
//!
//! # Where both differ by design
//!
//! - The program walks a sample of user code at once if it can, and one of a task that begins to wait. This
//!   is no request: nothing is pending then.
//!   Where the kernel cannot defer, a request is refused and the walk is the refused sampler's own.
//! - No hook tells the program of a return to user code. Its entry ends where the kernel releases the task
//!   work, so [`user_return`](DeferredUnwind::user_return) is called there.
//! - No hook tells it of an exec before the new program is there. A request stays pending over it, for later
//!   samples, too, and the delivery finds out. So a task is not closed by an exec, and what was requested with
//!   the old program's registers or memory is abandoned in place of the delivery.
//! - It finds a task's block by the task's number. A thread that executes gets its leader's, so it begins with
//!   a new block, and what it has requested before is abandoned when the new program begins. Until then a new
//!   task with its old number is refused: the kernel has one task work for a block.

use core::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use unwind_core::deferred::*;

use crate::event::{Code, Event, IO_WORKER, KERNEL_THREAD, Within};
use crate::program::Written;

/// A task's block, which is found by its number.
#[derive(Debug)]
pub struct Block {
    state: TaskState,
    id: u64,
    number: u32,
    kind: Cell<TaskKind>,
    /// When its delivery was scheduled, if one is.
    work: Cell<Option<u64>>,
    /// The code that its request is about.
    requested: Cell<Option<Code>>,
    /// Whether the program of that is gone.
    is_replaced: Cell<bool>,
}

/// The kernel around the library.
#[derive(Debug, Default)]
struct Kernel {
    refusals: Cell<u32>,
    is_old: Cell<bool>,
    scheduled: Cell<u64>,
    /// Whose task work is not released, by number.
    busy: RefCell<HashMap<u32, u64>>,
}

impl Kernel {
    fn is_busy_with_another(&self, block: &Block) -> bool {
        self.busy.borrow().get(&block.number).is_some_and(|&id| id != block.id)
    }
}

impl Host for Kernel {
    type Task = Block;

    fn state<'t>(&self, task: &'t Block) -> &'t TaskState {
        &task.state
    }

    fn task_kind(&self, task: &Block) -> TaskKind {
        task.kind.get()
    }

    fn in_nmi(&self) -> bool {
        true
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, task: &Block, _: RequestContext) -> Result<(), ScheduleError> {
        if self.is_old.get() || self.is_busy_with_another(task) {
            return Err(ScheduleError);
        }
        if let Some(left) = self.refusals.get().checked_sub(1) {
            self.refusals.set(left);
            return Err(ScheduleError);
        }
        self.scheduled.set(self.scheduled.get() + 1);
        task.work.set(Some(self.scheduled.get()));
        self.busy.borrow_mut().insert(task.number, task.id);
        Ok(())
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {}
}

/// A task, or what is left of one.
#[derive(Clone, Debug)]
struct Task {
    block: Rc<Block>,
    /// Those of the numbers that it had before.
    former: Vec<Rc<Block>>,
    code: Code,
    /// Whether its memory is another program's and its registers are not yet.
    is_between: bool,
}

/// What the program has to write of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleExpected {
    WithoutUser,
    Refused,
    /// Walked at once.
    Walked,
    Granted(Cookie),
}

/// What it has to write of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackExpected {
    /// Of the sample with this index, walked at once.
    Walked(usize, Code),
    Delivered(Cookie, Code),
    Abandoned(Cookie, SampleOutcome),
}

/// The library at work, beside what the program has written.
#[derive(Debug)]
pub struct Reference<'w> {
    unwind: Rc<DeferredUnwind<Kernel, CounterCookies>>,
    client: ClientId,
    written: &'w Written,
    tasks: HashMap<usize, Task>,
    current: usize,
    blocks: u64,
    /// With the task's number, and whether it is of user code.
    pub samples: Vec<(u32, bool, SampleExpected)>,
    pub stacks: Vec<StackExpected>,
    pub queued: u64,
    pub shared: u64,
    pub deliveries: u64,
}

impl<'w> Reference<'w> {
    pub fn new(written: &'w Written) -> Self {
        let unwind = DeferredUnwind::new(Kernel::default(), CounterCookies::new());
        let client = unwind.register().unwrap();
        Self {
            unwind: Rc::new(unwind),
            client,
            written,
            tasks: HashMap::new(),
            current: 0,
            blocks: 0,
            samples: Vec::new(),
            stacks: Vec::new(),
            queued: 0,
            shared: 0,
            deliveries: 0,
        }
    }

    pub fn drops(&self) -> DropCounts {
        self.unwind.drops()
    }

    pub fn is_old(&self) -> bool {
        self.unwind.host().is_old.get()
    }

    fn task(&mut self) -> &mut Task {
        self.tasks.get_mut(&self.current).unwrap()
    }

    fn block(&mut self, number: u32, kind: TaskKind) -> Rc<Block> {
        self.blocks += 1;
        Rc::new(Block {
            state: TaskState::new(),
            id: self.blocks,
            number,
            kind: Cell::new(kind),
            work: Cell::new(None),
            requested: Cell::new(None),
            is_replaced: Cell::new(false),
        })
    }

    pub fn see(&mut self, event: &Event) {
        match event {
            Event::Task { slot, number, flags, .. } => {
                let kind = match *flags {
                    KERNEL_THREAD => TaskKind::KernelThread,
                    IO_WORKER => TaskKind::UserWorker,
                    _ => TaskKind::User,
                };
                let block = self.block(*number, kind);
                let code = Code { pc: 0, depth: 0 };
                let task = Task { block, former: Vec::new(), code, is_between: false };
                self.tasks.insert(*slot, task);
            }
            Event::Run(slot) => self.current = *slot,
            Event::User(code) => {
                self.task().code = *code;
                self.sample(true, true);
            }
            Event::Call { code, .. } => self.task().code = *code,
            Event::Kernel => self.sample(false, false),
            Event::Wait => self.sample(false, true),
            Event::Registers(pc) => {
                let task = self.task();
                task.code.pc = *pc;
                if core::mem::take(&mut task.is_between) {
                    self.forget_former_numbers();
                }
            }
            Event::Memory { .. } => {
                let task = self.task();
                task.is_between = true;
                task.block.is_replaced.set(task.block.work.get().is_some());
            }
            Event::Number(number) => {
                let block = self.block(*number, TaskKind::User);
                let task = self.task();
                let former = core::mem::replace(&mut task.block, block);
                former.is_replaced.set(true);
                task.former.push(former);
            }
            Event::Return { within, busy, late } => self.user_return(within.as_ref(), *busy, *late),
            Event::Exit { within } => self.exit(within.as_ref()),
            Event::Refuse(requests) => self.unwind.host().refusals.set(*requests),
            Event::Old => self.unwind.host().is_old.set(true),
            Event::Cpu(_) | Event::Full { .. } | Event::Absent(_) => {}
        }
    }

    fn sample(&mut self, is_user: bool, may_walk: bool) {
        let Task { block, code, is_between, .. } = self.task().clone();
        let index = self.samples.len();
        let is_walked = self.written.samples.get(index).is_some_and(|it| it.is_walked);
        // A walk at once needs no task work: another task's may not be released yet.
        let is_idle = block.work.get().is_none();
        let expected = if may_walk && is_walked && is_idle && block.kind.get() == TaskKind::User {
            if is_user {
                assert_eq!(self.unwind.user_return(&block), UserReturn::Ready);
            }
            SampleExpected::Walked
        } else {
            match self.unwind.request(&block, self.client) {
                RequestOutcome::Queued(cookie) => {
                    self.queued += 1;
                    block.requested.set(Some(code));
                    block.is_replaced.set(is_between);
                    SampleExpected::Granted(cookie)
                }
                RequestOutcome::AlreadyPending(cookie)
                | RequestOutcome::AlreadyExecuted(cookie) => {
                    self.shared += 1;
                    SampleExpected::Granted(cookie)
                }
                RequestOutcome::Refused(Refusal::ScheduleFailed) if self.is_old() => {
                    SampleExpected::Walked
                }
                RequestOutcome::Refused(Refusal::ScheduleFailed) => SampleExpected::Refused,
                RequestOutcome::Refused(_) => SampleExpected::WithoutUser,
            }
        };
        if expected == SampleExpected::Walked {
            self.stacks.push(StackExpected::Walked(index, code));
        }
        self.samples.push((block.number, is_user, expected));
    }

    fn forget_former_numbers(&mut self) {
        for block in core::mem::take(&mut self.task().former) {
            if block.work.get().is_some() {
                self.deliver(&block, Some(LossReason::Exec), None);
                self.release(&block);
            }
        }
    }

    fn see_within(&mut self, within: Option<&Within>) {
        let current = self.current;
        for event in within.iter().flat_map(|it| &it.events) {
            self.see(event);
        }
        self.current = current;
    }

    fn samples(&mut self, number: u32) {
        for _ in 0..number {
            self.sample(false, false);
        }
    }

    /// The block whose delivery was scheduled last.
    fn scheduled(&mut self) -> Option<Rc<Block>> {
        let task = self.task();
        let blocks = task.former.iter().chain([&task.block]);
        blocks.filter(|it| it.work.get().is_some()).max_by_key(|it| it.work.get()).cloned()
    }

    fn user_return(&mut self, within: Option<&Within>, busy: u32, late: u32) {
        let (mut within, mut busy, mut late) = (within, busy, late);
        loop {
            let Some(block) = self.scheduled() else {
                if within.is_none() {
                    return;
                }
                self.see_within(within.take());
                continue;
            };
            let lost = block.is_replaced.get().then_some(LossReason::Exec);
            self.deliveries += 1;
            self.deliver(&block, lost, within.take());
            self.samples(core::mem::take(&mut busy));
            self.release(&block);
            self.samples(core::mem::take(&mut late));
        }
    }

    fn release(&mut self, block: &Block) {
        assert_eq!(self.unwind.user_return(block), UserReturn::Ready);
        self.unwind.host().busy.borrow_mut().remove(&block.number);
    }

    /// Makes a delivery, in which other events come.
    fn deliver(&mut self, block: &Block, lost: Option<LossReason>, mut within: Option<&Within>) {
        block.work.set(None);
        let unwind = Rc::clone(&self.unwind);
        let code = block.requested.get().unwrap();
        let mut cache = UnwindCache::<[_; 4]>::new();
        if let Some(reason) = lost {
            let mut delivery = unwind.abandon(block, reason);
            while let Some(guard) = delivery.next() {
                self.call(&guard, code, within.take());
            }
        } else {
            let requesters = Recipients::Requesters;
            let mut delivery = unwind.deliver(block, requesters, Some(&mut cache), |_| {});
            while let Some(guard) = delivery.next() {
                self.call(&guard, code, within.take());
            }
        }
    }

    fn call(&mut self, guard: &DeliveryGuard<'_>, code: Code, within: Option<&Within>) {
        self.see_within(within);
        self.stacks.push(match guard.outcome() {
            lost @ (SampleOutcome::Exec | SampleOutcome::TaskGone) => {
                StackExpected::Abandoned(guard.cookie(), lost)
            }
            _ => StackExpected::Delivered(guard.cookie(), code),
        });
    }

    fn exit(&mut self, within: Option<&Within>) {
        let Task { block, .. } = self.task().clone();
        block.kind.set(TaskKind::Exiting);
        self.unwind.close(&block);
        self.see_within(within);
        if block.work.get().is_some() {
            self.deliver(&block, Some(LossReason::TaskGone), None);
            self.unwind.host().busy.borrow_mut().remove(&block.number);
        }
        while let Some(block) = self.scheduled() {
            self.deliveries += 1;
            self.deliver(&block, Some(LossReason::TaskGone), None);
            self.release(&block);
        }
    }
}
