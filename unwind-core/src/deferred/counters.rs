//! How much was lost, and why.

use super::Refusal;
use super::sample_end::Stack;
use crate::sync::{Ordering, Statistic};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How many samples and stacks an instance has lost, by reason.
        ///
        /// The numbers are read one after the other while others may count.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct DropCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters behind [`DropCounts`].
        #[derive(Debug)]
        pub(crate) struct Counters {
            $($name: Statistic,)*
        }

        impl Counters {
            pub(crate) const fn new() -> Self {
                Self { $($name: Statistic::new(0),)* }
            }

            pub(crate) fn read(&self) -> DropCounts {
                DropCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Requests refused since the task is a kernel thread.
    kernel_thread,
    /// Requests refused since the task never returns to user code.
    user_worker,
    /// Requests refused since the task exits or executes another program.
    exiting,
    /// Requests refused since the task has no saved user registers.
    no_user_registers,
    /// Requests refused since they came in an NMI.
    nmi_unsafe,
    /// Requests of clients that are not registered.
    unknown_client,
    /// Requests refused since no delivery could be scheduled.
    schedule_failed,
    /// Requests refused since there is no cookie for the CPU.
    no_cookie,
    /// Requests that were granted and whose client was then cancelled.
    client_cancelled,
    /// Deliveries without a stack since no cache was lent.
    no_cache,
    /// Deliveries without a stack since the walk found no frame.
    no_frames,
    /// Deliveries of a part of the stack.
    truncated,
    /// Deliveries without a stack since the task ended.
    task_gone,
    /// Deliveries without a stack since the task executed another program.
    exec,
}

impl Counters {
    #[cold]
    pub(crate) fn refused(&self, refusal: Refusal) {
        let counter = match refusal {
            Refusal::KernelThread => &self.kernel_thread,
            Refusal::UserWorker => &self.user_worker,
            Refusal::Exiting => &self.exiting,
            Refusal::NoUserRegisters => &self.no_user_registers,
            Refusal::NmiUnsafe => &self.nmi_unsafe,
            Refusal::UnknownClient => &self.unknown_client,
            Refusal::ScheduleFailed => &self.schedule_failed,
            Refusal::NoCookie => &self.no_cookie,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn cancelled(&self, requests: u32) {
        if requests != 0 {
            self.client_cancelled.fetch_add(u64::from(requests), Ordering::Relaxed);
        }
    }

    pub(crate) fn delivered(&self, stack: Stack) {
        let counter = match stack {
            Stack::Whole => return,
            Stack::Partial => &self.truncated,
            Stack::NoCache => &self.no_cache,
            Stack::NoFrames => &self.no_frames,
            Stack::TaskGone => &self.task_gone,
            Stack::Exec => &self.exec,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
