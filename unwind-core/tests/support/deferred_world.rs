//! A plain model of everything that can happen to deferred requests, beside
//! the instance.
//!
//! The model knows no bits, slots or epochs: it has sets of clients and says
//! what each call must return. Tasks, clients and kernel entries are never
//! reused in it.

extern crate alloc;

#[path = "deferred_task.rs"]
mod deferred_task;

use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashSet;

use alloc::collections::BTreeSet;
use alloc::rc::Rc;

use unwind_core::Trace;
use unwind_core::deferred::*;

pub(crate) use self::deferred_task::Dice;
use self::deferred_task::{ModelHost, ModelTask, RealTask};
use crate::sim;

/// The instance and the model side by side.
pub(crate) struct World<C> {
    unwind: DeferredUnwind<ModelHost, C>,
    real: RefCell<Vec<Rc<RealTask>>>,
    model: RefCell<Vec<ModelTask>>,
    /// All clients that ever were, and which are registered.
    clients: RefCell<Vec<ClientId>>,
    live: RefCell<BTreeSet<ClientId>>,
    cookies: RefCell<HashSet<Cookie>>,
    dropped: Cell<u64>,
    next_stack: Cell<u64>,
    /// Deliveries on this way out of the kernel.
    rounds: Cell<u32>,
}

