//! Fork, exec and exit with a request pending.

use unwind_core::deferred::*;

use crate::{
    STACK,
    sim::{Kernel, Task},
};

#[test]
fn f2_an_exit_delivers_while_the_memory_is_there_and_refuses_from_then_on() {
    let kernel = Kernel::new();
    let [client, other] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, client);
    kernel.unwind.close(&task);
    let refused = RequestOutcome::Refused(Refusal::Exiting);
    assert_eq!(kernel.request(&task, other), refused);
    assert_eq!(kernel.request(&task, client), refused, "also if it has asked before");
    assert_eq!(kernel.unwind.cookie(&task), Err(Refusal::Exiting));
    let calls = kernel.deliver(&task);
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].end, calls[0].stack.as_deref()), (SampleOutcome::Matched, Some(STACK)));
    // The memory goes.
    task.set_stack(&[]);
    assert_eq!(kernel.request(&task, client), refused);
    assert!(kernel.deliver(&task).is_empty());
}

#[test]
fn h10_an_exec_delivers_the_old_stack_at_its_point_of_no_return() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let old = kernel.ask(&task, client);
    // An exec that fails before that point changes nothing.
    assert_eq!(kernel.ask(&task, client), old);
    kernel.unwind.close(&task);
    let calls = kernel.deliver(&task);
    assert_eq!((calls[0].cookie, calls[0].stack.as_deref()), (old, Some(STACK)));
    task.set_stack(&[0x40_0000]);
    assert_eq!(kernel.request(&task, client), RequestOutcome::Refused(Refusal::Exiting));
    assert_eq!(kernel.unwind.reopen(&task), UserReturn::Ready);
    let new = kernel.ask(&task, client);
    assert_ne!(new, old);
    let calls = kernel.return_to_user(&task);
    assert_eq!((calls[0].cookie, calls[0].stack.as_deref()), (new, Some(&[0x40_0000][..])));
}

#[test]
fn h10_an_exec_in_an_entry_without_a_cookie_gives_none_out_twice() {
    let kernel = Kernel::new();
    let task = Task::new(STACK);
    let before = kernel.unwind.cookie(&task).unwrap();
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready);
    kernel.unwind.close(&task);
    assert_eq!(kernel.unwind.reopen(&task), UserReturn::Ready);
    let after = kernel.unwind.cookie(&task).unwrap();
    assert_ne!(before, after);
}

#[test]
fn h10_a_task_with_something_pending_is_not_reopened() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, client);
    kernel.unwind.close(&task);
    assert_eq!(kernel.unwind.reopen(&task), UserReturn::Pending);
    let mut abandonment = kernel.unwind.abandon(&task, LossReason::Exec);
    assert_eq!(abandonment.next().unwrap().outcome(), SampleOutcome::Exec);
    assert!(abandonment.next().is_none());
    drop(abandonment);
    assert_eq!(kernel.unwind.reopen(&task), UserReturn::Ready);
}

#[test]
fn a_child_inherits_nothing() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let parent = Task::new(STACK);
    let of_parent = kernel.ask(&parent, client);
    let child = Task::new(STACK);
    assert!(kernel.return_to_user(&child).is_empty());
    assert!(
        matches!(kernel.request(&child, client), RequestOutcome::Queued(it) if it != of_parent)
    );
    assert_eq!(kernel.return_to_user(&parent)[0].cookie, of_parent);
}
