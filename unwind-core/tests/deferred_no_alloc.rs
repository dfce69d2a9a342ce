//! What the deferred API asks of its context: no memory, little stack.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::as_conversions, reason = "a test that goes wrong fails")]

use test_support::CountingAllocator;
use unwind_core::deferred::*;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

struct Bare;

struct Task(TaskState);

impl Host for Bare {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.0
    }

    fn task_kind(&self, _: &Task) -> TaskKind {
        TaskKind::User
    }

    fn in_nmi(&self) -> bool {
        false
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, _: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        Ok(())
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {}
}

#[test]
fn x1_nothing_allocates_from_registration_to_the_end() {
    let allocations = CountingAllocator::allocations();
    let unwind: DeferredUnwind<Bare> = DeferredUnwind::new(Bare, SerialCookies::new());
    let task = Task(TaskState::new());
    let clients = [(); MAX_CLIENTS].map(|()| unwind.register().unwrap());
    let mut cache = UnwindCache::<[_; 510]>::new();
    for _ in 0..3 {
        unwind.cookie(&task).unwrap();
        for client in clients {
            assert!(unwind.request(&task, client).is_pending());
            assert!(unwind.request(&task, client).is_pending());
        }
        let mut delivery = unwind.deliver(&task, Recipients::Requesters, Some(&mut cache), |_| ());
        let mut calls = 0_u32;
        while delivery.next().is_some() {
            calls = calls.saturating_add(1);
        }
        drop(delivery);
        assert_eq!(calls as usize, MAX_CLIENTS);
        assert_eq!(unwind.user_return(&task), UserReturn::Ready);
    }
    unwind.close(&task);
    assert_eq!(unwind.reopen(&task), UserReturn::Ready);
    for client in clients {
        unwind.cancel(Some(&task), client).unwrap();
    }
    assert_eq!(CountingAllocator::allocations(), allocations);
    drop(Box::new(1));
    assert!(CountingAllocator::allocations() > allocations, "it does count");
}
