//! Events that follow a task over all CPUs, with work of their own on it.

use core::fmt;

use unwind_core::deferred::{Cookie, Refusal, ScheduleError, relax_while};

use super::{RemoveError, RequestError};
use crate::sync::{AtomicU32, AtomicU64, Ordering, Statistic, const_unless_loom};

/// What an event without a CPU asks of the system around it.
pub trait TaskWork {
    /// How often [`wait_while`](Self::wait_while), as it is by itself, calls
    /// [`relax`](Self::relax): see
    /// [`Host::MAX_RELAXES`](unwind_core::deferred::Host::MAX_RELAXES).
    const MAX_RELAXES: u64 = 1 << 28;

    /// The cookie of the kernel entry that the task is in:
    /// [`DeferredUnwind::cookie`](unwind_core::deferred::DeferredUnwind::cookie). Any
    /// context, NMI included.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if it has none.
    fn cookie(&self) -> Result<Cookie, Refusal>;

    /// Has the task run the event's work before it returns to user code, once.
    /// Any context, NMI included. Called only while the work is not queued.
    ///
    /// Stores before this call must be visible to the work, as with any queue:
    /// the event adds no ordering.
    ///
    /// # Errors
    ///
    /// [`ScheduleError`] if it cannot be done.
    fn queue(&self) -> Result<(), ScheduleError>;

    /// Takes the work out of the queue again. Called by the event's own task,
    /// which cannot wait for itself, while the work is queued and not running.
    fn unqueue(&self);

    /// Whether the task that calls is the event's.
    fn is_current(&self) -> bool;

    /// Called repeatedly during a wait for the work of another task, or for a
    /// request on another CPU that is about to queue that work: spins, yields
    /// or sleeps.
    fn relax(&self);

    /// Waits while `is_pending`, or gives up: then the removal is
    /// [`StillRunning`](RemoveError::StillRunning). By itself it calls
    /// [`relax`](Self::relax), [`MAX_RELAXES`](Self::MAX_RELAXES) times at most. See
    /// [`Host::wait_while`](unwind_core::deferred::Host::wait_while); who wakes is the task, after
    /// [`TaskEvent::run`].
    fn wait_while(&self, is_pending: impl Fn() -> bool) {
        relax_while(is_pending, Self::MAX_RELAXES, || self.relax());
    }
}

/// The block of an event that follows a task.
///
/// ```text
///     idle -- request --> pending, queueing -- queued --> pending
///     pending -- run --> pending, running -- end --> idle
///     any -- remove --> removed, when nothing is pending any more
/// ```
pub struct TaskEvent {
    state: AtomicU32,
    /// That of the request that is pending. Whoever takes the event writes it, before the
    /// work is queued.
    cookie: AtomicU64,
    /// That of the record that was written last; zero before the first.
    written: AtomicU64,
    output_failed: Statistic,
    no_stack: Statistic,
}

const PENDING: u32 = 1 << 0;
const RUNNING: u32 = 1 << 1;
const REMOVED: u32 = 1 << 2;
/// Whether the work will be queued is not known yet.
const QUEUEING: u32 = 1 << 3;

impl TaskEvent {
    const_unless_loom! {
        /// The block of an event without a request.
        #[must_use]
        pub fn new() -> Self {
            let (output_failed, no_stack) = (Statistic::new(), Statistic::new());
            let (cookie, written) = (AtomicU64::new(0), AtomicU64::new(0));
            Self { state: AtomicU32::new(0), cookie, written, output_failed, no_stack }
        }
    }

    /// Asks for the task's user stack. Any context, NMI included, on the CPU that the task is
    /// on. Returns the cookie that the record of the stack will have, or has: there is one
    /// record for a cookie. Where work is pending and the kernel entry has ended since it was
    /// asked for, that is the cookie of the entry before.
    ///
    /// From here to the end of the work the task's events must not change
    /// hands in a context switch; `hold` counts that.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the event is removed, if the task has no cookie, if the work
    /// cannot be queued, or if this has interrupted another request of the event before
    /// that was known.
    pub fn request(&self, work: &impl TaskWork, hold: &SwitchHold) -> Result<Cookie, RequestError> {
        let cookie = work.cookie().map_err(RequestError::Refused)?;
        // Relaxed: the record is there, or is written before the task continues.
        if self.written.load(Ordering::Relaxed) == cookie.get() && !self.is_removed() {
            return Ok(cookie);
        }
        // A request that takes an idle event comes after the end of its last
        // work.
        let (taken, failed) = (Ordering::Acquire, Ordering::Relaxed);
        match self.state.compare_exchange(0, PENDING | QUEUEING, taken, failed) {
            Err(state) if state & REMOVED != 0 => return Err(RequestError::Removed),
            Err(state) if state & QUEUEING != 0 => return Err(RequestError::Queueing),
            // The entry's cookie, unless the entry has ended meanwhile and user code has not
            // run: the stack is the same. Relaxed: the task's CPU asks, as it did before.
            Err(_) => return Ok(Cookie::new(self.cookie.load(Ordering::Relaxed)).unwrap_or(cookie)),
            Ok(_) => hold.add(),
        }
        // Relaxed: the queue orders it before the work.
        self.cookie.store(cookie.get(), Ordering::Relaxed);
        match work.queue() {
            Ok(()) => {
                // The task's own removal may take the work out again now.
                self.state.fetch_and(!QUEUEING, Ordering::Release);
                Ok(cookie)
            }
            Err(ScheduleError) => {
                self.end(hold);
                Err(RequestError::Refused(Refusal::ScheduleFailed))
            }
        }
    }

