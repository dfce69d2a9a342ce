//! What a report is written as.

use crate::collected::time_line::{Detail, USUAL_CELLS};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[non_exhaustive]
pub enum Format {
    /// A table of functions, and the ledger
    Text,
    /// Stacks a line each, for flame graph tools
    Folded,
    /// A page for a browser: flame graph, call tree, functions and threads
    #[cfg(feature = "html")]
    Html,
    /// A flame graph, as an SVG that a browser opens
    #[cfg(feature = "svg")]
    Svg,
    /// For speedscope
    Speedscope,
    /// For the Firefox Profiler
    #[cfg(feature = "firefox")]
    Firefox,
    /// For pprof, compressed by gzip
    #[cfg(feature = "pprof")]
    Pprof,
    /// For receivers of OpenTelemetry, as `unwind record --otlp` sends it
    #[cfg(feature = "otlp")]
    Otlp,
    /// Tables of many recordings, for DuckDB, Spark, ClickHouse or Trino
    #[cfg(feature = "parquet")]
    Parquet,
}

/// How many cells a time line has for Firefox, where each is a sample: eight times as many as in a
/// page, as there are no stacks beside them.
#[cfg(feature = "firefox")]
const CELLS_FOR_FIREFOX: usize = USUAL_CELLS << 3;

impl Format {
    /// All that this library was built with.
    pub const ALL: &'static [Self] = &[
        Self::Text,
        Self::Folded,
        #[cfg(feature = "html")]
        Self::Html,
        #[cfg(feature = "svg")]
        Self::Svg,
        Self::Speedscope,
        #[cfg(feature = "firefox")]
        Self::Firefox,
        #[cfg(feature = "pprof")]
        Self::Pprof,
        #[cfg(feature = "otlp")]
        Self::Otlp,
        #[cfg(feature = "parquet")]
        Self::Parquet,
    ];

    /// The one that has the most lines and of the course of time.
    #[cfg(feature = "html")]
    pub(crate) const DETAILED: Self = Self::Html;
    #[cfg(not(feature = "html"))]
    pub(crate) const DETAILED: Self = Self::Text;

    /// Whether it is a picture with the lines of functions.
    #[doc(hidden)]
    #[must_use]
    pub const fn has_lines(self) -> bool {
        match self {
            #[cfg(feature = "html")]
            Self::Html => true,
            _ => false,
        }
    }

    /// Whether each recording is written by itself, to a folder.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_of_tables(self) -> bool {
        match self {
            #[cfg(feature = "parquet")]
            Self::Parquet => true,
            _ => false,
        }
    }

    /// Whether a difference can be written so.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_of_difference(self) -> bool {
        match self {
            Self::Text => true,
            #[cfg(feature = "svg")]
            Self::Folded | Self::Svg => true,
            #[cfg(feature = "html")]
            Self::Html => true,
            _ => false,
        }
    }

    /// What is kept where threads have many different stacks.
    #[doc(hidden)]
    #[must_use]
    pub const fn detail(self) -> Detail {
        match self {
            #[cfg(feature = "html")]
            Self::Html => Detail::OfTimes(USUAL_CELLS),
            #[cfg(feature = "firefox")]
            Self::Firefox => Detail::OfTimes(CELLS_FOR_FIREFOX),
            _ => Detail::OfStacks,
        }
    }
}