pub(crate) static STEPS_DONE: AtomicU64 = AtomicU64::new(0);
pub(crate) static REQUESTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
pub(crate) static CALLS: AtomicU64 = AtomicU64::new(0);

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<C: CookieSource + 'static> World<C> {
    pub(crate) fn new(cookies: C) -> Rc<Self> {
        let host = ModelHost {
            cpu: Cell::new(0),
            in_nmi: Cell::new(false),
            schedule_fails: Cell::new(false),
            in_schedule: RefCell::new(None),
        };
        let world = Rc::new(Self {
            unwind: DeferredUnwind::new(host, cookies),
            real: RefCell::default(),
            model: RefCell::default(),
            clients: RefCell::default(),
            live: RefCell::default(),
            cookies: RefCell::default(),
            dropped: Cell::new(0),
            next_stack: Cell::new(1),
            rounds: Cell::new(0),
        });
        (0..3).for_each(|_| world.fork());
        (0..3).for_each(|_| world.register());
        world
    }

    fn real(&self, task: usize) -> Rc<RealTask> {
        Rc::clone(&self.real.borrow()[task])
    }

    fn fresh_stack(&self) -> u64 {
        self.next_stack.replace(self.next_stack.get() + 1)
    }

    fn fork(&self) {
        self.real.borrow_mut().push(Rc::new(RealTask {
            state: TaskState::new(),
            kind: Cell::new(TaskKind::User),
            cache: RefCell::new(sim::Cache::new()),
        }));
        self.model.borrow_mut().push(ModelTask::new(self.fresh_stack()));
    }

    fn register(&self) {
        let full = self.live.borrow().len() == MAX_CLIENTS;
        match self.unwind.register() {
            Ok(client) => {
                assert!(!full);
                assert!(!self.clients.borrow().contains(&client), "an id is never reused");
                self.clients.borrow_mut().push(client);
                self.live.borrow_mut().insert(client);
            }
            Err(TooManyClients) => assert!(full),
        }
    }

    fn cancel(&self, current: Option<(usize, ClientId)>, client: ClientId) {
        let expected = if !self.live.borrow().contains(&client) {
            Err(CancelError::UnknownClient)
        } else if current.is_some_and(|(_, delivering)| delivering == client) {
            Err(CancelError::OwnDelivery)
        } else {
            Ok(())
        };
        let task = current.map(|(task, _)| self.real(task));
        assert_eq!(self.unwind.cancel(task.as_deref(), client), expected);
        if expected.is_ok() {
            self.live.borrow_mut().remove(&client);
        }
    }

    /// Checks a cookie that was given out.
    fn check_cookie(&self, task: usize, cookie: Cookie) {
        let known = &mut self.model.borrow_mut()[task].cookie;
        match *known {
            Some(known) => assert_eq!(cookie, known, "one entry, one cookie"),
            None => {
                assert!(self.cookies.borrow_mut().insert(cookie), "{cookie:?} was given before");
                *known = Some(cookie);
            }
        }
    }

    fn request(&self, task: usize, client: ClientId, nmi: bool) {
        let outer = self.unwind.host().in_nmi.replace(nmi);
        // What an NMI does meanwhile is in the model when this returns.
        let outcome = self.unwind.request(&self.real(task), client);
        self.unwind.host().in_nmi.set(outer);
        self.check_outcome(task, client, outcome);
    }

    /// The kernel changes the user stack, and the client asks for it as it is then.
    fn request_anew(&self, task: usize, client: ClientId) {
        let outcome = self.unwind.request_anew(&self.real(task), client);
        let (live, stack) = (self.live.borrow().contains(&client), self.fresh_stack());
        {
            let task = &mut self.model.borrow_mut()[task];
            let is_served = task.asked.contains_key(&client) && task.served.contains(&client);
            if live && is_served && !task.closed && !task.pending && !task.renewed {
                task.end_entry();
                task.renewed = true;
                task.stack = stack;
            }
        }
        self.check_outcome(task, client, outcome);
    }

    fn check_outcome(&self, task: usize, client: ClientId, outcome: RequestOutcome) {
        let fails = self.unwind.host().schedule_fails.get();
        let expected = {
            let task = &self.model.borrow()[task];
            if task.closed {
                Err(Refusal::Exiting)
            } else if !self.live.borrow().contains(&client) {
                Err(Refusal::UnknownClient)
            } else if task.asked.contains_key(&client) {
                Ok(if task.served.contains(&client) { 2 } else { 1 })
            } else if let Some(refusal) = task.refusal() {
                Err(refusal)
            } else if !task.pending && fails {
                Err(Refusal::ScheduleFailed)
            } else {
                Ok(0)
            }
        };
        let found = match outcome {
            RequestOutcome::Queued(_) => Ok(0),
            RequestOutcome::AlreadyPending(_) => Ok(1),
            RequestOutcome::AlreadyExecuted(_) => Ok(2),
            RequestOutcome::Refused(refusal) => Err(refusal),
        };
        assert_eq!(found, expected);
        count(&REQUESTS[found.unwrap_or(3)]);
        if let Some(cookie) = outcome.cookie() {
            self.check_cookie(task, cookie);
        }
        if expected == Ok(0) {
            let task = &mut self.model.borrow_mut()[task];
            task.asked.insert(client, task.stack);
            task.pending = true;
        }
    }

    fn cookie(&self, task: usize) {
        let result = self.unwind.cookie(&self.real(task));
        let refusal = self.model.borrow()[task].refusal();
        let fails = self.unwind.host().schedule_fails.get();
        let fresh = self.model.borrow()[task].cookie.is_none();
        match (result, refusal) {
            (Err(Refusal::ScheduleFailed), None) => assert!(fails && fresh),
            (Ok(cookie), None) => self.check_cookie(task, cookie),
            (result, refusal) => assert_eq!(result.err(), refusal),
        }
    }

    fn some_client(&self, dice: &mut Dice) -> ClientId {
        // The recent ones: many are registered, some are not.
        let clients = self.clients.borrow();
        let recent = clients.len().min(40);
        clients[clients.len() - 1 - dice.pick(recent)]
    }

    /// Something that happens while a task is in the middle of something else.
    fn meanwhile(&self, task: usize, delivering: Option<ClientId>, dice: &mut Dice) {
        if self.is_calm() {
            return;
        }
        let client = self.some_client(dice);
        let other = dice.pick(self.real.borrow().len());
        match dice.pick(8) {
            0 | 1 => self.request(task, client, true),
            2 => self.request(task, client, false),
            3 => self.request(other, client, true),
            4 => self.register(),
            5 => self.cancel(delivering.map(|it| (task, it)), client),
            6 => self.cookie(task),
            _ => {}
        }
    }

    /// Has an NMI come while the delivery is being scheduled.
    fn nmi_in_schedule(self: &Rc<Self>, task: usize, dice: Dice) {
        let world = Rc::clone(self);
        *self.unwind.host().in_schedule.borrow_mut() = Some(Box::new(move || {
            let client = world.some_client(&mut dice.clone());
            world.request(task, client, true);
        }));
    }

    /// The clients that a round calls, in the order of their slots.
    fn round(&self, task: usize, recipients: Recipients) -> Vec<ClientId> {
        let task = &mut self.model.borrow_mut()[task];
        assert!(task.pending);
        task.pending = false;
        let mut todo: BTreeSet<ClientId> = task.asked.keys().copied().collect();
        if recipients == Recipients::AllClients {
            todo.extend(self.live.borrow().iter());
        }
        let mut todo: Vec<ClientId> =
            todo.into_iter().filter(|client| !task.served.contains(client)).collect();
        // The last owner of a slot hides those before it, who are gone.
        todo.sort_by_key(|client| (client.to_bits() & 31, client.registration()));
        todo
    }

    /// Takes the next client that is still registered out of a round.
    fn next_of(&self, task: usize, todo: &mut Vec<ClientId>) -> Option<ClientId> {
        while !todo.is_empty() {
            let client = todo.remove(0);
            if self.live.borrow().contains(&client) {
                return Some(client);
            }
            self.drop_request(task, client);
        }
        None
    }

    fn drop_request(&self, task: usize, client: ClientId) {
        let model = &mut self.model.borrow_mut()[task];
        if model.asked.remove(&client).is_some() {
            self.dropped.set(self.dropped.get() + 1);
        }
    }

    fn deliver(self: &Rc<Self>, task: usize, recipients: Recipients, mut dice: Dice) {
        let real = self.real(task);
        let none = dice.pick(6) == 0;
        let stops = dice.pick(8) == 0 && !self.is_calm();
        let stop_after = if stops { dice.pick(3) } else { usize::MAX };
        let mut cache = real.cache.borrow_mut();
        let entry = self.model.borrow()[task].cookie;
        let walk_dice = Cell::new(Dice(dice.0));
        let (being_called, walked) = (Cell::new(None), Cell::new(false));
        let walk = |trace: &mut Trace| {
            assert!(!walked.replace(true), "walked twice");
            let stack = self.model.borrow()[task].stack;
            let mut dice = walk_dice.get();
            self.meanwhile(task, being_called.get(), &mut dice);
            sim::walk_frames(&[stack], trace);
        };
        let cache: &mut UnwindCache = &mut *cache;
        let lent = (!none).then_some(cache);
        let mut delivery = self.unwind.deliver(&real, recipients, lent, walk);
        let was_pending = self.model.borrow()[task].pending;
        let mut todo = Vec::new();
        let mut calls = 0;
        // It does not stop where only cancelled clients are left: whether the
        // task is pending then is not for the model to say.
        let may_stop = |todo: &[ClientId]| {
            todo.is_empty() || todo.iter().any(|it| self.live.borrow().contains(it))
        };
        while was_pending && !(calls >= stop_after && may_stop(&todo)) {
            let expected = loop {
                if let Some(client) = self.next_of(task, &mut todo) {
                    break Some(client);
                }
                if !self.model.borrow()[task].pending {
                    break None;
                }
                todo = self.round(task, recipients);
            };
            being_called.set(expected);
            let Some(guard) = delivery.next() else {
                assert_eq!(expected, None);
                break;
            };
            assert_eq!(Some(guard.client()), expected);
            calls += 1;
            count(&CALLS);
            self.check_call(task, &guard, none);
            {
                let model = &mut self.model.borrow_mut()[task];
                let stack = model.stack;
                model.asked.entry(guard.client()).or_insert(stack);
                model.served.insert(guard.client());
                model.cached = if none { model.cached } else { entry };
            }
            self.meanwhile(task, expected, &mut dice);
        }
        if !was_pending {
            assert!(delivery.next().is_none(), "nothing was pending");
        }
        drop(delivery);
        let model = &mut self.model.borrow_mut()[task];
        model.pending |= !todo.is_empty();
    }

    fn check_call(&self, task: usize, guard: &DeliveryGuard<'_>, none: bool) {
        let model = &self.model.borrow()[task];
        assert_eq!(Some(guard.cookie()), model.cookie);
        let stack = model.asked.get(&guard.client()).copied().unwrap_or(model.stack);
        assert_eq!(stack, model.stack, "user code has not run since the request");
        if none {
            assert_eq!(guard.outcome(), SampleOutcome::StackLost);
        } else {
            assert_eq!(guard.outcome(), SampleOutcome::Matched);
            assert_eq!(sim::pcs_of(guard.trace().unwrap()), [stack]);
        }
    }

    fn abandon(&self, task: usize, lost: LossReason) {
        let real = self.real(task);
        let mut abandonment = self.unwind.abandon(&real, lost);
        let mut todo = Vec::new();
        if self.model.borrow()[task].pending {
            todo = self.round(task, Recipients::Requesters);
        }
        while let Some(client) = self.next_of(task, &mut todo) {
            let guard = abandonment.next().unwrap();
            assert_eq!(guard.client(), client);
            assert!(guard.trace().is_none());
            self.model.borrow_mut()[task].served.insert(client);
        }
        assert!(abandonment.next().is_none());
    }

    /// The way to user code, which then runs.
    fn return_to_user(self: &Rc<Self>, task: usize, mut dice: Dice) {
        loop {
            let real = self.real(task);
            let pending = self.model.borrow()[task].pending;
            let expected = if pending { UserReturn::Pending } else { UserReturn::Ready };
            assert_eq!(self.unwind.user_return(&real), expected);
            if !pending {
                break;
            }
            // Those that went without a delivery are told at the next return.
            let recipients = [Recipients::Requesters, Recipients::AllClients][dice.pick(2)];
            self.deliver(task, recipients, dice);
            dice = dice.other();
            self.calm_down();
        }
        self.rounds.set(0);
        self.end_entry(task);
    }

    /// Counts a delivery on one way out. After the last of them nothing comes between,
    /// so that each way out ends, whatever the dice.
    fn calm_down(&self) {
        self.rounds.set(self.rounds.get() + 1);
    }

    fn is_calm(&self) -> bool {
        self.rounds.get() > 16
    }

    fn end_entry(&self, task: usize) {
        let stack = self.fresh_stack();
        let model = &mut self.model.borrow_mut()[task];
        // Marks of cancelled clients that no round came by.
        assert!(model.asked.keys().all(|client| model.served.contains(client)));
        model.end_entry();
        model.stack = stack;
    }

    fn exec(self: &Rc<Self>, task: usize, mut dice: Dice) {
        let real = self.real(task);
        self.unwind.close(&real);
        self.model.borrow_mut()[task].closed = true;
        if dice.pick(2) == 0 {
            self.abandon(task, LossReason::Exec);
        }
        while self.unwind.reopen(&real) == UserReturn::Pending {
            assert!(self.model.borrow()[task].pending);
            self.deliver(task, Recipients::Requesters, dice);
            dice = dice.other();
            self.calm_down();
        }
        self.rounds.set(0);
        assert!(!self.model.borrow()[task].pending);
        self.end_entry(task);
        self.model.borrow_mut()[task].closed = false;
    }

    fn exit(self: &Rc<Self>, task: usize, mut dice: Dice) {
        self.unwind.close(&self.real(task));
        self.model.borrow_mut()[task].closed = true;
        if dice.pick(2) == 0 {
            self.deliver(task, Recipients::Requesters, dice);
        }
        self.abandon(task, LossReason::TaskGone);
        assert!(!self.model.borrow()[task].pending);
        self.end_entry(task);
        self.real.borrow_mut().swap_remove(task);
        self.model.borrow_mut().swap_remove(task);
    }

    pub(crate) fn step(self: &Rc<Self>, mut dice: Dice) {
        count(&STEPS_DONE);
        let task = dice.pick(self.real.borrow().len());
        let client = self.some_client(&mut dice);
        match dice.pick(21) {
            20 => self.request_anew(task, client),
            0..5 => self.request(task, client, false),
            5..7 => self.request(task, client, true),
            7 => {
                self.nmi_in_schedule(task, Dice(dice.0));
                self.request(task, client, false);
                *self.unwind.host().in_schedule.borrow_mut() = None;
            }
            8 => self.cookie(task),
            9 | 10 => {
                let recipients = [Recipients::Requesters, Recipients::AllClients][dice.pick(4) / 3];
                self.deliver(task, recipients, dice);
            }
            11 | 12 => self.return_to_user(task, dice),
            13 => (0..=dice.pick(4)).for_each(|_| self.register()),
            14 => self.cancel(None, client),
            15 => self.unwind.host().cpu.set(dice.pick(4) as u32),
            16 if self.real.borrow().len() < 6 => self.fork(),
            17 if self.real.borrow().len() > 1 => match dice.pick(3) {
                0 => self.exit(task, dice),
                _ => self.exec(task, dice),
            },
            18 => self.set_kind(task, &mut dice),
            19 => {
                let fails = dice.pick(6) == 0;
                self.unwind.host().schedule_fails.set(fails);
            }
            _ => {}
        }
    }

    fn set_kind(&self, task: usize, dice: &mut Dice) {
        let kind = match dice.pick(24) {
            0 => TaskKind::KernelThread,
            1 => TaskKind::UserWorker,
            2 => TaskKind::Exiting,
            3 => TaskKind::NoUserRegisters,
            _ => TaskKind::User,
        };
        self.real(task).kind.set(kind);
        self.model.borrow_mut()[task].kind = kind;
    }

    /// Everything comes to its end.
    pub(crate) fn finish(self: &Rc<Self>) {
        self.unwind.host().schedule_fails.set(false);
        for task in 0..self.real.borrow().len() {
            self.return_to_user(task, Dice(0x1234_5678_9abc_def0));
        }
        assert_eq!(self.unwind.drops().client_cancelled, self.dropped.get());
        let live = self.live.borrow().clone();
        for client in live {
            self.cancel(None, client);
        }
        assert!(format!("{:?}", self.unwind).contains("clients: {}"));
    }
}
