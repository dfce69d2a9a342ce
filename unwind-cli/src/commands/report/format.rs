//! What a report is written as.

use clap::ValueEnum;

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
