//! Which samples of a recording are not complete.

/// The most that are listed: those of an hour at 49 Hz of five CPUs. The section that lists them may have 64 MiB.
pub(crate) const LIMIT: usize = 1 << 20;

/// Which sample is not complete, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// In nanoseconds.
    pub(crate) time: u64,
    pub(crate) thread: u32,
    pub(crate) reason: &'static str,
}

/// Which samples are not complete, as many as are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) listed: Vec<Mark>,
    /// There are more.
    pub(crate) is_cut: bool,
}

impl Marks {
    pub(crate) fn add(&mut self, mark: Mark) {
        self.is_cut |= self.listed.len() >= LIMIT;
        if !self.is_cut {
            self.listed.push(mark);
        }
    }
}
