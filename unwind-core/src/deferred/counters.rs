//! How much was lost, and why.

use super::Refusal;
use super::sample_outcome::Stack;
use crate::sync::Statistic;

/// Refusals are counted by CPU, so that they share no cache line up to this number of
/// CPUs.
const LANES: usize = 8;

/// Defines [`DropCounts`] and the counters that it is read from: a counter of each kind by CPU
/// for refusals, and one for the rest.
macro_rules! counters {
    (
        refused { $($(#[$refused_doc:meta])* $refused:ident,)* }
        lost { $($(#[$doc:meta])* $name:ident,)* }
    ) => {
        /// How many samples and stacks an instance has lost, by reason.
        ///
        /// The numbers are read one after the other while others may count.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct DropCounts {
            $($(#[$refused_doc])* pub $refused: u64,)*
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The refusals on some of the CPUs.
        #[derive(Debug)]
        #[repr(align(64))]
        struct Refusals {
            $($refused: Statistic,)*
        }

        impl Refusals {
            const fn new() -> Self {
                Self { $($refused: Statistic::new(),)* }
            }
        }

        /// The counters that [`DropCounts`] is read from.
        #[derive(Debug)]
        pub(crate) struct Counters {
            lanes: [Refusals; LANES],
            $($name: Statistic,)*
        }

        impl Counters {
            pub(crate) const fn new() -> Self {
                let lanes = [const { Refusals::new() }; LANES];
                Self { lanes, $($name: Statistic::new(),)* }
            }

            pub(crate) fn read(&self) -> DropCounts {
                DropCounts {
                    $($refused: self.sum(|lane| &lane.$refused),)*
                    $($name: self.$name.get(),)*
                }
            }
        }
    };
}

counters! {
    refused {
        /// Requests refused since the task is a kernel thread.
        kernel_thread,
        /// Requests refused since the task never returns to user code.
        user_worker,
        /// Requests refused since the task exits or executes another program.
        exiting,
        /// Requests refused since the task has no saved user registers.
        no_user_registers,
        /// Requests refused since they came in an NMI.
        ///
        /// Counted without an atomic addition, which is what such an NMI must
        /// not make: two that come at the same time on CPUs whose numbers are
        /// equal modulo 8 may count as one.
        nmi_unsafe,
        /// Requests of clients that are not registered.
        unknown_client,
        /// Requests refused since no delivery could be scheduled.
        schedule_failed,
        /// Requests refused since there is no cookie for the CPU.
        no_cookie,
    }
    lost {
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
        /// Deliveries that had not come to their end when their task continued: a
        /// mistake of the host, or a guard that a panic left. Whoever was
        /// not called is pending again.
        unfinished,
        /// Calls of a client whose guard was lost without being dropped.
        leaked_calls,
    }
}

impl Counters {
    /// Counts a refusal on `cpu`, in any context: one in an NMI that must not
    /// make an atomic addition is [`Refusal::NmiUnsafe`].
    #[cold]
    pub(crate) fn refused(&self, refusal: Refusal, cpu: u32) {
        let Some(lane) = self.lane(cpu) else { return };
        let counter = match refusal {
            Refusal::KernelThread => &lane.kernel_thread,
            Refusal::UserWorker => &lane.user_worker,
            Refusal::Exiting => &lane.exiting,
            Refusal::NoUserRegisters => &lane.no_user_registers,
            Refusal::UnknownClient => &lane.unknown_client,
            Refusal::ScheduleFailed => &lane.schedule_failed,
            Refusal::NoCookie => &lane.no_cookie,
            Refusal::NmiUnsafe => {
                // Only NMIs write this one.
                return lane.nmi_unsafe.count_without_exchange();
            }
        };
        counter.count();
    }

    fn lane(&self, cpu: u32) -> Option<&Refusals> {
        self.lanes.get(usize::try_from(cpu).ok()? & (LANES - 1))
    }

    fn sum(&self, counter: impl Fn(&Refusals) -> &Statistic) -> u64 {
        let counts = self.lanes.iter().map(|lane| counter(lane).get());
        counts.fold(0, u64::wrapping_add)
    }

    pub(crate) fn cancelled(&self, requests: u32) {
        if requests != 0 {
            self.client_cancelled.add(u64::from(requests));
        }
    }

    pub(crate) fn unfinished(&self) {
        self.unfinished.count();
    }

    pub(crate) fn leaked_call(&self) {
        self.leaked_calls.count();
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
        counter.count();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn refusals_on_eight_cpus_share_no_cache_line_and_all_count() {
        let counters = Counters::new();
        for cpu in (0..100).chain([u32::MAX]) {
            counters.refused(Refusal::UnknownClient, cpu);
            counters.refused(Refusal::NmiUnsafe, cpu);
        }
        let drops = counters.read();
        assert_eq!((drops.unknown_client, drops.nmi_unsafe), (101, 101));
        let lanes = counters.lanes.iter();
        assert!(lanes.clone().all(|lane| lane.unknown_client.get() > 11));
        assert!(align_of::<Refusals>() >= 64 && counters.lanes.len() == 8);
    }

    #[test]
    fn a_new_lane_has_counted_nothing() {
        let lane = Refusals::new();
        for counter in [&lane.kernel_thread, &lane.exiting, &lane.no_cookie, &lane.nmi_unsafe] {
            assert_eq!(counter.get(), 0);
        }
    }
}
