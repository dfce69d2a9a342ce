//! Events of one task: which way they are served, and the work that they queue.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use unwind_core::Trace;
use unwind_core::deferred::{Cookie, Refusal, ScheduleError, UnwindCache};
use unwind_perf::per_cpu::*;

use crate::{
    kernel::{Core, Task, USER, core, receivers},
    recorder::Recorder,
    registry, spec,
    work::{COOKIE, Work},
};

#[test]
fn r0_17_an_event_with_a_task_and_a_cpu_goes_to_the_registry() {
    let (core, registry) = (core(), registry());
    let with = |task: Option<u64>, cpu| {
        let spec = EventSpec { task: task.map(TaskKey), ..spec(100, cpu, 0) };
        Receiver::open(&registry, &core, spec)
    };
    assert!(matches!(with(Some(1), 2), Ok(Receiver::Cpu(_))));
    assert!(matches!(with(None, 2), Ok(Receiver::Cpu(_))));
    assert!(matches!(with(Some(1), -1), Ok(Receiver::Task(_))));
    assert_eq!(with(None, -1).unwrap_err(), AddError::NoCpu);
    assert_eq!(registry.occupied_cpus(GroupLeader(100)), 1);
}

#[test]
fn r0_18_exactly_one_of_the_two_ways_is_set_up() {
    let (core, registry) = (Recorder::default(), registry());
    let (work, hold) = (Work::default(), SwitchHold::new());
    let on_cpu = Receiver::open(&registry, &core, spec(100, 0, 0)).unwrap();
    let on_task = EventSpec { task: Some(TaskKey(1)), ..spec(100, -1, 0) };
    let on_task = Receiver::open(&registry, &core, on_task).unwrap();
    assert_eq!(core.registered.get(), 1);

    let cookie = on_cpu.request(&registry, &core, USER, (&(), TaskKey(1)), (&work, &hold)).unwrap();
    assert_eq!(cookie.get(), 7);
    assert!(work.queued.get() == 0 && hold.is_free());
    let cookie =
        on_task.request(&registry, &core, USER, (&(), TaskKey(1)), (&work, &hold)).unwrap();
    assert_eq!((cookie, core.requested.get()), (COOKIE, 1));
    assert_eq!((work.queued.get(), hold.is_free()), (1, false));
    work.current.set(true);
    for receiver in [on_cpu, on_task] {
        receiver.remove(&registry, &core, Some(&()), (&work, &hold)).unwrap();
    }
    assert_eq!((core.cancelled.get(), work.unqueued.get(), hold.is_free()), (1, 1, true));
}

#[test]
fn r0_19_several_events_that_asked_for_one_task_make_one_record() {
    let (core, registry, task) = (core(), registry(), Task::new(1));
    let events = [1, 2, 3].map(|key| registry.add(&core, spec(100, 0, key)).unwrap());
    for event in &events {
        registry.request(&core, &task, TaskKey(task.number), event).unwrap();
    }
    assert_eq!(receivers(&core, &registry, &task, 0).len(), 1);
    // An interrupt on the way out asks again: the entry has had its record.
    for event in &events {
        registry.request(&core, &task, TaskKey(task.number), event).unwrap();
    }
    assert_eq!(receivers(&core, &registry, &task, 0).len(), 1, "the next entry");
}

#[test]
fn r0_20_the_work_of_an_event_runs_once_per_request_and_always_ends() {
    let (event, work, hold) = (TaskEvent::new(), Work::default(), SwitchHold::new());
    let never = |_: Cookie| -> Result<u32, ()> { panic!("nothing was asked for") };
    assert_eq!(event.run(&hold, never, |_, _| Ok::<(), ()>(())), TaskRun::NotPending);
    // What cannot be queued is not pending.
    work.fails.set(true);
    let error = event.request(&work, &hold).unwrap_err();
    assert_eq!(error, RequestError::Refused(Refusal::ScheduleFailed));
    assert!(!event.is_pending() && hold.is_free());
    work.fails.set(false);
    for (walk, output, expected) in [
        (Err(()), Ok(()), TaskRun::NoStack),
        (Ok(5), Err(()), TaskRun::OutputFailed),
        (Ok(5), Ok(()), TaskRun::Written),
    ] {
        let before = work.queued.get();
        event.request(&work, &hold).unwrap();
        event.request(&work, &hold).unwrap();
        assert_eq!(work.queued.get(), before + 1, "queued once");
        assert!(event.is_pending() && !hold.is_free());
        let written = Cell::new(None);
        let ran = event.run(
            &hold,
            |_| {
                // Still pending while it runs: asking again queues nothing.
                event.request(&work, &hold).unwrap();
                assert!(!hold.is_free());
                walk
            },
            |_, stack| {
                written.set(Some(stack));
                output
            },
        );
        assert_eq!(ran, expected);
        assert_eq!(written.get(), walk.ok());
        assert_eq!(work.queued.get(), before + 1);
        assert!(!event.is_pending() && hold.is_free());
    }
    assert_eq!((event.no_stack(), event.output_failed()), (1, 1));
    // The entry has its record.
    let queued = work.queued.get();
    assert_eq!(event.request(&work, &hold), Ok(COOKIE));
    assert_eq!(work.queued.get(), queued);
    assert!(!event.is_pending() && hold.is_free());
}

