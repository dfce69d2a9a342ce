//! How much stack the calls need that may come in an NMI: at most 128 bytes
//! each, with hooks that need none.
//!
//! Each call runs on a painted stack; what is no longer painted was used.
//!
//! `cargo run --release -p unwind-core --example stack_use`

#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a program that reads nothing from outside"
)]

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("stacks are switched in x86-64 assembly");
}

#[cfg(target_arch = "x86_64")]
fn main() -> std::process::ExitCode {
    let most = calls::ALL.map(|(before, name, call)| {
        before();
        let bytes = painted::bytes_used(call);
        println!("{bytes:>4} bytes: {name}");
        bytes
    });
    match most.into_iter().max() {
        Some(..=128) => std::process::ExitCode::SUCCESS,
        _ => std::process::ExitCode::FAILURE,
    }
}

#[cfg(target_arch = "x86_64")]
mod calls {
    //! The calls, each as the handler of an NMI would make it.

    use core::hint::black_box;
    use core::sync::atomic::{AtomicU64, Ordering};

    use unwind_core::deferred::{
        ClientId, ClockCookies, CookieSource, CounterCookies, DeferredUnwind, Host, PerCpuCookies,
        Recipients, RequestContext, ScheduleError, SerialCookies, TaskKind, TaskState, UserReturn,
    };

    struct Kernel;

    impl Host for Kernel {
        type Task = TaskState;

        fn state<'t>(&self, task: &'t TaskState) -> &'t TaskState {
            task
        }

        fn task_kind(&self, _: &TaskState) -> TaskKind {
            TaskKind::User
        }

        fn in_nmi(&self) -> bool {
            true
        }

        fn cpu(&self) -> u32 {
            0
        }

        fn schedule(&self, _: &TaskState, _: RequestContext) -> Result<(), ScheduleError> {
            Ok(())
        }

        fn clock(&self) -> u64 {
            0
        }

        fn relax(&self) {}
    }

    static SERIAL: DeferredUnwind<Kernel> = DeferredUnwind::new(Kernel, SerialCookies::new());
    static PER_CPU: DeferredUnwind<Kernel, PerCpuCookies<1>> =
        DeferredUnwind::new(Kernel, PerCpuCookies::new());
    static COUNTER: DeferredUnwind<Kernel, CounterCookies> =
        DeferredUnwind::new(Kernel, CounterCookies::new());
    static CLOCK: DeferredUnwind<Kernel, ClockCookies> =
        DeferredUnwind::new(Kernel, ClockCookies::new());
    static TASKS: [TaskState; 4] = [const { TaskState::new() }; 4];
    static CLIENTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

    #[inline(always)]
    fn request<C: CookieSource>(unwind: &DeferredUnwind<Kernel, C>, at: usize) {
        let client = ClientId::from_bits(CLIENTS[at].load(Ordering::Relaxed));
        _ = black_box(unwind.request(&TASKS[at], client));
    }

    extern "C" fn nothing() {}

    extern "C" fn serial() {
        request(&SERIAL, 0);
    }

    extern "C" fn per_cpu() {
        request(&PER_CPU, 1);
    }

    extern "C" fn counter() {
        request(&COUNTER, 2);
    }

    extern "C" fn clock() {
        request(&CLOCK, 3);
    }

    extern "C" fn cookie() {
        black_box(SERIAL.cookie(&TASKS[0])).expect("a user task");
    }

    extern "C" fn user_return() {
        let _: UserReturn = black_box(SERIAL.user_return(&TASKS[0]));
    }

    /// Delivers, in its own context: on the ordinary stack.
    fn deliver() {
        let none = None;
        let mut delivery = SERIAL.deliver(&TASKS[0], Recipients::Requesters, none, |_| ());
        while delivery.next().is_some() {}
    }

    fn register() {
        let ids = [SERIAL.register(), PER_CPU.register(), COUNTER.register(), CLOCK.register()];
        for (client, id) in CLIENTS.iter().zip(ids) {
            client.store(id.expect("the table is not full").to_bits(), Ordering::Relaxed);
        }
    }

    /// What comes before a call, its name, and the call.
    pub(super) type Case = (fn(), &'static str, extern "C" fn());

    /// In this order: a call finds what an earlier one left.
    pub(super) const ALL: [Case; 12] = [
        (|| (), "no call", nothing),
        (register, "a task's first request, serial cookies", serial),
        (|| (), "a task's first request, per-cpu cookies", per_cpu),
        (|| (), "a task's first request, counter cookies", counter),
        (|| (), "a task's first request, clock cookies", clock),
        (|| (), "a repeated request", serial),
        (|| (), "a return that has to wait", user_return),
        (deliver, "a return with something to reset", user_return),
        (|| (), "a request in the next entry", serial),
        (register, "a request of a new client", serial),
        (|| (), "a cookie", cookie),
        (deliver, "a repeated request after the delivery", serial),
    ];
}

#[cfg(target_arch = "x86_64")]
mod painted {
    //! A stack that shows what was used of it.

    use core::arch::asm;

    const PAINT: u64 = 0x5a5a_a5a5_5a5a_a5a5;
    const WORDS: usize = 1 << 13;

    /// How many bytes of stack `call` uses, with its return address.
    pub(super) fn bytes_used(call: extern "C" fn()) -> usize {
        let mut stack = Box::new([PAINT; WORDS]);
        // The end of the box is aligned for a call.
        let top = (stack.as_mut_ptr_range().end.addr() & !15) as u64;
        // SAFETY: `call` returns normally and needs far less than the stack
        // has; the stack pointer is back where it was afterwards.
        unsafe {
            asm!(
                "mov r12, rsp",
                "mov rsp, {top}",
                "call {call}",
                "mov rsp, r12",
                top = in(reg) top,
                call = in(reg) call,
                out("r12") _,
                clobber_abi("C"),
            );
        }
        let untouched = core::hint::black_box(&stack).iter().take_while(|&&word| word == PAINT);
        (WORDS - untouched.count()) * size_of::<u64>()
    }
}
