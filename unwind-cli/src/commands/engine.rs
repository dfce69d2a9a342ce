//! What walks the stacks of samples.

use unwind_profile::engine::sampling::{Copies, KernelWalk, UserStacks, WalkedBy};

/// What walks the stacks of samples.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct EngineArgs {
    /// What walks user stacks; without it bpf where kernel and rights allow, else perf
    #[arg(long, value_enum, value_name = "NAME")]
    engine: Option<EngineName>,

    /// In the kernel bring in no memory, so that no program waits for a file system; a stack ends
    /// at a page that is not resident
    #[arg(long)]
    no_fault: bool,

    /// In the kernel read no calls of Python, JavaScript and WebAssembly: stacks have native frames
    /// alone. Copies, as of --engine perf, never have calls
    #[arg(long)]
    native: bool,

    /// In the kernel stop a process (SIGSTOP) when a stack of it is walked, so that another unwinder sees
    /// the same moment
    #[arg(long, hide = true)]
    stop_each: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum EngineName {
    /// This program, from copies that the kernel makes of the stacks
    Perf,
    /// A BPF program in the kernel, by tables, when a thread returns to user code: stacks of any depth,
    /// from Linux 6.18 on, for root or with the capabilities `CAP_BPF` and `CAP_PERFMON`
    Bpf,
    /// The Linux module of unwind, by tables, when a thread returns to user code: on kernels from 6.1 on, for root
    Module,
}

impl EngineArgs {
    /// Whether they have to be walked in the kernel, by tables.
    pub(crate) fn must_be_in_kernel(self) -> bool {
        matches!(self.engine, Some(EngineName::Bpf | EngineName::Module))
    }

    /// Where the user part of a sample's stack comes from. With `needs_copies` it is not walked in the kernel
    /// unless it must be.
    pub(crate) fn user_stacks(self, copies: Copies, needs_copies: bool) -> UserStacks {
        let by = match self.engine {
            Some(EngineName::Bpf) => WalkedBy::Kernel,
            Some(EngineName::Module) => WalkedBy::Module,
            None if !needs_copies => WalkedBy::Any,
            Some(EngineName::Perf) | None => WalkedBy::Copies,
        };
        let walk =
            KernelWalk { faults: !self.no_fault, stops: self.stop_each, calls: !self.native };
        by.user_stacks(copies, walk)
    }
}
