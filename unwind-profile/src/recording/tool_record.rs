//! Kinds of records that a tool writes, not the kernel.

use unwind_perf::record::RecordType;

/// An event (`PERF_RECORD_HEADER_ATTR`), in pipe form.
pub(crate) const ATTR: RecordType = RecordType(64);
/// Trace formats (`PERF_RECORD_HEADER_TRACING_DATA`), bytes after it.
pub(crate) const TRACING_DATA: RecordType = RecordType(66);
/// A pass over all rings is over (`PERF_RECORD_FINISHED_ROUND`).
pub(crate) const FINISHED_ROUND: RecordType = RecordType(68);
/// Trace data (`PERF_RECORD_AUXTRACE`), bytes after it.
pub(crate) const AUXTRACE: RecordType = RecordType(71);
/// A property of an event (`PERF_RECORD_EVENT_UPDATE`).
pub(crate) const EVENT_UPDATE: RecordType = RecordType(78);
/// A feature section (`PERF_RECORD_HEADER_FEATURE`), in pipe form.
pub(crate) const FEATURE: RecordType = RecordType(80);
/// Compressed records (`PERF_RECORD_COMPRESSED`, `…2`).
pub(crate) const COMPRESSED: [RecordType; 2] = [RecordType(81), RecordType(83)];
