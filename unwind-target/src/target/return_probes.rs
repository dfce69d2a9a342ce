//! What Linux puts in place of the return address of a function that a uretprobe watches.

use crate::target::maps::{Backing, Mapping};

/// The name of the mapping in which a process executes what probes have displaced. At its
/// start is what each watched function returns to; the kernel alone knows where that leads.
pub const MAPPING: &[u8] = b"[uprobes]";

/// The return address of all watched functions of a process, if it has any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReturnProbes(Option<u64>);

impl ReturnProbes {
    /// Of a process with these mappings: there is at most one of that name.
    pub(crate) fn new(mappings: &[Mapping]) -> Self {
        let is_of_probes = |mapping: &&Mapping| match &mapping.backing {
            Backing::Named(name) => name == MAPPING && mapping.executable,
            _ => false,
        };
        Self(mappings.iter().find(is_of_probes).map(|mapping| mapping.range.start))
    }

    /// Whether watched functions return to `addr`.
    pub(crate) fn start_at(self, addr: u64) -> bool {
        self.0 == Some(addr)
    }
}
