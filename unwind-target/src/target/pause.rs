//! Holds a process still while it is looked at, and lets it go in time.
//!
//! Only the thread that began to trace may stop to, so a thread of its own does
//! both. Whatever the rest of the command waits for meanwhile, be it a page of the
//! process that only the process itself can bring in, a file system that it serves,
//! or a table that takes long: this thread waits for nothing but the order to let
//! go, and when the time is over it lets go without.

use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel,
};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::target::error::TargetError;
use crate::target::process::{Fate, StoppedProcess};
use crate::target::registers::UserRegisters;

/// How often a process is stopped whose threads all end while they are stopped.
pub(crate) const STOPS: u32 = 10;

/// How long a process may be held, and what is done when that is over.
#[derive(Clone, Copy, Debug)]
pub struct HoldLimit {
    time: Duration,
    late: fn(i32, &TargetError),
}

impl HoldLimit {
    /// A process that was held for this time runs again. What was read of it is given up: the call fails with
    /// [`TargetError::LetGo`], as soon as the read that it waits for ends, which on a file system that does not
    /// answer may be never.
    #[must_use]
    pub const fn new(time: Duration) -> Self {
        Self { time, late: |_, _| () }
    }

    /// Calls this at once when the process runs again because its time is over, with its id and the error, from
    /// another thread than the call that waits, so that a program can say so and end.
    #[must_use]
    pub const fn on_late(self, late: fn(i32, &TargetError)) -> Self {
        Self { late, ..self }
    }

    /// What a process that was held for that long is told by.
    pub(crate) const fn error(self, process: i32) -> TargetError {
        TargetError::LetGo { process, seconds: self.time.as_secs() }
    }
}

/// A process that is held as long as this lives, but no longer than its limit.
#[derive(Debug)]
pub(crate) struct Pause {
    /// Closed, it is the order to let go.
    order: Option<SyncSender<()>>,
    /// Gives what has become of the process meanwhile.
    holder: Option<JoinHandle<Fate>>,
}

/// What was found when a process was stopped.
#[derive(Debug)]
pub(crate) struct PausedProcess {
    /// The id of the process.
    pub(crate) process: i32,
    /// Its threads: the first one first, then ascending. At least one.
    pub(crate) threads: Vec<(i32, UserRegisters)>,
    /// The id of one of them.
    pub(crate) some_thread: i32,
    /// Those that run on because they could not be stopped.
    pub(crate) unstoppable: Vec<i32>,
}

/// What the holding thread tells.
#[derive(Debug)]
enum Found {
    /// The process stands. Its registers are not known yet, and it may turn out that it has to be
    /// stopped again.
    Still,
    /// It is held, or why not.
    Held(Result<PausedProcess, TargetError>),
}

impl Pause {
    /// Stops the process that has `task` as its id or as that of one of its
    /// threads, for `limit` at most. Calls `still` once it stands, while the registers are read;
    /// if it has to be stopped again, then again.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if there is none, if it may not be traced, or if it ends.
    pub(crate) fn stop(
        task: i32,
        limit: HoldLimit,
        mut still: impl FnMut(),
    ) -> Result<(Self, PausedProcess), TargetError> {
        let (order, orders) = sync_channel(0);
        // Room for all: this thread may be waiting for something else.
        let (found, finds) = channel();
        let holder = thread::Builder::new()
            .name("holder".into())
            .spawn(move || hold(task, limit, &found, &orders))
            .map_err(TargetError::NoThread)?;
        // To stop it may take as long as it may be held.
        let held = loop {
            match receive(&finds, limit.time).map_err(|_| limit.error(task))? {
                Found::Still => still(),
                Found::Held(held) => break held?,
            }
        };
        let (order, holder) = (Some(order), Some(holder));
        Ok((Self { order, holder }, held))
    }

    /// Lets the process go, and says what has become of it.
    pub(crate) fn release(mut self) -> Fate {
        self.let_go()
    }

    fn let_go(&mut self) -> Fate {
        drop(self.order.take());
        // A holder that panicked has let go as it unwound.
        self.holder.take().and_then(|holder| holder.join().ok()).unwrap_or(Fate::Held)
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// What the holding thread does.
fn hold(task: i32, limit: HoldLimit, found: &Sender<Found>, orders: &Receiver<()>) -> Fate {
    // Whoever has not waited for it has given the process up.
    let tell = |what| _ = found.send(what);
    let (process, held) = match stop(task, &|| tell(Found::Still)) {
        Ok(stopped) => stopped,
        Err(error) => {
            tell(Found::Held(Err(error)));
            return Fate::Ended;
        }
    };
    tell(Found::Held(Ok(held)));
    if receive(orders, limit.time) == Err(RecvTimeoutError::Timeout) {
        let id = process.id();
        drop(process);
        (limit.late)(id, &limit.error(id));
        return Fate::LetGo { seconds: limit.time.as_secs() };
    }
    process.fate()
}

/// Waits for the other thread of the two, which mostly needs less time than it takes to
/// wake up: until then the process stands still.
fn receive<T>(receiver: &Receiver<T>, timeout: Duration) -> Result<T, RecvTimeoutError> {
    let eager_until = Instant::now().checked_add(EAGER);
    while eager_until.is_some_and(|until| Instant::now() < until) {
        match receiver.try_recv() {
            Ok(value) => return Ok(value),
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) => thread::yield_now(),
        }
    }
    receiver.recv_timeout(timeout)
}

/// For how long a thread that waits for the other one does not sleep.
const EAGER: Duration = Duration::from_millis(1);

/// Stops a process, and reads the registers of its threads.
fn stop(task: i32, still: &dyn Fn()) -> Result<(StoppedProcess, PausedProcess), TargetError> {
    for _ in 0..STOPS {
        let stopped = StoppedProcess::stop(task, still)?;
        let process = stopped.id();
        let threads = stopped.threads().iter();
        let mut threads: Vec<_> =
            threads.filter_map(|thread| Some((thread.id.as_raw(), thread.registers?))).collect();
        threads.sort_by_key(|&(id, _)| (id != process, id));
        if let Some(&(some_thread, _)) = threads.first() {
            let unstoppable = stopped.unstoppable().to_vec();
            return Ok((stopped, PausedProcess { process, threads, some_thread, unstoppable }));
        }
        // A thread that began to execute another program ends all others, also
        // those that are held, and continues in their place.
    }
    Err(TargetError::Ended(task))
}
