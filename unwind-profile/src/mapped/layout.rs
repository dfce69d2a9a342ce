//! The version of perf whose names and addresses are given.

/// Which perf's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Layout {
    /// Wide columns of thread ids, and in stacks the addresses of the process
    #[cfg_attr(feature = "clap", value(name = "7.2"))]
    Perf7_2,
    /// Narrow columns of thread ids, and in stacks offsets in the mapped files
    #[cfg_attr(feature = "clap", value(name = "6.1"))]
    Perf6_1,
}
