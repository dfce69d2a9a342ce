//! The per-CPU registry and events that follow a task.

use core::fmt::Write as _;

use unwind_core::deferred::{
    CancelError, ClientId, Cookie, Refusal, RequestOutcome, ScheduleError, TooManyClients,
    relax_while,
};
use unwind_perf::per_cpu::{
    CpuEvent, Deferral, DeliveryPolicy, EventKey, EventSpec, FixedRegistry, GroupKey, GroupLeader,
    Receiver, SampledTask, SwitchHold, TaskEvent, TaskKey, TaskWork,
};

use crate::{Text, seen};

unsafe extern "C" {
    /// Asks the core something.
    fn ask_core(what: u32, client: u64) -> u64;
}

struct Core;

fn ask(what: u32, client: u64) -> u64 {
    // SAFETY: promised by the function that links this.
    unsafe { ask_core(what, client) }
}

impl Deferral for Core {
    type Task = ();

    fn register(&self) -> Result<ClientId, TooManyClients> {
        match ask(0, 0) {
            0 => Err(TooManyClients),
            bits => Ok(ClientId::from_bits(bits)),
        }
    }

    fn cancel(&self, _: Option<&()>, client: ClientId) -> Result<(), CancelError> {
        match ask(1, client.to_bits()) {
            0 => Ok(()),
            _ => Err(CancelError::UnknownClient),
        }
    }

    fn is_delivering(&self, (): &(), client: ClientId) -> bool {
        ask(2, client.to_bits()) != 0
    }

    fn request(&self, (): &(), client: ClientId) -> RequestOutcome {
        match Cookie::new(ask(3, client.to_bits())) {
            Some(cookie) => RequestOutcome::Queued(cookie),
            None => RequestOutcome::Refused(unwind_core::deferred::Refusal::UnknownClient),
        }
    }

    fn relax(&self) {
        ask(4, 0);
    }

    fn wait_while(&self, is_running: impl Fn() -> bool) {
        relax_while(is_running, ask(8, 0), || Deferral::relax(self));
    }
}

impl TaskWork for Core {
    fn cookie(&self) -> Result<Cookie, Refusal> {
        Cookie::new(ask(4, 0)).ok_or(Refusal::NoCookie)
    }

    fn queue(&self) -> Result<(), ScheduleError> {
        if ask(5, 0) == 0 { Ok(()) } else { Err(ScheduleError) }
    }

    fn unqueue(&self) {
        ask(6, 0);
    }

    fn is_current(&self) -> bool {
        ask(7, 0) != 0
    }

    fn relax(&self) {
        ask(8, 0);
    }
}

static FIRST: FixedRegistry<8, 4> = FixedRegistry::new(DeliveryPolicy::FirstLive);
static EACH: FixedRegistry<8, 4> = FixedRegistry::new(DeliveryPolicy::Broadcast);
static HOLD: SwitchHold = SwitchHold::new();

/// Events come, ask, get stacks and go.
#[unsafe(no_mangle)]
pub fn registry(leader: u64, cpu: i32, task: u64, event: &CpuEvent) {
    let spec = EventSpec {
        leader: GroupLeader(leader),
        cpu,
        task: Some(TaskKey(task)),
        key: EventKey(task),
        defer_output: leader & 1 == 0,
    };
    for registry in [&FIRST, &EACH] {
        if let Err(error) = registry.add(&Core, spec) {
            let _ = write!(Text(0), "{error} {}", error.errno().name());
        }
        let of_all = EventSpec { task: None, ..spec };
        if let Err(error) = registry.add_for_group(&Core, of_all, GroupKey(leader)) {
            let _ = write!(Text(0), "{error} {}", error.errno().name());
        }
        if let Err(error) = registry.request(&Core, &(), TaskKey(task), event) {
            let _ = write!(Text(0), "{error}");
        }
        if let Err(error) = registry.inherit(&Core, *event, TaskKey(task), EventKey(leader)) {
            let _ = write!(Text(0), "{error}");
        }
        let output = |key: EventKey| if ask(9, key.0) == 0 { Ok(()) } else { Err(()) };
        seen(registry.deliver(event.client(), cpu.unsigned_abs(), TaskKey(task), output));
        if let Err(error) = registry.remove(&Core, Some(&()), *event) {
            let _ = write!(Text(0), "{error}");
        }
        let leader = GroupLeader(leader);
        seen((registry.client_of(leader), registry.occupied_cpus(leader), registry.counters()));
    }
}

/// An event that follows a task.
#[unsafe(no_mangle)]
pub fn task_event(event: &TaskEvent, sampled: SampledTask, spec: (u64, i32)) {
    seen((event.request(&Core, &HOLD), event.is_pending()));
    let walk = |cookie: Cookie| if ask(10, cookie.get()) == 0 { Ok(()) } else { Err(()) };
    seen(event.run(
        &HOLD,
        walk,
        |cookie, ()| if ask(11, cookie.get()) == 0 { Ok(()) } else { Err(()) },
    ));
    seen((event.remove(&Core, &HOLD), event.output_failed(), event.no_stack()));
    let spec = EventSpec {
        leader: GroupLeader(spec.0),
        cpu: spec.1,
        task: None,
        key: EventKey(spec.0),
        defer_output: false,
    };
    if let Ok(receiver) = Receiver::open(&FIRST, &Core, spec) {
        seen(receiver.request(&FIRST, &Core, sampled, (&(), TaskKey(3)), (&Core, &HOLD)));
        seen(receiver.remove(&FIRST, &Core, None, (&Core, &HOLD)));
    }
    seen((HOLD.is_free(), sampled.kind()));
}
