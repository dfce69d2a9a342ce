//! Requests for user stacks and their deliveries.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use unwind_core::deferred::{
    ClientId, ClockCookies, CounterCookies, DeferredUnwind, Host, LossReason, PerCpuCookies,
    Recipients, RequestContext, RequestOutcome, ScheduleError, SerialCookies, TaskKind, TaskState,
    UnwindCache, UserReturn,
};

/// A task with what the hooks look at.
#[repr(C)]
pub struct Task {
    state: TaskState,
    flags: AtomicU32,
    work: AtomicBool,
}

const KERNEL_THREAD: u32 = 1;
const USER_WORKER: u32 = 2;
const EXITING: u32 = 4;
const NO_USER_REGISTERS: u32 = 8;

/// What a per-CPU block of a kernel would have.
pub struct Kernel {
    nmi_depth: AtomicU32,
    cpu: AtomicU32,
    time: AtomicU64,
}

impl Host for Kernel {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.state
    }

    fn task_kind(&self, task: &Task) -> TaskKind {
        match task.flags.load(Ordering::Relaxed) {
            0 => TaskKind::User,
            flags if flags & KERNEL_THREAD != 0 => TaskKind::KernelThread,
            flags if flags & USER_WORKER != 0 => TaskKind::UserWorker,
            flags if flags & EXITING != 0 => TaskKind::Exiting,
            flags if flags & NO_USER_REGISTERS != 0 => TaskKind::NoUserRegisters,
            _ => TaskKind::User,
        }
    }

    fn in_nmi(&self) -> bool {
        self.nmi_depth.load(Ordering::Relaxed) != 0
    }

    fn cpu(&self) -> u32 {
        self.cpu.load(Ordering::Relaxed)
    }

    fn schedule(&self, task: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        task.work.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn clock(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    fn relax(&self) {
        core::hint::spin_loop();
    }
}

static SERIAL: DeferredUnwind<Kernel> = DeferredUnwind::new(KERNEL, SerialCookies::new());
static PER_CPU: DeferredUnwind<Kernel, PerCpuCookies<64>> =
    DeferredUnwind::new(KERNEL, PerCpuCookies::new());
static COUNTER: DeferredUnwind<Kernel, CounterCookies> =
    DeferredUnwind::new(KERNEL, CounterCookies::new());
static CLOCK: DeferredUnwind<Kernel, ClockCookies> =
    DeferredUnwind::new(KERNEL, ClockCookies::new());

#[expect(clippy::declare_interior_mutable_const, reason = "each instance has its own")]
const KERNEL: Kernel =
    Kernel { nmi_depth: AtomicU32::new(0), cpu: AtomicU32::new(0), time: AtomicU64::new(0) };

fn code(outcome: RequestOutcome) -> u64 {
    outcome.cookie().map_or(0, |cookie| cookie.get())
}

macro_rules! requests {
    ($($instance:ident: $request:ident $anew:ident $cookie:ident;)*) => {
        $(
            /// A request.
            #[unsafe(no_mangle)]
            pub fn $request(task: &Task, client: NonZeroU64) -> u64 {
                code($instance.request(task, ClientId::from_bits(client.get())))
            }

            /// A request for a second stack.
            #[unsafe(no_mangle)]
            pub fn $anew(task: &Task, client: NonZeroU64) -> u64 {
                code($instance.request_anew(task, ClientId::from_bits(client.get())))
            }

            /// A cookie without a request.
            #[unsafe(no_mangle)]
            pub fn $cookie(task: &Task) -> u64 {
                $instance.cookie(task).map_or(0, |cookie| cookie.get())
            }
        )*
    };
}

requests! {
    SERIAL: request_serial request_anew_serial cookie_serial;
    PER_CPU: request_per_cpu request_anew_per_cpu cookie_per_cpu;
    COUNTER: request_counter request_anew_counter cookie_counter;
    CLOCK: request_clock request_anew_clock cookie_clock;
}

/// The hook on the way to user code.
#[unsafe(no_mangle)]
pub fn user_return(task: &Task) -> bool {
    SERIAL.user_return(task) == UserReturn::Ready
}

/// Registration.
#[unsafe(no_mangle)]
pub fn register() -> u64 {
    SERIAL.register().map_or(0, ClientId::to_bits)
}

/// Cancellation.
#[unsafe(no_mangle)]
pub fn cancel(task: &Task, client: u64) -> bool {
    SERIAL.cancel(Some(task), ClientId::from_bits(client)).is_ok()
}

/// A delivery with a walk that finds nothing.
#[unsafe(no_mangle)]
pub fn deliver(
    task: &Task,
    everyone: bool,
    cache: Option<&mut UnwindCache>,
    call: extern "C" fn(u64, u64, usize),
) {
    let recipients = if everyone { Recipients::AllClients } else { Recipients::Requesters };
    let mut delivery = SERIAL.deliver(task, recipients, cache, |_| ());
    while let Some(guard) = delivery.next() {
        let frames = guard.trace().map_or(0, |trace| trace.len());
        call(guard.client().to_bits(), guard.cookie().get(), frames);
    }
}

/// Exec: what is pending is lost.
#[unsafe(no_mangle)]
pub fn exec(task: &Task, call: extern "C" fn(u64, u64, usize)) -> bool {
    SERIAL.close(task);
    let mut delivery = SERIAL.abandon(task, LossReason::Exec);
    while let Some(guard) = delivery.next() {
        call(guard.client().to_bits(), guard.cookie().get(), 0);
    }
    drop(delivery);
    SERIAL.reopen(task) == UserReturn::Ready
}

/// The sum of all drops, and what else can be asked.
#[unsafe(no_mangle)]
pub fn drops(task: &Task, client: u64) -> u64 {
    let client = ClientId::from_bits(client);
    let delivering = SERIAL.is_delivering(task, client);
    SERIAL.drops().unknown_client ^ client.registration() ^ u64::from(delivering)
}
