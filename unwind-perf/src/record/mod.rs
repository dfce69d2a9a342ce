//! Records in the layouts of the perf ring buffer.
