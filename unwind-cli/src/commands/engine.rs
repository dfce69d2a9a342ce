//! What walks the stacks of samples.

use unwind_profile::engine::sampling::UserStacks;

/// What walks the stacks of samples.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct EngineArgs {
    /// What walks user stacks
    #[arg(long, value_enum, value_name = "NAME", default_value_t = WalkedBy::Perf)]
    engine: WalkedBy,

    /// With --engine bpf: bring in no memory, so that no program waits for a file system; a stack ends
    /// at a page that is not resident
    #[arg(long)]
    no_fault: bool,

    /// With --engine bpf: stop a process (SIGSTOP) when a stack of it is walked, so that another unwinder sees
    /// the same moment
    #[arg(long, hide = true)]
    stop_each: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WalkedBy {
    /// This program, from copies that the kernel makes of the stacks
    Perf,
    /// A BPF program in the kernel, by tables, when a thread returns to user code: stacks of any depth,
    /// from Linux 6.18 on, for root or with the capabilities `CAP_BPF` and `CAP_PERFMON`
    Bpf,
}

impl EngineArgs {
    /// Whether they are walked in the kernel, by tables.
    pub(crate) fn is_in_kernel(self) -> bool {
        self.engine == WalkedBy::Bpf
    }

    /// Where the user part of a sample's stack comes from: `copied` if not walked in the kernel.
    pub(crate) fn user_stacks(self, copied: impl FnOnce() -> UserStacks) -> UserStacks {
        match self.engine {
            WalkedBy::Bpf => UserStacks::Walked { faults: !self.no_fault, stops: self.stop_each },
            WalkedBy::Perf => copied(),
        }
    }
}
