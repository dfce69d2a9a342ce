//! A machine that does nothing but ask for stacks.

use std::hint::black_box;

use unwind_core::deferred::{
    ClientId, DeferredUnwind, Host, Recipients, RequestContext, RequestOutcome, ScheduleError,
    SerialCookies, TaskKind, TaskState, UnwindCache, UserReturn,
};

/// A task of the machine.
#[derive(Debug, Default)]
pub struct Task(TaskState);

impl Task {
    /// A task in its first entry.
    #[must_use]
    pub fn new() -> Self {
        Self(TaskState::new())
    }

    /// A task in an entry in which the first client has asked.
    #[must_use]
    pub fn asked(deferral: &Deferral) -> Self {
        let task = Self::new();
        assert!(deferral.request(&task, 0));
        task
    }
}

/// A host that has nothing to do.
#[derive(Clone, Copy, Debug)]
struct Machine;

impl Host for Machine {
    type Task = Task;

    #[inline]
    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.0
    }

    #[inline]
    fn task_kind(&self, _: &Task) -> TaskKind {
        TaskKind::User
    }

    #[inline]
    fn in_nmi(&self) -> bool {
        false
    }

    #[inline]
    fn cpu(&self) -> u32 {
        0
    }

    #[inline]
    fn schedule(&self, _: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        Ok(())
    }

    #[inline]
    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {}
}

/// Clients of the machine.
#[derive(Debug)]
pub struct Deferral {
    unwind: DeferredUnwind<Machine>,
    clients: Vec<ClientId>,
}

impl Deferral {
    /// The number of clients.
    ///
    /// # Panics
    ///
    /// If there is no room for them.
    #[must_use]
    pub fn new(clients: usize) -> Self {
        let unwind = DeferredUnwind::new(Machine, SerialCookies::new());
        let clients = (0..clients).map(|_| unwind.register().unwrap()).collect();
        Self { unwind, clients }
    }

    /// The id of a client.
    #[must_use]
    pub fn client(&self, number: usize) -> ClientId {
        self.clients[number]
    }

    /// Whether a client that asks will be called.
    #[must_use]
    pub fn request(&self, task: &Task, client: usize) -> bool {
        black_box(ask(&self.unwind, task, self.clients[client])).is_pending()
    }

    /// The cookie of the task's entry.
    #[must_use]
    pub fn cookie(&self, task: &Task) -> u64 {
        self.unwind.cookie(task).unwrap().get()
    }

    /// Delivers a stack without frames and ends the entry.
    ///
    /// # Panics
    ///
    /// Unless that number of clients is called.
    pub fn deliver(&self, task: &Task, expected: usize) {
        let mut trace = UnwindCache::<[_; 1]>::new();
        let mut delivery =
            self.unwind.deliver(task, Recipients::Requesters, Some(&mut trace), |_| ());
        let mut called = 0;
        while delivery.next().is_some() {
            called += 1;
        }
        drop(delivery);
        assert_eq!(called, expected, "as many as asked");
        assert!(self.user_return(task));
    }

    /// Whether the task may return to user code.
    #[must_use]
    pub fn user_return(&self, task: &Task) -> bool {
        go_to_user(&self.unwind, task) == UserReturn::Ready
    }
}

/// A request by itself, so that its instructions can be counted.
#[inline(never)]
fn ask(unwind: &DeferredUnwind<Machine>, task: &Task, client: ClientId) -> RequestOutcome {
    unwind.request(task, client)
}

/// A return to user code by itself.
#[inline(never)]
fn go_to_user(unwind: &DeferredUnwind<Machine>, task: &Task) -> UserReturn {
    unwind.user_return(task)
}
