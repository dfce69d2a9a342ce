//! What to sample, and how.

use std::fs::File;
use std::sync::Arc;

use nix::unistd::{SysconfVar, sysconf};
use unwind_target::Notices;

use crate::engine::requested::Requested;

/// Bytes of a stack that are copied without `--stack-bytes`: as most stacks of a program need. A
/// record's length has 16 bits. The first is that of the first samples, with which most stacks of most
/// programs are complete. Where there is no room for all, those that come first are the most useful.
const STACKS: [u32; 6] = [16_384, 65_528, 8_192, 12_288, 32_768, 10_240];

/// How many events a thread may have. It inherits them when it is created, which takes some 2 us for
/// each of them.
const EVENTS_OF_THREAD: usize = 64;

/// What to sample, and how.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// How often samples are taken.
    pub often: Often,
    /// Of which events; of cycles or, where there are none, the clock, if there are none here.
    pub events: Vec<Requested>,
    /// On which CPUs, if not on all.
    pub cpus: Option<Vec<i32>>,
    pub user_stacks: UserStacks,
    /// Whether samples are taken when a CPU switches away from a thread, too.
    pub off_cpu: bool,
    pub ring: RingSize,
    pub whom: Whom,
    /// What is to be told once.
    pub notices: Notices,
}

/// How often samples are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Often {
    /// This number of times a second of CPU time.
    Rate(u32),
    /// Each time that the event has come so often.
    Each(u64),
}

/// Where the user part of a sample's stack comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserStacks {
    /// Registers and a copy of the stack, which are walked later.
    Copied(Copies),
    /// The kernel, which walks along frame pointers when the thread returns to user code. A
    /// record of its own has what it finds.
    Deferred,
    /// A program in the kernel, which walks by tables: at once, or when the thread returns to user
    /// code.
    Walked(KernelWalk),
    /// The Linux module of this project, which walks by tables when the thread returns to user code.
    Module(KernelWalk),
    /// The program where the kernel runs it later and this user may load it, and there are samples of events
    /// that it takes; else copies.
    Any(Copies, KernelWalk),
}

/// What walks user stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WalkedBy {
    /// The program in the kernel where it runs later (Linux 6.18 and newer) and this user may load it, else this
    /// process.
    #[default]
    Any,
    /// This process, from copies of stacks.
    Copies,
    /// The program in the kernel alone.
    Kernel,
    /// The Linux module of this project, `hosts/linux-module`.
    Module,
}

impl WalkedBy {
    /// Where user stacks come from. The copies are made unless the kernel walks.
    #[must_use]
    pub fn user_stacks(self, copies: Copies, walk: KernelWalk) -> UserStacks {
        match self {
            Self::Any => UserStacks::Any(copies, walk),
            Self::Copies => UserStacks::Copied(copies),
            Self::Kernel => UserStacks::Walked(walk),
            Self::Module => UserStacks::Module(walk),
        }
    }
}

/// What a walk in the kernel may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelWalk {
    /// Whether memory of the stack is brought in that is not resident.
    pub faults: bool,
    /// Whether a process is stopped when its stack is walked, for another unwinder to look at it.
    pub stops: bool,
    /// Whether calls of interpreters are read.
    pub calls: bool,
}

impl Default for KernelWalk {
    /// Memory is brought in, calls are read, and no process is stopped.
    fn default() -> Self {
        Self { faults: true, stops: false, calls: true }
    }
}

/// Copies of user stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies {
    pub sizes: CopySizes,
    /// Whether samples have the kernel's chain of user frames, too.
    pub with_chains: bool,
    /// Whether records tell of mappings that have no code, too: perf looks for tables there if it is to walk the copies.
    pub with_data: bool,
}

/// The sizes that copies of user stacks may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySizes {
    /// In bytes, ascending; at least one.
    pub(crate) bytes: Vec<u32>,
    /// The place of the size of the first samples. Later ones have the size that
    /// [`Engine::copy`](super::engine::Engine::copy) says.
    pub(crate) first: usize,
}

impl CopySizes {
    /// This one alone.
    #[must_use]
    pub fn one(bytes: u32) -> Self {
        Self { bytes: vec![bytes], first: 0 }
    }

    /// The same with the largest for the first samples.
    pub(crate) fn largest_first(self) -> Self {
        Self { first: self.bytes.len().saturating_sub(1), ..self }
    }

