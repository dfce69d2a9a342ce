//! Models of one CPU: what happens if an interrupt or an NMI comes between any
//! two atomic accesses, and another one into that.
//!
//! A model runs a few steps of a [`Machine`] once for every place at which its
//! handlers can break in (see [`interrupt_everywhere`]) and compares what the
//! clients were told with what they got. A handler may also stand for another
//! CPU that registers or cancels clients in the meantime.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a model that goes wrong fails"
)]

extern crate alloc;

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::convert::Infallible;

use test_support::interrupt::point;

use super::*;
use crate::trace::Provenance;
use crate::{End, FramePc, Origin, PackedFrame, Trace, VirtAddr};

mod cookies;
mod life;
mod old_cpu;
mod renewal;
mod requests;
mod returns;
mod slots;

/// A host with one CPU and one task.
pub(super) struct ModelHost {
    pub(super) in_nmi: Cell<bool>,
    /// Something was scheduled since the exit path looked.
    pub(super) scheduled: Cell<bool>,
    /// How many of the next calls to `schedule` fail.
    pub(super) schedule_fails: Cell<u32>,
    pub(super) cpu: Cell<u32>,
    pub(super) clock: Cell<u64>,
}

/// The task of the machine.
pub(super) struct ModelTask {
    pub(super) state: TaskState,
    pub(super) kind: Cell<TaskKind>,
    /// What its user stack looks like: changes whenever user code runs.
    pub(super) stack: Cell<u64>,
}

impl ModelTask {
    pub(super) fn new(stack: u64) -> Self {
        let kind = Cell::new(TaskKind::User);
        Self { state: TaskState::new(), kind, stack: Cell::new(stack) }
    }
}

impl ModelHost {
    fn new() -> Self {
        Self {
            in_nmi: Cell::new(false),
            scheduled: Cell::new(false),
            schedule_fails: Cell::new(0),
            cpu: Cell::new(5),
            clock: Cell::new(0),
        }
    }
}

impl Host for ModelHost {
    type Task = ModelTask;

    fn state<'t>(&self, task: &'t ModelTask) -> &'t TaskState {
        &task.state
    }

    fn task_kind(&self, task: &ModelTask) -> TaskKind {
        task.kind.get()
    }

    fn in_nmi(&self) -> bool {
        self.in_nmi.get()
    }

    fn cpu(&self) -> u32 {
        self.cpu.get()
    }

    fn schedule(&self, _: &ModelTask, _: RequestContext) -> Result<(), ScheduleError> {
        // It may be interrupted as anything else.
        point();
        if let Some(left) = self.schedule_fails.get().checked_sub(1) {
            self.schedule_fails.set(left);
            return Err(ScheduleError);
        }
        self.scheduled.set(true);
        Ok(())
    }

    fn clock(&self) -> u64 {
        self.clock.get()
    }

    fn relax(&self) {
        panic!("nothing runs that a cancellation could wait for");
    }
}

/// What happened, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Asked {
        client: ClientId,
        outcome: RequestOutcome,
        stack: u64,
    },
    Cookie {
        cookie: Cookie,
        stack: u64,
    },
    Walked {
        stack: u64,
    },
    Called {
        client: ClientId,
        cookie: Cookie,
        end: SampleOutcome,
        stack: Option<u64>,
    },
    /// No delivery to the client starts any more.
    Cancelling {
        client: ClientId,
    },
    /// And none runs.
    Cancelled {
        client: ClientId,
    },
}

/// One CPU, one task, and a log.
pub(super) struct Machine<C = SerialCookies> {
    pub(super) unwind: DeferredUnwind<ModelHost, C>,
    pub(super) task: ModelTask,
    pub(super) cache: RefCell<UnwindCache<[PackedFrame; 4]>>,
    pub(super) clients: RefCell<Vec<ClientId>>,
    pub(super) log: RefCell<Vec<Event>>,
}

impl<C: CookieSource> Machine<C> {
    pub(super) fn with_cookies(cookies: C, clients: usize) -> Self {
        let machine = Self {
            unwind: DeferredUnwind::new(ModelHost::new(), cookies),
            task: ModelTask::new(1),
            cache: RefCell::new(UnwindCache::new()),
            clients: RefCell::new(Vec::new()),
            log: RefCell::new(Vec::new()),
        };
        (0..clients).for_each(|_| machine.register());
        machine
    }

