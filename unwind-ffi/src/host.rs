//! The one instance, and what it asks of the host.

use unwind_core::deferred::{
    DeferredUnwind, Host, RequestContext, ScheduleError, SerialCookies, TaskKind, TaskState,
};

use crate::numbers::unwind_task_kind;
use crate::raw::hooks;

/// The host in C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CHost;

pub(crate) static UNWIND: DeferredUnwind<CHost> = DeferredUnwind::new(CHost, SerialCookies::new());

impl Host for CHost {
    type Task = TaskState;

    #[inline]
    fn state<'t>(&self, task: &'t TaskState) -> &'t TaskState {
        task
    }

    fn task_kind(&self, task: &TaskState) -> TaskKind {
        match unwind_task_kind::from_number(hooks::task_kind(task)) {
            Some(unwind_task_kind::User) => TaskKind::User,
            Some(unwind_task_kind::KernelThread) => TaskKind::KernelThread,
            Some(unwind_task_kind::UserWorker) => TaskKind::UserWorker,
            Some(unwind_task_kind::Exiting) => TaskKind::Exiting,
            Some(unwind_task_kind::NoUserRegisters) | None => TaskKind::NoUserRegisters,
        }
    }

    fn in_nmi(&self) -> bool {
        hooks::in_nmi()
    }

    fn cpu(&self) -> u32 {
        hooks::cpu()
    }

    fn schedule(&self, task: &TaskState, context: RequestContext) -> Result<(), ScheduleError> {
        if hooks::schedule(task, context == RequestContext::Nmi) {
            Ok(())
        } else {
            Err(ScheduleError)
        }
    }

    /// Cookies are no times.
    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {}

    fn wait_while(&self, is_running: impl Fn() -> bool) {
        let mut turn = 0_u64;
        while is_running() && hooks::relax(turn) {
            turn = turn.wrapping_add(1);
        }
    }
}
