//! Where the rows of a walk come from.

pub mod build_progress;
pub(crate) mod built_tables;
pub mod call_frame_rows;
pub mod call_frame_source;
pub mod call_frames;
pub mod frame_pointers;
pub mod indexed_frames;
pub mod linkage;
pub mod program_start;
pub mod sframe_tables;
pub mod stack_switches;
pub mod target_switches;
