//! A host whose clients sleep in their callbacks: a cancellation sleeps in a queue of the host
//! until the callback has ended, and is woken by the task that made the call.
//!
//! `cargo run --release -p unwind-core --example sleeping_callbacks`
#![allow(clippy::expect_used, reason = "a program that reads nothing from outside")]

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use unwind_core::Trace;
use unwind_core::deferred::{
    DeferredUnwind, Host, Recipients, RequestContext, ScheduleError, SerialCookies, TaskKind,
    TaskState, UnwindCache, UserReturn,
};

/// The host: a program whose threads are tasks.
#[derive(Default)]
struct Program {
    queue: Mutex<()>,
    callback_ended: Condvar,
    sleeps: AtomicU64,
}

impl Host for Program {
    type Task = TaskState;

    fn state<'t>(&self, task: &'t TaskState) -> &'t TaskState {
        task
    }

    fn task_kind(&self, _: &TaskState) -> TaskKind {
        TaskKind::User
    }

    fn in_nmi(&self) -> bool {
        false
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, _: &TaskState, _: RequestContext) -> Result<(), ScheduleError> {
        // Each entry of this program delivers before it returns.
        Ok(())
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {
        thread::yield_now();
    }

    /// Gives up after ten seconds.
    fn wait_while(&self, is_running: impl Fn() -> bool) {
        let held = self.queue.lock().expect("no thread panics with the lock");
        let _woken = self.callback_ended.wait_timeout_while(held, Duration::from_secs(10), |()| {
            let runs = is_running();
            self.sleeps.fetch_add(u64::from(runs), Ordering::Relaxed);
            runs
        });
    }
}

impl Program {
    /// Takes the lock first: a cancellation that has looked and is about to sleep has it.
    fn wake(&self) {
        let _held = self.queue.lock().expect("no thread panics with the lock");
        self.callback_ended.notify_all();
    }
}

static UNWIND: DeferredUnwind<Program> = DeferredUnwind::new(
    Program { queue: Mutex::new(()), callback_ended: Condvar::new(), sleeps: AtomicU64::new(0) },
    SerialCookies::new(),
);

/// The way out of an entry that was asked for its stack. Returns when the callback had ended.
fn return_to_user(task: &TaskState, in_callback: impl Fn()) -> Instant {
    let mut cache = UnwindCache::<[_; 510]>::new();
    // The walk is left out: this is about what comes after it.
    let walk = |trace: &mut Trace| trace.clear();
    let mut delivery = UNWIND.deliver(task, Recipients::Requesters, Some(&mut cache), walk);
    let mut ended = Instant::now();
    while let Some(guard) = delivery.next() {
        in_callback();
        ended = Instant::now();
        drop(guard);
        UNWIND.host().wake();
    }
    drop(delivery);
    assert_eq!(UNWIND.user_return(task), UserReturn::Ready, "nothing was asked for meanwhile");
    ended
}

fn main() -> Result<(), Box<dyn Error>> {
    const ROUNDS: u32 = 50;
    let mut waits = Vec::new();
    for _ in 0..ROUNDS {
        let client = UNWIND.register()?;
        let (task, (called, is_called)) = (TaskState::new(), mpsc::channel());
        assert!(UNWIND.request(&task, client).is_pending(), "the task runs user code");
        let cancelled = thread::spawn(move || {
            is_called.recv().expect("the callback says that it runs");
            UNWIND.cancel(None, client).map(|()| Instant::now())
        });
        let ended = return_to_user(&task, || {
            called.send(()).expect("the thread waits for it");
            thread::sleep(Duration::from_millis(5));
        });
        let returned = cancelled.join().map_err(|_| "the thread panicked")??;
        // Cancelled before its callback had ended, it could have freed what that uses.
        waits.push(returned.checked_duration_since(ended).ok_or("it did not wait")?);
    }
    waits.sort();
    let middle = waits.get(waits.len() / 2).ok_or("no rounds")?;
    println!(
        "{ROUNDS} clients cancelled while their callbacks slept: {} sleeps; half of them were \
         cancelled within {middle:?} of the callback's end",
        UNWIND.host().sleeps.load(Ordering::Relaxed)
    );
    Ok(())
}