    /// Registers the next client.
    pub(super) fn register(&self) {
        let client = self.unwind.register().unwrap();
        self.clients.borrow_mut().push(client);
    }

    pub(super) fn client(&self, index: usize) -> ClientId {
        self.clients.borrow()[index]
    }

    /// Cancels a client as another CPU would. If a delivery to it runs, that
    /// CPU waits for the rest of the model; returns whether it is done.
    pub(super) fn cancel(&self, index: usize) -> bool {
        let client = self.client(index);
        assert!(self.unwind.clients().start_cancel(client));
        self.log(Event::Cancelling { client });
        let waits = self.unwind.clients().is_running(client);
        if !waits {
            self.unwind.clients().finish_cancel(client);
            self.log(Event::Cancelled { client });
        }
        !waits
    }

    pub(super) fn log(&self, event: Event) {
        self.log.borrow_mut().push(event);
    }

    /// A request of the client, if it is registered already.
    pub(super) fn request(&self, index: usize) {
        let Some(client) = self.clients.borrow().get(index).copied() else { return };
        let outcome = self.unwind.request(&self.task, client);
        self.log(Event::Asked { client, outcome, stack: self.task.stack.get() });
    }

    /// The kernel changes the user stack, as by a signal frame, and the client asks again.
    pub(super) fn request_anew(&self, index: usize) {
        let client = self.client(index);
        let outcome = self.unwind.request_anew(&self.task, client);
        self.log(Event::Asked { client, outcome, stack: self.task.stack.get() });
    }

    pub(super) fn cookie(&self) {
        if let Ok(cookie) = self.unwind.cookie(&self.task) {
            self.log(Event::Cookie { cookie, stack: self.task.stack.get() });
        }
    }

    pub(super) fn nmi(&self, handler: impl FnOnce(&Self)) {
        let outer = self.unwind.host().in_nmi.replace(true);
        handler(self);
        self.unwind.host().in_nmi.set(outer);
    }

    fn walk(&self, trace: &mut Trace) {
        let stack = self.task.stack.get();
        let pc = FramePc::Exact(VirtAddr::new(stack));
        assert!(trace.push(pc.addr(), Provenance::new(Origin::Registers, pc)));
        trace.finish(End::<Infallible>::Outermost);
        self.log(Event::Walked { stack });
    }

    pub(super) fn deliver_to(&self, recipients: Recipients) {
        let mut cache = self.cache.borrow_mut();
        let walk = |trace: &mut Trace| self.walk(trace);
        let mut delivery = self.unwind.deliver(&self.task, recipients, Some(&mut *cache), walk);
        while let Some(guard) = delivery.next() {
            self.called(&guard);
        }
    }

    pub(super) fn called(&self, guard: &DeliveryGuard<'_>) {
        self.log(Event::Called {
            client: guard.client(),
            cookie: guard.cookie(),
            end: guard.outcome(),
            stack: guard.trace().and_then(|trace| trace.pcs().next().map(VirtAddr::get)),
        });
    }

    pub(super) fn deliver(&self) {
        self.deliver_to(Recipients::Requesters);
    }

    /// The way out of the kernel, up to the first user instruction.
    pub(super) fn return_to_user(&self) {
        loop {
            self.unwind.host().scheduled.set(false);
            self.deliver();
            let ready = self.unwind.user_return(&self.task) == UserReturn::Ready;
            // An NMI that scheduled a delivery after the last check has made
            // sure that the task comes back here.
            if ready && !self.unwind.host().scheduled.get() {
                break;
            }
        }
    }

    /// User code runs, then the task enters the kernel again.
    pub(super) fn run_user_code(&self) {
        self.task.stack.set(self.task.stack.get() + 1);
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.log.borrow().clone()
    }

    /// The deliveries so far.
    pub(super) fn called_events(&self) -> Vec<(ClientId, Cookie)> {
        let called = |event| match event {
            Event::Called { client, cookie, .. } => Some((client, cookie)),
            _ => None,
        };
        self.events().into_iter().filter_map(called).collect()
    }

