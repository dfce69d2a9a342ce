//! What is asked of a host, which tasks it may have, and what it need not have.

use core::sync::atomic::{AtomicU32, Ordering};

use unwind_core::deferred::*;
use unwind_core::*;

use crate::{
    STACK,
    sim::{self, Cache, Kernel, SpecialHost, Task},
};

#[test]
fn r3_9_tasks_that_do_not_return_to_user_code_are_refused() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    for (kind, refusal) in [
        (TaskKind::KernelThread, Refusal::KernelThread),
        (TaskKind::UserWorker, Refusal::UserWorker),
        (TaskKind::Exiting, Refusal::Exiting),
        (TaskKind::NoUserRegisters, Refusal::NoUserRegisters),
    ] {
        let task = Task::new(STACK);
        task.set_kind(kind);
        assert_eq!(kernel.request(&task, client), RequestOutcome::Refused(refusal));
        assert_eq!(kernel.unwind.cookie(&task), Err(refusal));
        assert!(task.scheduled.lock().unwrap().is_empty());
        assert!(kernel.return_to_user(&task).is_empty());
    }
}

#[test]
fn f3_a_request_in_an_nmi_is_scheduled_as_such() {
    let kernel = Kernel::new();
    let [client, other] = kernel.register();
    let task = Task::new(STACK);
    kernel.unwind.host().nmi(|| kernel.ask(&task, client));
    kernel.ask(&task, other);
    assert_eq!(*task.scheduled.lock().unwrap(), [RequestContext::Nmi], "once, by the first");
    kernel.return_to_user(&task);
    kernel.ask(&task, client);
    assert_eq!(*task.scheduled.lock().unwrap(), [RequestContext::Normal]);
}

#[test]
fn f4_the_delivery_is_scheduled_on_the_asked_task_before_the_request_returns() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let (task, next) = (Task::new(STACK), Task::new(&[0x9000]));
    // The NMI comes while the scheduler switches from one to the other.
    kernel.unwind.host().nmi(|| kernel.ask(&task, client));
    assert_eq!(task.scheduled.lock().unwrap().len(), 1);
    assert!(next.scheduled.lock().unwrap().is_empty());
    assert!(kernel.return_to_user(&next).is_empty());
    assert_eq!(kernel.return_to_user(&task)[0].stack.as_deref(), Some(STACK));
}

#[test]
fn f6_the_end_of_an_entry_calls_no_hook() {
    let kernel = Kernel::new();
    let task = Task::new(STACK);
    kernel.unwind.cookie(&task).unwrap();
    kernel.unwind.host().silent.store(true, Ordering::SeqCst);
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready, "with something to reset");
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready, "with nothing");
}

#[test]
fn two_instances_share_nothing() {
    let kernels = [Kernel::new(), Kernel::new()];
    let clients = kernels.each_ref().map(|kernel| kernel.register::<1>()[0]);
    let tasks = [Task::new(STACK), Task::new(&[0x9000])];
    kernels[0].ask(&tasks[0], clients[0]);
    assert!(kernels[1].return_to_user(&tasks[1]).is_empty());
    kernels[1].unwind.cancel(None, clients[1]).unwrap();
    assert_eq!(kernels[0].return_to_user(&tasks[0]).len(), 1);
    assert_eq!(kernels[1].drops(), DropCounts::default());
}

/// A hypervisor: its tasks are vCPUs, user code is the guest, and the way out
/// is the entry into the VM.
#[derive(Default)]
struct Hypervisor {
    kicks: AtomicU32,
}

struct Vcpu {
    state: TaskState,
    guest_stack: Vec<u64>,
}

impl Host for Hypervisor {
    type Task = Vcpu;

    fn state<'t>(&self, vcpu: &'t Vcpu) -> &'t TaskState {
        &vcpu.state
    }

    fn task_kind(&self, vcpu: &Vcpu) -> TaskKind {
        if vcpu.guest_stack.is_empty() { TaskKind::NoUserRegisters } else { TaskKind::User }
    }

    fn in_nmi(&self) -> bool {
        false
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, _: &Vcpu, _: RequestContext) -> Result<(), ScheduleError> {
        self.kicks.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {}
}

#[test]
fn a_hypervisor_is_a_host_whose_tasks_are_vcpus() {
    let vm: DeferredUnwind<Hypervisor> =
        DeferredUnwind::new(Hypervisor::default(), SerialCookies::new());
    let profiler = vm.register().unwrap();
    let vcpu = Vcpu { state: TaskState::new(), guest_stack: STACK.to_vec() };
    let unborn = Vcpu { state: TaskState::new(), guest_stack: Vec::new() };
    let outcome = vm.request(&vcpu, profiler);
    assert_eq!(vm.request(&unborn, profiler), RequestOutcome::Refused(Refusal::NoUserRegisters));
    assert_eq!(vm.host().kicks.load(Ordering::SeqCst), 1);
    // Before the VM is entered.
    let mut cache = Cache::new();
    let walk = |trace: &mut Trace| sim::walk_frames(&vcpu.guest_stack, trace);
    let mut delivery = vm.deliver(&vcpu, Recipients::Requesters, Some(&mut cache), walk);
    let guard = delivery.next().unwrap();
    assert_eq!(Some(guard.cookie()), outcome.cookie());
    assert_eq!(sim::pcs_of(guard.trace().unwrap()), STACK);
    drop(guard);
    drop(delivery);
    assert_eq!(vm.user_return(&vcpu), UserReturn::Ready);
}

/// A host whose compare-exchange an NMI must not interrupt.
type OldCpu = SpecialHost<false, { 1 << 28 }>;

#[test]
fn r3_8_where_a_compare_exchange_is_not_safe_in_an_nmi_such_requests_are_refused() {
    let unwind = DeferredUnwind::new(OldCpu::default(), SerialCookies::new());
    let client = unwind.register().unwrap();
    let task = Task::new(STACK);
    let in_nmi = unwind.host().0.nmi(|| unwind.request(&task, client));
    assert_eq!(in_nmi, RequestOutcome::Refused(Refusal::NmiUnsafe));
    assert_eq!(unwind.host().0.nmi(|| unwind.cookie(&task)), Err(Refusal::NmiUnsafe));
    assert!(matches!(unwind.request(&task, client), RequestOutcome::Queued(_)));
    assert_eq!(unwind.drops().nmi_unsafe, 2);
}

#[test]
fn the_blocks_have_the_documented_sizes() {
    assert_eq!(size_of::<TaskState>(), 48);
    assert!(size_of::<TaskState>() <= 128);
    assert_eq!(size_of::<RequestOutcome>(), 16);
    assert_eq!(size_of::<Option<Cookie>>(), 8);
    assert_eq!(size_of::<ClientId>(), 8);
    assert!(size_of::<DeferredUnwind<Hypervisor>>() <= 3072);
    // A static needs no code to set it up.
    static STATE: TaskState = TaskState::new();
    static CLIENTS: DeferredUnwind<Hypervisor, CounterCookies> =
        DeferredUnwind::new(Hypervisor { kicks: AtomicU32::new(0) }, CounterCookies::new());
    assert!(format!("{STATE:?} {CLIENTS:?}").contains("entry: 0"));
}
