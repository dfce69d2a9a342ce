//! What the unwinder asks of this kernel, and the kernel's one instance of it.

use unwind_core::deferred::{
    DeferredUnwind, Host, RequestContext, ScheduleError, SerialCookies, TaskKind, TaskState,
};

use crate::options::Protection;
use crate::task::schedule;
use crate::task::state::Task;
use crate::{apic, cpu, frame};

/// The kernel's one instance.
pub(crate) static UNWIND: DeferredUnwind<Kernel, SerialCookies> =
    DeferredUnwind::new(Kernel, SerialCookies::new());

/// This kernel, as the unwinder sees it.
#[derive(Clone, Copy)]
pub(crate) struct Kernel;

impl Host for Kernel {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        task.unwind()
    }

    fn task_kind(&self, task: &Task) -> TaskKind {
        task.unwind_kind()
    }

    fn in_nmi(&self) -> bool {
        frame::in_nmi()
    }

    fn cpu(&self) -> u32 {
        cpu::number() as u32
    }

    /// Every way out asks [`user_return`](unwind_core::deferred::DeferredUnwind) whether
    /// something is pending, so nothing has to be noted. Only an NMI may come
    /// after that question: an interrupt leads the task to it again. It is
    /// taken where interrupts are on, so before the next user instruction at
    /// the latest.
    fn schedule(&self, _: &Task, context: RequestContext) -> Result<(), ScheduleError> {
        if context == RequestContext::Nmi && Protection::ReturnInterrupt.is_on() {
            apic::send_return_work();
        }
        Ok(())
    }

    fn clock(&self) -> u64 {
        cpu::clock()
    }

    fn relax(&self) {
        schedule::sleep(1);
    }
}
