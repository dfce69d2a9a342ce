//! The stacks of samples: walked, recorded by the kernel or the CPU, and put together.

pub mod call_stacks;
pub mod chosen_event;
pub mod found_by;
pub mod found_calls;
pub mod found_frames;
pub mod frame_calls;
pub mod marks;
pub mod merged_file;
pub mod merged_records;
pub mod printed;
pub mod shown;
pub mod stack_end;
pub mod tally;
pub mod threads;
pub mod walk;
pub mod walked_stack;
pub mod walkers;
