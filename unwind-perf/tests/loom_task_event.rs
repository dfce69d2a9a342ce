//! Models of events that follow a task: requests, work and removals on several
//! CPUs, in every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p unwind-perf --release --test loom_task_event`
#![cfg(loom)]
#![cfg(test)]

#[path = "guarded/mod.rs"]
mod guarded;

use guarded::Guarded;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use unwind_core::deferred::{Cookie, Refusal, ScheduleError};
use unwind_perf::per_cpu::*;

/// The cookie of the task's entry.
const COOKIE: Cookie = Cookie::new(0x1_0001).unwrap();

/// An event of a task, and the queue of that task's work.
#[derive(Debug)]
struct Sampled {
    event: TaskEvent,
    hold: SwitchHold,
    /// The link of the queue: the thread that queues the work writes it, the
    /// thread that runs it or takes it out uses it.
    link: Guarded,
    queued: AtomicBool,
    /// The event itself, which its work uses.
    memory: Guarded,
}

impl Sampled {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            event: TaskEvent::new(),
            hold: SwitchHold::new(),
            link: Guarded::new(),
            queued: AtomicBool::new(false),
            memory: Guarded::new(),
        })
    }

    fn request(&self) -> Result<Cookie, RequestError> {
        self.event.request(&Elsewhere(self), &self.hold)
    }

    /// The task returns to user code: whether its work was queued, and ran.
    fn return_to_user(&self) -> bool {
        if !self.queued.swap(false, Ordering::AcqRel) {
            return false;
        }
        let walk = |_| {
            self.link.write();
            self.memory.write();
            Ok::<_, ()>(())
        };
        let output = |cookie, ()| {
            assert_eq!(cookie, COOKIE);
            self.memory.write();
            Ok::<_, ()>(())
        };
        assert_eq!(self.event.run(&self.hold, walk, output), TaskRun::Written);
        true
    }

    /// Whether the queue was entered, in an order that says nothing else.
    fn was_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed)
    }
}

fn spawn<T: 'static>(body: impl FnOnce() -> T + 'static) -> thread::JoinHandle<T> {
    thread::spawn(body)
}

/// For a caller that is not the event's task.
struct Elsewhere<'a>(&'a Sampled);

impl TaskWork for Elsewhere<'_> {
    fn cookie(&self) -> Result<Cookie, Refusal> {
        Ok(COOKIE)
    }

    fn queue(&self) -> Result<(), ScheduleError> {
        self.0.link.write();
        self.0.queued.store(true, Ordering::Release);
        Ok(())
    }

    fn unqueue(&self) {
        panic!("it is not this task's");
    }

    fn is_current(&self) -> bool {
        false
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

/// For the event's task.
struct Own<'a>(&'a Sampled);