    /// Runs the event's work: walks the stack and writes the record. Task
    /// context, by the task itself.
    ///
    /// Both get the cookie of the samples that the stack is for. `walk` asks
    /// [`DeferredUnwind::stack`](unwind_core::deferred::DeferredUnwind::stack) with the cache
    /// that the task's deliveries are lent, so that the entry is walked once whoever asked.
    /// `output` opens and closes the read section that the host's output needs itself. Nothing
    /// is pending afterwards, even if one of the two fails.
    pub fn run<T, W, E>(
        &self,
        hold: &SwitchHold,
        walk: impl FnOnce(Cookie) -> Result<T, W>,
        output: impl FnOnce(Cookie, T) -> Result<(), E>,
    ) -> TaskRun {
        // Relaxed: the queue has ordered this after the request, and only the
        // task itself looks whether its work runs.
        let cookie = Cookie::new(self.cookie.load(Ordering::Relaxed));
        let Some(cookie) = cookie.filter(|_| self.is_asked()) else {
            return TaskRun::NotPending;
        };
        self.state.fetch_or(RUNNING, Ordering::Relaxed);
        let _end = End { event: self, hold };
        let Ok(stack) = walk(cookie) else {
            self.no_stack.count();
            return TaskRun::NoStack;
        };
        if output(cookie, stack).is_err() {
            self.output_failed.count();
            return TaskRun::OutputFailed;
        }
        self.written.store(cookie.get(), Ordering::Relaxed);
        TaskRun::Written
    }

    /// Removes the event. When this returns, its work is neither queued nor
    /// running and will not be. Task context.
    ///
    /// Waits, by [`TaskWork::wait_while`], for the work if that is pending on another
    /// task, until that hook gives up: that task may never run it.
    ///
    /// # Errors
    ///
    /// [`RemoveError::OwnDelivery`] if the work itself calls; nothing has
    /// changed then. [`RemoveError::StillRunning`] if the work does not end:
    /// call again to continue waiting.
    pub fn remove<W: TaskWork>(&self, work: &W, hold: &SwitchHold) -> Result<(), RemoveError> {
        let current = work.is_current();
        if current && self.state.load(Ordering::Relaxed) & RUNNING != 0 {
            return Err(RemoveError::OwnDelivery);
        }
        self.state.fetch_or(REMOVED, Ordering::Relaxed);
        // The task itself waits for a request on another CPU alone, which may still be about to
        // queue the work.
        let awaited = if current { QUEUEING } else { PENDING };
        work.wait_while(|| self.state.load(Ordering::Acquire) & awaited != 0);
        let state = self.state.load(Ordering::Acquire);
        if state & awaited != 0 {
            return Err(RemoveError::StillRunning { client: None });
        }
        if state & PENDING != 0 {
            work.unqueue();
            self.end(hold);
        }
        Ok(())
    }

    fn is_removed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & REMOVED != 0
    }

    /// Whether its own task finds that its work is pending.
    fn is_asked(&self) -> bool {
        self.state.load(Ordering::Relaxed) & PENDING != 0
    }

    /// Whether its work is queued or running.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.state.load(Ordering::Acquire) & PENDING != 0
    }

    /// How many records the event could not write.
    #[must_use]
    pub fn output_failed(&self) -> u64 {
        self.output_failed.get()
    }

    /// How many walks gave no stack.
    #[must_use]
    pub fn no_stack(&self) -> u64 {
        self.no_stack.get()
    }

    fn end(&self, hold: &SwitchHold) {
        hold.remove();
        // Last: the one that waits may free what `hold` is in.
        self.state.fetch_and(!(PENDING | QUEUEING | RUNNING), Ordering::Release);
    }
}

impl Default for TaskEvent {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TaskEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.load(Ordering::Relaxed);
        f.debug_struct("TaskEvent")
            .field("pending", &(state & PENDING != 0))
            .field("running", &(state & RUNNING != 0))
            .field("removed", &(state & REMOVED != 0))
            .finish_non_exhaustive()
    }
}

/// Ends the work, however it ends.
struct End<'a> {
    event: &'a TaskEvent,
    hold: &'a SwitchHold,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.event.end(self.hold);
    }
}

/// What became of an event's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum TaskRun {
    /// Nothing was asked for, or not any more.
    NotPending,
    /// The record was written.
    Written,
    /// The walk gave no stack.
    NoStack,
    /// The record could not be written.
    OutputFailed,
}

