//! What the text says of a recorded branch, as perf does.

use std::fmt;

use unwind_perf::record::BranchFlags;
use unwind_profile::mapped::layout::Layout;

/// The flags of a branch, with the slash in front and the space after them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlagsText {
    pub(crate) flags: BranchFlags,
    pub(crate) layout: Layout,
}

/// Kinds of branches, from that numbered 1 on.
const KINDS: [&str; 14] = [
    "COND",
    "UNCOND",
    "IND",
    "CALL",
    "IND_CALL",
    "RET",
    "SYSCALL",
    "SYSRET",
    "COND_CALL",
    "COND_RET",
    "ERET",
    "IRQ",
    "SERROR",
    "NO_TX",
];

/// Kinds that were numbered anew when there were too many.
const NEW_KINDS: [&str; 8] =
    ["FAULT_ALGN", "FAULT_DATA", "FAULT_INST", "ARCH_1", "ARCH_2", "ARCH_3", "ARCH_4", "ARCH_5"];

/// What became of a speculation, from that numbered 1 on.
const SPECULATIONS: [&str; 3] = ["SPEC_WRONG_PATH", "NON_SPEC_CORRECT_PATH", "SPEC_CORRECT_PATH"];

/// Where the flags of newer perfs say that a branch was not taken.
const NOT_TAKEN: u64 = 1 << 33;

impl FlagsText {
    fn kind(self) -> &'static str {
        let name = match self.flags.kind() {
            0 => return "",
            BranchFlags::KIND_IS_NEW => NEW_KINDS.get(usize::from(self.flags.new_kind())),
            kind => KINDS.get(usize::from(kind).saturating_sub(1)),
        };
        name.copied().unwrap_or("(null)")
    }

    fn speculation(self) -> &'static str {
        let known = usize::from(self.flags.speculation()).checked_sub(1);
        known.and_then(|at| SPECULATIONS.get(at).copied()).unwrap_or(NONE)
    }

    fn prediction(self) -> &'static str {
        let is_taken = self.layout == Layout::Perf6_1 || self.flags.0 & NOT_TAKEN == 0;
        match (self.flags.is_predicted(), self.flags.is_mispredicted(), is_taken) {
            (true, _, true) => "P",
            (true, _, false) => "PN",
            (false, true, true) => "M",
            (false, _, false) => "MN",
            (false, false, true) => NONE,
        }
    }
}

/// What is shown for what is not known.
const NONE: &str = "-";

impl fmt::Display for FlagsText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = self.flags;
        let transaction = if flags.is_in_transaction() { "X" } else { NONE };
        let abort = if flags.is_abort() { "A" } else { NONE };
        let (prediction, cycles, kind) = (self.prediction(), flags.cycles(), self.kind());
        write!(f, "/{prediction}/{transaction}/{abort}/{cycles}/{kind}")?;
        match self.layout {
            Layout::Perf7_2 => write!(f, "/{} ", self.speculation()),
            Layout::Perf6_1 => f.write_str(" "),
        }
    }
}
