//! How frames were found, as pictures colour them.

use unwind_core::{Origin, Provenance, WordSize};

use crate::mapped::ranges::Range;
use crate::mapped::recorded_tables::row_of_section;
use crate::walks::call_stacks::FrameSource;

/// How a frame was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// It is where the sample was taken.
    Sampled,
    /// By a table that came with the code of its callee: `.sframe`.
    Table,
    /// By a row made from call frame information of its callee: `.eh_frame`, `.debug_frame`.
    CallFrames,
    /// By the frame pointer, where its callee has no row.
    FramePointer,
    /// By the instructions of its callee.
    Instructions,
    /// By a guess, along the frame pointer or by instructions: callers may be missing before it.
    Guess,
    /// By the registers that the kernel saved for a signal handler.
    Signal,
    /// By the CPU's record of calls (LBR).
    BranchRecord,
    /// As the recorder has it, which does not say how: the kernel along frame pointers, or a monitor.
    Unchecked,
    /// Its code is a part of its caller's, by DWARF.
    Inlined,
    /// It is a call of an interpreter, which that has told.
    Interpreted,
    /// It is in the kernel.
    Kernel,
    /// It is no frame of a program.
    Nothing,
}

impl FoundBy {
    /// All, in the order of their codes.
    pub(crate) const ALL: [Self; 13] = [
        Self::Sampled,
        Self::Table,
        Self::CallFrames,
        Self::FramePointer,
        Self::Instructions,
        Self::Guess,
        Self::Signal,
        Self::BranchRecord,
        Self::Unchecked,
        Self::Kernel,
        Self::Inlined,
        Self::Interpreted,
        Self::Nothing,
    ];

    /// A word for it, and what a legend says.
    #[must_use]
    pub const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Sampled => ("sampled", "where samples were taken"),
            Self::Table => ("sframe", "table (.sframe)"),
            Self::CallFrames => ("cfi", "made from call frame information"),
            Self::FramePointer => ("fp", "frame pointer"),
            Self::Instructions => ("code", "read from instructions"),
            Self::Guess => ("guess", "a guess: callers may be missing before it"),
            Self::Signal => ("signal", "signal frame"),
            Self::BranchRecord => ("lbr", "the CPU's record of calls (LBR)"),
            Self::Unchecked => ("unchecked", "as the recorder found it, unchecked"),
            Self::Kernel => ("kernel", "kernel"),
            Self::Inlined => ("inlined", "inlined: a part of its caller's code"),
            Self::Interpreted => ("interpreted", "a call of an interpreter, as that has it"),
            Self::Nothing => ("none", "thread, or what is missing"),
        }
    }

    fn index(self) -> usize {
        Self::ALL.iter().position(|&found| found == self).unwrap_or(0)
    }

    /// Its place in [`ALL`](Self::ALL).
    pub(crate) fn code(self) -> u8 {
        u8::try_from(self.index()).unwrap_or(0)
    }

    /// What a word stands for.
    pub(crate) fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|found| found.words().0 == word)
    }

    /// How a walk found a frame.
    #[must_use]
    pub fn of_provenance(provenance: Provenance) -> Self {
        match provenance.origin() {
            Origin::Registers => Self::Sampled,
            // After a signal the registers are those that the kernel saved.
            _ if provenance.is_exact() => Self::Signal,
            Origin::Table => Self::Table,
            Origin::CallFrames => Self::CallFrames,
            Origin::FramePointer => Self::FramePointer,
            Origin::Instructions => Self::Instructions,
            Origin::SignalContext => Self::Signal,
            Origin::BranchRecord => Self::BranchRecord,
            _ => Self::Unchecked,
        }
    }

    /// How a frame is known that was joined with calls which the CPU recorded.
    pub(crate) const fn of_source(source: FrameSource) -> Self {
        match source {
            FrameSource::Sampled => Self::Sampled,
            FrameSource::Walk => Self::Unchecked,
            FrameSource::Record
            | FrameSource::Stitched
            | FrameSource::RecordAndWalk
            | FrameSource::StitchedAndWalk => Self::BranchRecord,
        }
    }

    /// How the caller of the code at `addr` is found, by the tables of the file as it is now:
    /// of a stack that was walked when it was recorded.
    pub(crate) fn of_callee(range: Option<&Range>, addr: u64) -> Self {
        let place = range.and_then(|range| Some((range, range.link_time(addr)?)));
        let Some((range, addr)) = place else { return Self::FramePointer };
        if matches!(row_of_section(range, addr), Ok(Some(_))) {
            return Self::Table;
        }
        let rows = [WordSize::Eight, WordSize::Four];
        let rows = rows.map(|word| range.file.call_frame_row(addr, word).ok().flatten());
        match rows.into_iter().flatten().next() {
            Some(row) if row.is_signal() => Self::Signal,
            Some(_) => Self::CallFrames,
            None => Self::FramePointer,
        }
    }
}

/// How often a frame was found in each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares([u32; FoundBy::ALL.len()]);

impl Shares {
    /// Counts it.
    pub(crate) fn add(&mut self, found: FoundBy, count: u64) {
        if let Some(share) = self.0.get_mut(found.index()) {
            *share = share.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    /// Counts all of others.
    pub(crate) fn add_all(&mut self, others: &Self) {
        for (share, other) in self.0.iter_mut().zip(others.0) {
            *share = share.saturating_add(other);
        }
    }

    /// How often it was found in any way.
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, &share| sum.saturating_add(share.into()))
    }

    /// In the order of [`FoundBy::ALL`].
    pub(crate) const fn counts(&self) -> &[u32] {
        &self.0
    }

    /// The way to show: the most frequent one, and that of the callers rather than that of
    /// the frame that was sampled itself. As its place in [`FoundBy::ALL`].
    pub(crate) fn shown(&self) -> usize {
        let most = self.0.iter().enumerate().skip(1).max_by_key(|&(at, count)| {
            // Of those that are alike the first.
            (*count, std::cmp::Reverse(at))
        });
        most.filter(|&(_, count)| *count > 0).map_or(0, |(at, _)| at)
    }
}
