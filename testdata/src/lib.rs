//! Fixtures and builders that tests, fuzz targets and benches share.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    reason = "a wrong test input shall end the test"
)]

mod cfi_builder;
mod core_notes;
mod elf_builder;
mod perf_recording;
mod sframe_fixtures;
mod table_builder;

pub use cfi_builder::{CfiBuilder, Cie};
pub use core_notes::{files_note, thread_note};
pub use elf_builder::{ElfBuilder, ElfSection, ElfSegment, note};
pub use perf_recording::{PerfRecording, RecordedEvent, perf_file, perf_files, perf_text};
pub use sframe_fixtures::{Fixture, addresses, malformed_sections, sections};
pub use table_builder::{Function, Row, TableBuilder};