    /// Ends the entry, and checks that everyone got what they were told.
    pub(super) fn check(&self) {
        self.return_to_user();
        let log = self.events();
        let called = self.called_events();
        let cancelled = |client| log.contains(&Event::Cancelling { client });
        let mut dropped = 0;
        for &event in &log {
            let Event::Asked { client, outcome, .. } = event else { continue };
            let Some(cookie) = outcome.cookie() else { continue };
            let calls = called.iter().filter(|&&call| call == (client, cookie)).count();
            let queued = Self::queued(&log, client, cookie);
            assert_eq!(queued, 1, "{client:?} was not queued once for {cookie:?}: {log:#?}");
            if calls == 0 && cancelled(client) {
                dropped += u64::from(matches!(outcome, RequestOutcome::Queued(_)));
            } else {
                assert_eq!(calls, 1, "{client:?} called {calls} times for {cookie:?}: {log:#?}");
            }
        }
        assert_eq!(self.unwind.drops().client_cancelled, dropped, "{log:#?}");
        self.check_calls(&log);
        Self::check_executed(&log);
        Self::check_cookies(&log);
        let state = alloc::format!("{:?}", self.task.state);
        assert!(state.contains("pending: false, used: false"), "{state}");
    }

    /// No client is called that did not ask, or after the cancellation.
    fn check_calls(&self, log: &[Event]) {
        for (at, &event) in log.iter().enumerate() {
            let Event::Called { client, cookie, .. } = event else { continue };
            let before = &log[..at];
            assert_eq!(Self::queued(log, client, cookie), 1, "a stranger: {client:?} in {log:#?}");
            assert!(!before.contains(&Event::Cancelled { client }), "{client:?} in {log:#?}");
        }
    }

    /// Whoever is told that the delivery was executed has been called, or is
    /// the next to be.
    fn check_executed(log: &[Event]) {
        for (at, &event) in log.iter().enumerate() {
            let Event::Asked { client, outcome: RequestOutcome::AlreadyExecuted(cookie), .. } =
                event
            else {
                continue;
            };
            let is_call = |event: &Event| {
                matches!(event, Event::Called { client: c, cookie: k, .. }
                    if (*c, *k) == (client, cookie))
            };
            let next = log[at..]
                .iter()
                .find(|event| matches!(event, Event::Called { .. } | Event::Walked { .. }));
            let called = log[..at].iter().any(is_call) || next.is_some_and(is_call);
            assert!(called, "{client:?} was not called for {cookie:?} at {at}: {log:#?}");
        }
    }

    fn queued(log: &[Event], client: ClientId, cookie: Cookie) -> usize {
        let queued = RequestOutcome::Queued(cookie);
        log.iter()
            .filter(|event| {
                matches!(event, Event::Asked { client: c, outcome, .. }
                    if (*c, *outcome) == (client, queued))
            })
            .count()
    }

    /// A cookie stands for one stack; a stack that is walked is walked once
    /// for each of its cookies.
    fn check_cookies(log: &[Event]) {
        let mut pairs = Vec::new();
        for &event in log {
            match event {
                Event::Asked { outcome, stack, .. } => {
                    pairs.extend(outcome.cookie().map(|cookie| (cookie, stack)));
                }
                Event::Cookie { cookie, stack }
                | Event::Called { cookie, stack: Some(stack), .. } => pairs.push((cookie, stack)),
                _ => {}
            }
        }
        for &(cookie, stack) in &pairs {
            let same = pairs.iter().filter(|&&(other, _)| other == cookie);
            assert!(same.into_iter().all(|&(_, s)| s == stack), "{cookie:?} in {log:#?}");
        }
        pairs.sort_unstable();
        pairs.dedup();
        for &(_, stack) in &pairs {
            let cookies = pairs.iter().filter(|&&(_, s)| s == stack).count();
            let walks = log.iter().filter(|&&event| event == (Event::Walked { stack })).count();
            assert!(walks <= cookies, "{walks} walks of stack {stack}: {log:#?}");
        }
    }
}

impl Machine {
    pub(super) fn new(clients: usize) -> Self {
        Self::with_cookies(SerialCookies::new(), clients)
    }
}

pub(super) use test_support::interrupt::interrupt_everywhere;