/// The block of a task's events: how many of them have work pending.
///
/// A scheduler may exchange the events of two tasks that have equal ones
/// instead of stopping and starting them, but not while work of one of them is
/// queued on its task.
#[derive(Debug)]
pub struct SwitchHold(AtomicU32);

impl SwitchHold {
    const_unless_loom! {
        /// The block of events without pending work.
        #[must_use]
        pub fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Whether the events may be exchanged for those of another task. If so,
    /// what their work did comes before.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    fn add(&self) {
        // Relaxed: the work is queued after this, and counts from then on.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Default for SwitchHold {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;
    use core::cell::{Cell, RefCell};

    use test_support::interrupt::{interrupt_everywhere, point};

    use super::*;

    /// An event of the task that runs, and what its samples were told.
    #[derive(Default)]
    struct Sampled {
        event: TaskEvent,
        hold: SwitchHold,
        fails: Cell<bool>,
        queued: Cell<u32>,
        /// How many kernel entries have ended.
        entries: Cell<u64>,
        told: RefCell<Vec<Result<Cookie, RequestError>>>,
        /// The cookies of the records that came of it.
        written: RefCell<Vec<Cookie>>,
    }

    impl Sampled {
        fn sample(&self) {
            let told = self.event.request(self, &self.hold);
            self.told.borrow_mut().push(told);
        }

        fn return_to_user(&self) {
            while self.queued.take() != 0 {
                let ran = self.event.run(
                    &self.hold,
                    |_| Ok::<_, ()>(()),
                    |cookie, ()| {
                        self.written.borrow_mut().push(cookie);
                        Ok::<_, ()>(())
                    },
                );
                assert_ne!(ran, TaskRun::NotPending);
            }
        }

        /// The kernel's last steps: from here on the task is in another entry.
        fn end_entry(&self) {
            point();
            self.entries.set(self.entries.get().wrapping_add(1));
            point();
        }

        /// Each cookie that a sample was told has one record.
        fn check(&self) {
            self.return_to_user();
            let mut told: Vec<u64> =
                self.told.borrow().iter().flatten().map(|told| told.get()).collect();
            let mut written: Vec<u64> =
                self.written.borrow().iter().map(|cookie| cookie.get()).collect();
            told.sort_unstable();
            told.dedup();
            written.sort_unstable();
            assert_eq!(told, written);
            assert!(!self.event.is_pending() && self.hold.is_free());
        }
    }

    /// The cookie of the task's first entry.
    const COOKIE: Cookie = Cookie::new(0x1_0001).unwrap();

    impl TaskWork for Sampled {
        fn cookie(&self) -> Result<Cookie, Refusal> {
            point();
            let number = COOKIE.get().wrapping_add(self.entries.get());
            Cookie::new(number).ok_or(Refusal::NoCookie)
        }

        fn queue(&self) -> Result<(), ScheduleError> {
            point();
            if self.fails.get() {
                return Err(ScheduleError);
            }
            self.queued.set(self.queued.get().wrapping_add(1));
            point();
            Ok(())
        }

        fn unqueue(&self) {}

        fn is_current(&self) -> bool {
            true
        }

        fn relax(&self) {}
    }

    #[test]
    fn samples_of_an_entry_whose_record_is_written_get_no_second_one_under_an_nmi_in_any_gap() {
        let body = |sampled: &Sampled| {
            sampled.sample();
            sampled.return_to_user();
            // In the kernel still, on the way to user code.
            sampled.sample();
            sampled.return_to_user();
        };
        let check = |sampled: &Sampled| {
            sampled.return_to_user();
            let known = [Ok(COOKIE), Err(RequestError::Queueing)];
            assert!(sampled.told.borrow().iter().all(|told| known.contains(told)));
            assert_eq!(*sampled.written.borrow(), [COOKIE]);
        };
        assert!(interrupt_everywhere(Sampled::default, &[Sampled::sample], body, check) > 5);
    }

    #[test]
    fn r0_20_a_sample_that_is_promised_a_record_gets_one_under_an_nmi_in_any_gap() {
        for fails in [false, true] {
            let world = || Sampled { fails: Cell::new(fails), ..Sampled::default() };
            let body = |sampled: &Sampled| {
                sampled.sample();
                sampled.return_to_user();
            };
            let check = |sampled: &Sampled| {
                // An NMI may have come last.
                sampled.return_to_user();
                sampled.check();
                assert_eq!(sampled.told.borrow().iter().any(Result::is_ok), !fails);
            };
            assert!(interrupt_everywhere(world, &[Sampled::sample], body, check) > 5);
        }
    }

    #[test]
    fn a_sample_is_told_the_cookie_of_its_record_also_as_the_entry_ends() {
        let body = |sampled: &Sampled| {
            // What an NMI asks for from here to the end of the entry waits until the task is in
            // the kernel again.
            sampled.end_entry();
            sampled.sample();
            sampled.return_to_user();
        };
        let nmis: [fn(&Sampled); 2] = [Sampled::sample; 2];
        assert!(interrupt_everywhere(Sampled::default, &nmis, body, Sampled::check) > 20);
    }
}