#[test]
fn r0_20_the_events_do_not_change_hands_from_before_the_work_is_queued() {
    struct Looks<'a>(&'a SwitchHold, Cell<Option<bool>>);
    impl TaskWork for Looks<'_> {
        fn cookie(&self) -> Result<Cookie, Refusal> {
            Ok(COOKIE)
        }
        fn queue(&self) -> Result<(), ScheduleError> {
            self.1.set(Some(self.0.is_free()));
            Ok(())
        }
        fn unqueue(&self) {}
        fn is_current(&self) -> bool {
            true
        }
        fn relax(&self) {}
    }
    let (event, hold) = (TaskEvent::new(), SwitchHold::new());
    let work = Looks(&hold, Cell::new(None));
    event.request(&work, &hold).unwrap();
    assert_eq!(work.1.get(), Some(false));
}

#[test]
fn b_a_removal_by_the_task_takes_work_back_only_when_it_is_queued() {
    /// Another CPU asks: it is about to queue the work until the removal waits.
    #[derive(Default)]
    struct Asked {
        queueing: AtomicBool,
        removing: AtomicBool,
        queued: AtomicBool,
    }
    impl TaskWork for Asked {
        fn cookie(&self) -> Result<Cookie, Refusal> {
            Ok(COOKIE)
        }
        fn queue(&self) -> Result<(), ScheduleError> {
            self.queueing.store(true, SeqCst);
            while !self.removing.load(SeqCst) {
                std::thread::yield_now();
            }
            self.queued.store(true, SeqCst);
            Ok(())
        }
        fn unqueue(&self) {
            self.removing.store(true, SeqCst);
            assert!(self.queued.swap(false, SeqCst), "it is not queued yet");
        }
        fn is_current(&self) -> bool {
            true
        }
        fn relax(&self) {
            self.removing.store(true, SeqCst);
            std::thread::yield_now();
        }
    }
    let (event, hold, work) = (TaskEvent::new(), SwitchHold::new(), Asked::default());
    std::thread::scope(|threads| {
        threads.spawn(|| event.request(&work, &hold).unwrap());
        while !work.queueing.load(SeqCst) {
            std::thread::yield_now();
        }
        event.remove(&work, &hold).unwrap();
        assert!(!event.is_pending() && hold.is_free());
    });
    assert!(!work.queued.load(SeqCst), "nothing is queued after the removal");
    assert!(!event.is_pending() && hold.is_free());
}

#[test]
fn b_a_removal_of_work_that_does_not_run_gives_up_and_can_go_on() {
    struct Stopped;
    impl TaskWork for Stopped {
        const MAX_RELAXES: u64 = 10;
        fn cookie(&self) -> Result<Cookie, Refusal> {
            Ok(COOKIE)
        }
        fn queue(&self) -> Result<(), ScheduleError> {
            Ok(())
        }
        fn unqueue(&self) {}
        fn is_current(&self) -> bool {
            false
        }
        fn relax(&self) {}
    }
    let (event, hold) = (TaskEvent::new(), SwitchHold::new());
    event.request(&Stopped, &hold).unwrap();
    for _ in 0..2 {
        let error = event.remove(&Stopped, &hold).unwrap_err();
        assert_eq!(error, RemoveError::StillRunning { client: None });
        assert_eq!(event.request(&Stopped, &hold), Err(RequestError::Removed));
    }
    let ran = event.run(&hold, |_| Ok::<_, ()>(()), |_, ()| Ok::<_, ()>(()));
    assert_eq!((ran, event.remove(&Stopped, &hold)), (TaskRun::Written, Ok(())));
}

