//! Whether a task has a user stack at all.

use unwind_core::deferred::TaskKind;

/// What is known of a task at the moment of a sample.
///
/// Neither the flags nor the memory alone tell whether there is user code: a
/// kernel thread may borrow a program's memory, an I/O worker shares it for
/// good, and a task that exits has lost it while its flags say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampledTask {
    /// It has an address space of user code.
    pub has_memory: bool,
    /// It is a kernel thread.
    pub is_kernel_thread: bool,
    /// The task works for a program but never returns to user code.
    pub is_user_worker: bool,
    /// The task came from user code: its registers at that moment are saved.
    pub has_user_registers: bool,
}

impl SampledTask {
    /// Whether it is a task with user code.
    #[must_use]
    pub const fn is_user(self) -> bool {
        self.has_memory && !self.is_kernel_thread && !self.is_user_worker
    }

    /// Whether there is a user stack to be walked later.
    #[must_use]
    pub const fn has_user_stack(self) -> bool {
        self.is_user() && self.has_user_registers
    }

    /// What the deferral core calls it: for a host's
    /// [`task_kind`](unwind_core::deferred::Host::task_kind).
    #[must_use]
    pub const fn kind(self) -> TaskKind {
        if self.is_kernel_thread {
            TaskKind::KernelThread
        } else if self.is_user_worker {
            TaskKind::UserWorker
        } else if !self.has_memory {
            TaskKind::Exiting
        } else if !self.has_user_registers {
            TaskKind::NoUserRegisters
        } else {
            TaskKind::User
        }
    }
}
