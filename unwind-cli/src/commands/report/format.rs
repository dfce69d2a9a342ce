//! What a report is written as.

use clap::ValueEnum;

use crate::commands::report::time_line::{Detail, USUAL_CELLS};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table of functions, and the ledger
    Text,
    /// Stacks a line each, for flame graph tools
    Folded,
    /// A page for a browser: flame graph, call tree, functions and threads
    Html,
    /// A flame graph, as an SVG that a browser opens
    Svg,
    /// For speedscope
    Speedscope,
    /// For the Firefox Profiler
    Firefox,
    /// For pprof, compressed by gzip
    Pprof,
    /// For receivers of OpenTelemetry, as `unwind record --otlp` sends it
    Otlp,
    /// Tables of many recordings, for DuckDB, Spark, ClickHouse or Trino
    Parquet,
}

/// How many cells a time line has for Firefox, where each is a sample: eight times as many as in a
/// page, as there are no stacks beside them.
const CELLS_FOR_FIREFOX: usize = USUAL_CELLS << 3;

impl Format {
    /// What is kept where threads have many different stacks.
    pub(super) const fn detail(self) -> Detail {
        match self {
            Self::Html => Detail::OfTimes(USUAL_CELLS),
            Self::Firefox => Detail::OfTimes(CELLS_FOR_FIREFOX),
            _ => Detail::OfStacks,
        }
    }
}
