//! What the programs have in common. They are linked and looked at, never run.
#![no_std]

use core::arch::global_asm;
use core::hint::{black_box, spin_loop};

use unwind_core::deferred::{
    ClientId, DeferredUnwind, Host, Recipients, RequestContext, ScheduleError, SerialCookies,
    TaskKind, TaskState, UnwindCache,
};
use unwind_core::{Memory, ReadError, Trace, VirtAddr};
use unwind_x86::X86_64Regs;

// What the prebuilt core expects of a C library; the same in all programs.
global_asm!(include_str!("../../kernel/src/mem.s"), options(att_syntax));

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    stop()
}

/// A host whose hooks are known outside of the program alone.
pub struct Outside;

unsafe extern "C" {
    /// Whatever the optimiser cannot know.
    safe fn outside(what: u64) -> u64;
}

global_asm!(".text; .globl outside; outside: ret");

/// A value that the optimiser cannot know.
fn unknown() -> u64 {
    outside(0)
}

/// The end of every program.
pub fn stop() -> ! {
    loop {
        spin_loop();
    }
}

static TASK: TaskState = TaskState::new();

/// The one instance.
static UNWIND: DeferredUnwind<Outside, SerialCookies> =
    DeferredUnwind::new(Outside, SerialCookies::new());

/// What every program has: the host's own code.
#[inline(always)]
pub fn host() {
    let _ = Outside.read(VirtAddr::new(unknown()), &mut [0; 8]);
}

/// A request, and a return to user mode.
#[inline(always)]
pub fn request() {
    let client = ClientId::from_bits(unknown());
    host();
    let _ = black_box(UNWIND.request(&TASK, client));
    let _ = black_box(UNWIND.user_return(&TASK));
}

/// A delivery of what `walk` finds from the registers that it is given.
#[inline(always)]
pub fn deliver(walk: impl FnOnce(X86_64Regs, &mut Trace)) {
    let mut cache = UnwindCache::<[_; 126]>::new();
    let mut delivery = UNWIND.deliver(&TASK, Recipients::Requesters, Some(&mut cache), |cache| {
        walk(X86_64Regs::new(unknown(), unknown(), unknown()), cache);
    });
    while let Some(guard) = delivery.next() {
        black_box(guard.outcome());
    }
}

impl Host for Outside {
    type Task = TaskState;

    fn state<'t>(&self, task: &'t TaskState) -> &'t TaskState {
        task
    }

    fn task_kind(&self, _: &TaskState) -> TaskKind {
        if outside(1) == 0 { TaskKind::User } else { TaskKind::KernelThread }
    }

    fn in_nmi(&self) -> bool {
        outside(2) != 0
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, _: &TaskState, context: RequestContext) -> Result<(), ScheduleError> {
        if context == RequestContext::Nmi {
            outside(3);
        }
        Ok(())
    }

    fn clock(&self) -> u64 {
        outside(4)
    }

    fn relax(&self) {
        outside(5);
    }
}

impl Memory for Outside {
    #[inline(never)]
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        for byte in buf {
            *byte = outside(addr.get()).to_le_bytes()[0];
        }
        if outside(6) == 0 { Ok(()) } else { Err(ReadError::NotResident) }
    }
}
