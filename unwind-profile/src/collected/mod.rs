//! The stacks of recordings, put together.

pub mod by_event;
pub mod call_tree;
pub mod chance;
pub mod collector;
pub mod comparison;
pub mod debug_info;
pub mod error;
pub mod expansion;
pub mod grouping;
pub mod inlined;
pub mod interpreted_calls;
pub mod labels;
pub mod line_samples;
pub mod reading;
pub mod side;
pub mod source_lines;
pub mod spread;
pub mod time_line;
pub mod together;
pub mod view;
pub mod waits;