    /// Those that a program may need, of whom as many events are sampled, or the one there is without, and waits:
    /// fewer where the machine has many CPUs, as a thread has an event for each size on each of them.
    #[must_use]
    pub fn several(whom: &Whom, events: usize, off_cpu: bool) -> Self {
        let events = events.max(1).saturating_add(usize::from(off_cpu));
        match whom {
            Whom::All | Whom::ControlGroup(_) => Self::most_useful(STACKS.len()),
            Whom::Command(_) | Whom::Threads(_) => Self::on_cpus(cpus(), events),
        }
    }

    /// Those of threads on this many CPUs.
    fn on_cpus(cpus: usize, events: usize) -> Self {
        // Where there are several, one more event tells of processes.
        let of_sizes = EVENTS_OF_THREAD.checked_div(cpus).unwrap_or(0).saturating_sub(1);
        Self::most_useful(of_sizes.checked_div(events).unwrap_or(0))
    }

    /// As many, and at least one.
    fn most_useful(count: usize) -> Self {
        let mut bytes: Vec<u32> = STACKS.into_iter().take(count.max(1)).collect();
        bytes.sort_unstable();
        let first = bytes.iter().position(|&size| size == STACKS[0]).unwrap_or(0);
        Self { bytes, first }
    }

    /// Whether there is no other size than the first.
    pub(crate) fn is_one(&self) -> bool {
        self.bytes.len() < 2
    }

    /// Bytes of a copy of the first samples.
    pub(crate) fn first_bytes(&self) -> u32 {
        self.bytes.get(self.first).copied().unwrap_or(0)
    }
}

impl UserStacks {
    /// The sizes of copies. Where none are made, none has more than 0 bytes.
    pub(crate) fn sizes(&self) -> CopySizes {
        match self {
            Self::Copied(copies) | Self::Any(copies, _) => copies.sizes.clone(),
            Self::Deferred | Self::Walked(_) | Self::Module(_) => CopySizes::one(0),
        }
    }
}

/// Bytes of the ring of each CPU, a power of two of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingSize {
    Exactly(usize),
    /// As many, or the most that this user may lock in memory.
    AtMost(usize),
}

/// Whose samples are taken.
#[derive(Clone, Debug)]
pub enum Whom {
    /// Those of this process, from the command on that it executes next, and of its children.
    Command(i32),
    /// Those of these threads, and of what they start.
    Threads(Vec<i32>),
    All,
    /// Those of a control group, by its folder.
    ControlGroup(Arc<File>),
}

impl Whom {
    /// Whether samples are those of CPUs, whichever thread they execute.
    pub(crate) const fn is_of_cpus(&self) -> bool {
        matches!(self, Self::All | Self::ControlGroup(_))
    }
}

impl Sampling {
    /// The CPUs on which samples are taken.
    pub(crate) fn on_cpus(&self) -> Vec<i32> {
        let all = || (0..i32::try_from(cpus()).unwrap_or(i32::MAX)).collect();
        self.cpus.clone().unwrap_or_else(all)
    }
}

/// How many CPUs there are, also those that this program may not run on or that are off.
#[must_use]
pub fn cpus() -> usize {
    let cpus = sysconf(SysconfVar::_NPROCESSORS_CONF).ok().flatten().unwrap_or(1);
    usize::try_from(cpus).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_threads_have_copies_of_fewer_sizes_where_there_are_many_cpus() {
        let on = |cpus, events| CopySizes::on_cpus(cpus, events);
        let all = [8_192, 10_240, 12_288, 16_384, 32_768, 65_528];
        for (cpus, bytes) in [
            (1, &all[..]),
            (9, &all),
            (10, &[8_192, 12_288, 16_384, 32_768, 65_528]),
            (16, &[8_192, 16_384, 65_528]),
            (21, &[16_384, 65_528]),
            (32, &[16_384]),
            (1_024, &[16_384]),
        ] {
            let sizes = on(cpus, 1);
            assert_eq!((sizes.bytes.as_slice(), sizes.first_bytes()), (bytes, 16_384), "{cpus}");
        }
        // With switches between threads there are two events for each size.
        assert_eq!(on(8, 2).bytes, [8_192, 16_384, 65_528]);
        // With one size there is one event on each CPU, as perf has it; of all CPUs no thread has any.
        assert_eq!(CopySizes::several(&Whom::All, 1, true).bytes, all);
    }
}
