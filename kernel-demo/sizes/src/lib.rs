//! What the programs have in common. They are linked and looked at, never run.
#![no_std]

use core::arch::global_asm;

use unwind_core::{
    Context, DeferredUnwind, Host, Memory, ReadError, ScheduleError, SerialCookies, TaskKind,
    TaskState, VirtAddr,
};

// What the prebuilt core expects of a C library; the same in all programs.
global_asm!(include_str!("../../kernel/src/mem.s"), options(att_syntax));

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// A host whose hooks are known outside of the program alone.
pub struct Outside;

unsafe extern "C" {
    /// Whatever the optimiser cannot know.
    safe fn outside(what: u64) -> u64;
}

global_asm!(".text; .globl outside; outside: ret");

/// A value that the optimiser cannot know.
pub fn unknown() -> u64 {
    outside(0)
}

/// The one instance.
pub static UNWIND: DeferredUnwind<Outside, SerialCookies> =
    DeferredUnwind::new(Outside, SerialCookies::new());

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

    fn schedule(&self, _: &TaskState, context: Context) -> Result<(), ScheduleError> {
        if context == Context::Nmi {
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
