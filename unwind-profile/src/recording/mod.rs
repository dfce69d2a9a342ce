//! `perf.data` files: what is read of them, and what is written.

pub mod build_ids;
pub mod code_names;
pub mod compression;
pub mod decompress;
pub mod end_name;
pub mod error;
pub mod event_desc;
pub mod event_name;
pub mod events;
pub mod guest_names;
pub mod header;
pub mod held;
pub mod input;
pub mod off_cpu;
pub mod pipeline;
pub mod pmu_caps;
pub mod reader;
pub mod record_bytes;
pub mod record_file;
pub mod registered_code;
pub mod stream;
pub mod told_stack;
pub mod tool_record;
