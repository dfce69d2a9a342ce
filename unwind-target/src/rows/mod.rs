//! Where the rows of a walk come from.
//!
//! A row is looked up where it is, in the parts of a file that the lookup needs, and kept. The first
//! stack needs some thirty rows, and a table of a file has a hundred thousand: a table of cc1plus
//! takes as many instructions as 36,000 lookups, and a thousand samples of it have 2,929. So no number of
//! misses makes a table; a method that goes by tables alone does. Nothing is kept on disk, where it
//! would be one more input.

pub mod build_progress;
pub(crate) mod built_tables;
pub mod call_frame_rows;
pub mod call_frame_source;
pub mod call_frames;
pub mod compact_table;
pub mod frame_pointers;
pub mod indexed_frames;
pub mod linkage;
pub mod program_start;
pub mod sframe_tables;
pub mod stack_switches;
pub mod target_switches;