#[test]
fn r0_20_a_removal_waits_for_pending_work_and_takes_back_its_own() {
    // By the task itself: it cannot wait for itself.
    let (event, work, hold) = (TaskEvent::new(), Work::default(), SwitchHold::new());
    work.current.set(true);
    event.request(&work, &hold).unwrap();
    event.remove(&work, &hold).unwrap();
    assert_eq!((work.unqueued.get(), event.is_pending(), hold.is_free()), (1, false, true));
    assert_eq!(event.request(&work, &hold).unwrap_err(), RequestError::Removed);
    assert_eq!(work.queued.get(), 1);

    // From within the work: refused, and nothing is changed.
    let (event, work, hold) = (TaskEvent::new(), Work::default(), SwitchHold::new());
    work.current.set(true);
    event.request(&work, &hold).unwrap();
    let removed = Cell::new(None);
    let ran = event.run(
        &hold,
        |_| {
            removed.set(Some(event.remove(&work, &hold)));
            Ok::<_, ()>(())
        },
        |_, ()| Ok::<_, ()>(()),
    );
    assert_eq!(ran, TaskRun::Written);
    assert_eq!(removed.get(), Some(Err(RemoveError::OwnDelivery)));
    event.request(&work, &hold).unwrap();

    // By another task: it waits until the work has run.
    struct Elsewhere;
    impl TaskWork for Elsewhere {
        fn cookie(&self) -> Result<Cookie, Refusal> {
            Ok(COOKIE)
        }
        fn queue(&self) -> Result<(), ScheduleError> {
            Ok(())
        }
        fn unqueue(&self) {
            panic!("it is not this task's");
        }
        fn is_current(&self) -> bool {
            false
        }
        fn relax(&self) {
            std::thread::yield_now();
        }
    }
    let (event, hold) = (Arc::new(TaskEvent::new()), Arc::new(SwitchHold::new()));
    event.request(&Elsewhere, &hold).unwrap();
    let remover = {
        let (event, hold) = (Arc::clone(&event), Arc::clone(&hold));
        std::thread::spawn(move || {
            event.remove(&Elsewhere, &hold).unwrap();
            assert!(!event.is_pending());
        })
    };
    // The removal has begun when requests are refused.
    while event.request(&Elsewhere, &hold).is_ok() {
        std::thread::yield_now();
    }
    assert!(!remover.is_finished());
    let ran = event.run(&hold, |_| Ok::<_, ()>(()), |_, ()| Ok::<_, ()>(()));
    assert_eq!(ran, TaskRun::Written);
    remover.join().unwrap();
    assert_eq!(event.run(&hold, |_| Ok::<_, ()>(()), |_, ()| Ok::<_, ()>(())), TaskRun::NotPending);
}

#[test]
fn s2_an_entry_is_walked_once_for_an_event_of_the_task_and_its_clients_in_either_order() {
    /// The queue of a task that is in an entry of the kernel.
    struct OfTask<'k>(&'k Core, &'k Task, Cell<bool>);
    impl TaskWork for OfTask<'_> {
        fn cookie(&self) -> Result<Cookie, Refusal> {
            self.0.cookie(self.1)
        }
        fn queue(&self) -> Result<(), ScheduleError> {
            self.2.set(true);
            Ok(())
        }
        fn unqueue(&self) {}
        fn is_current(&self) -> bool {
            true
        }
        fn relax(&self) {}
    }
    let (core, registry, task) = (&core(), registry(), Task::new(1));
    let client = registry.add(core, spec(100, 0, 1)).unwrap();
    let (event, hold) = (TaskEvent::new(), SwitchHold::new());
    let work = OfTask(core, &task, Cell::new(false));
    // How often the stack was walked for the event, whose record has a cookie.
    let walked = Cell::new(0);
    let run = |expected: Cookie| {
        assert!(work.2.take());
        let mut cache = task.cache.lock().unwrap();
        let cache: &mut UnwindCache = &mut *cache;
        let walk = |_: &mut Trace| walked.set(walked.get() + 1);
        let written = Cell::new(None);
        let ran = event.run(
            &hold,
            move |cookie| Ok::<_, ()>(core.stack(cookie, cache, walk)),
            |cookie, _: &Trace| {
                written.set(Some(cookie));
                Ok::<_, ()>(())
            },
        );
        assert_eq!((ran, written.get()), (TaskRun::Written, Some(expected)));
    };
    let walks = || (walked.get(), task.walks.load(SeqCst));

    // The event's work first: the clients get the stack that it has walked.
    let cookie = event.request(&work, &hold).unwrap();
    registry.request(core, &task, TaskKey(task.number), &client).unwrap();
    run(cookie);
    assert_eq!(receivers(core, &registry, &task, 0), [1]);
    assert_eq!(walks(), (1, 0));

    // The next entry is walked anew; here the clients come first.
    let next = event.request(&work, &hold).unwrap();
    assert_ne!(next, cookie);
    registry.request(core, &task, TaskKey(task.number), &client).unwrap();
    assert_eq!(receivers(core, &registry, &task, 0), [1]);
    run(next);
    assert_eq!(walks(), (1, 1));
}
