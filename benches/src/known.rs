//! Findings of a report that have a reason.

use crate::finding::{Finding, Kind};

/// Findings that may be, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The corpus, or `*` for each.
    pub corpus: &'static str,
    /// What is found there.
    pub kind: Kind,
    /// About which unwinder, or `*` for each.
    pub who: &'static str,
    /// How the names of the files with the code start; empty for code of no file too.
    pub image: &'static str,
    /// In how many of a hundred stacks at most; two are always allowed.
    pub percent: usize,
    /// Why that is no error of the walk.
    pub reason: &'static str,
}

impl Known {
    /// Whether this is the reason for a finding in a corpus.
    #[must_use]
    pub fn explains(&self, corpus: &str, finding: &Finding) -> bool {
        let is = |pattern: &str, name: &str| pattern == "*" || pattern == name;
        is(self.corpus, corpus)
            && is(self.who, finding.who)
            && self.kind == finding.kind
            && finding.image.starts_with(self.image)
    }

    /// In how many stacks it may be, of how many.
    #[must_use]
    pub const fn allowed(&self, stacks: usize) -> usize {
        let share = stacks * self.percent / 100;
        if share > 2 { share } else { 2 }
    }
}

const COPIED: &str = "the kernel copies 64 KiB of a stack at most, and these stacks are larger";
const NO_CFI: &str = "the first instructions of the dynamic linker, _init of every library, and clone3 \
                      after its system call have no call frame information";
const GENERATED: &str = "V8's builtins and what it compiles have no call frame information";
const READ_OFF: &str = "framehop reads off the instructions what code without call frame information \
                        has done to its stack, and nothing says whether that is right; the walk says \
                        that callers may be missing there";
const RBX: &str = "_dl_runtime_resolve_xsavec keeps its frame in rbx, which a walk does not carry from \
                   frame to frame; the walk ends there and says so";
const PROBE: &str = "a loop that touches each page of a large frame keeps its CFA in r11, which no row \
                     of SFrame V2 can name";

/// All of them.
pub const KNOWN: &[Known] = &[
    // How many stacks are in such code differs from capture to capture, up to all.
    known("node", Kind::NotCovered, "reference", "", 100, GENERATED),
    known("node", Kind::RivalGuesses, "*", "", 100, READ_OFF),
    known("node-jit", Kind::NotCovered, "reference", "", 100, GENERATED),
    known("*", Kind::NotCovered, "reference", "", 2, NO_CFI),
    known("*", Kind::RivalGuesses, "*", "", 2, READ_OFF),
    known("rustc", Kind::BytesEnd, "reference", "librustc_driver", 100, COPIED),
    known("*", Kind::NeedsRegister, "walker", "ld-linux-x86-64.so", 1, RBX),
    known("*", Kind::RivalHasMore, "perf script", "ld-linux-x86-64.so", 1, RBX),
    known("*", Kind::Short, "walker-v2", "librustc_driver", 1, PROBE),
];

const fn known(
    corpus: &'static str,
    kind: Kind,
    who: &'static str,
    image: &'static str,
    percent: usize,
    reason: &'static str,
) -> Known {
    Known { corpus, kind, who, image, percent, reason }
}