impl TaskWork for Own<'_> {
    fn cookie(&self) -> Result<Cookie, Refusal> {
        Ok(COOKIE)
    }

    fn queue(&self) -> Result<(), ScheduleError> {
        Elsewhere(self.0).queue()
    }

    /// The queue's word says nothing of the link: it is the event that knows
    /// whether the work is queued.
    fn unqueue(&self) {
        assert!(self.0.was_queued(), "it is not queued");
        self.0.link.write();
        self.0.queued.store(false, Ordering::Relaxed);
    }

    fn is_current(&self) -> bool {
        true
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

#[test]
fn r0_20_removal_against_request_and_run() {
    loom::model(|| {
        let sampled = Sampled::new();
        let there = Arc::clone(&sampled);
        let task = spawn(move || {
            // A sample, then the return to user code.
            let asked = there.request().is_ok();
            assert_eq!(there.return_to_user(), asked, "what is asked for is run");
        });
        sampled.event.remove(&Elsewhere(&sampled), &sampled.hold).unwrap();
        // Freed.
        sampled.memory.write();
        assert!(!sampled.event.is_pending() && sampled.hold.is_free());
        task.join().unwrap();
        assert_eq!(sampled.request(), Err(RequestError::Removed));
        assert!(sampled.hold.is_free());
    });
}

#[test]
fn r0_20_work_is_queued_again_only_after_its_last_run() {
    loom::model(|| {
        let sampled = Sampled::new();
        sampled.request().unwrap();
        let there = Arc::clone(&sampled);
        let other_cpu = spawn(move || there.request());
        assert!(sampled.return_to_user());
        let asked = other_cpu.join().unwrap();
        assert!(asked.is_ok() || asked == Err(RequestError::Queueing), "{asked:?}");
        assert_eq!(sampled.event.is_pending(), sampled.was_queued());
        sampled.return_to_user();
        assert!(!sampled.event.is_pending() && sampled.hold.is_free());
    });
}

#[test]
fn r0_20_two_requests_at_once_are_one_run() {
    loom::model(|| {
        let sampled = Sampled::new();
        let there = Arc::clone(&sampled);
        let other_cpu = spawn(move || there.request());
        let asked = [sampled.request(), other_cpu.join().unwrap()];
        assert!(asked.contains(&Ok(COOKIE)), "{asked:?}");
        assert!(sampled.event.is_pending() && !sampled.hold.is_free());
        assert!(sampled.return_to_user());
        assert!(!sampled.event.is_pending() && sampled.hold.is_free());
    });
}

#[test]
fn b_a_removal_by_the_task_against_a_request_on_another_cpu_leaves_nothing_queued() {
    loom::model(|| {
        let sampled = Sampled::new();
        let there = Arc::clone(&sampled);
        let other_cpu = spawn(move || there.request());
        sampled.event.remove(&Own(&sampled), &sampled.hold).unwrap();
        assert!(!sampled.was_queued(), "queued after the removal");
        assert!(!sampled.event.is_pending() && sampled.hold.is_free());
        let asked = other_cpu.join().unwrap();
        assert!(asked.is_ok() || asked == Err(RequestError::Removed), "{asked:?}");
        assert!(!sampled.was_queued());
        assert_eq!(sampled.request(), Err(RequestError::Removed));
    });
}

/// The scheduler looks at a task's events while their work may run, and uses
/// them if `is_free` says that it may.
fn scheduler_against_work(is_free: fn(&Sampled) -> bool) {
    loom::model(move || {
        let sampled = Sampled::new();
        sampled.request().unwrap();
        let there = Arc::clone(&sampled);
        let scheduler = spawn(move || {
            if is_free(&there) {
                there.memory.write();
            }
        });
        assert!(sampled.return_to_user());
        scheduler.join().unwrap();
        assert!(is_free(&sampled));
    });
}

#[test]
fn r0_20_events_change_hands_after_their_work() {
    scheduler_against_work(|sampled| sampled.hold.is_free());
}

#[test]
fn r0_20_work_that_is_not_pending_any_more_is_over() {
    scheduler_against_work(|sampled| !sampled.event.is_pending());
}

#[test]
fn r0_20_each_event_with_work_holds_the_events_of_its_task() {
    loom::model(|| {
        let sampled = [Sampled::new(), Sampled::new()];
        let hold = Arc::new(SwitchHold::new());
        let (one, other) = (&sampled[0], Arc::clone(&sampled[1]));
        let there = Arc::clone(&hold);
        let other_cpu = spawn(move || other.event.request(&Elsewhere(&other), &there).unwrap());
        one.event.request(&Elsewhere(one), &hold).unwrap();
        other_cpu.join().unwrap();
        let (other, there) = (Arc::clone(&sampled[1]), Arc::clone(&hold));
        let run = |sampled: &Sampled, hold: &SwitchHold| {
            assert!(!hold.is_free());
            sampled.event.run(hold, |_| Ok::<_, ()>(()), |_, ()| Ok::<_, ()>(()))
        };
        let removing = spawn(move || other.event.remove(&Own(&other), &there).unwrap());
        assert_eq!(run(one, &hold), TaskRun::Written);
        removing.join().unwrap();
        assert!(hold.is_free());
    });
}
