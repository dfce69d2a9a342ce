//! x86-64 and ia32 for [`unwind_core`]: registers, steps and the sources of
//! rows that know x86 code.
//!
//! | type | what |
//! |---|---|
//! | [`X86_64`] | 64-bit code, 48- or 57-bit addresses |
//! | [`Ia32`] | 32-bit code, also with segment bases, under a kernel of any width |
//! | [`FramePointers`] | the row of code that is supposed to keep a frame pointer |
//! | [`TrustedFramePointers`] | the row of code that is known to keep one |
//! | [`InstructionAnalysis`] | the sampled frame's row at a function's entry and exit, from its instructions |
//! | [`SignalTrampolines`] | signal frames, from the trampoline's instructions |
//! | [`ProvenFrames`] | rows of JIT compilers' code, proved by its instructions |
//! | [`paging`] | a guest's memory, through its page tables |
//! | [`RemoteSframe`] | rows from SFrame tables in the target's own memory |
//! | [`SframeSource`] | rows from the SFrame tables of a [`ModuleMap`](unwind_core::ModuleMap) |
//! | [`StackCheck`] | rows of the code by which OCaml 5 asks for a larger stack |
//! | [`StackSwitches`] | rows of functions that call on another stack, as those of Go's runtime |
//! | [`UnrecordedPushes`] | rows of code that has pushed something without call frame information |
//! | [`WildCalls`] | rows of frames where there is no code, as after a call through a null pointer |
//! | [`lbr`] | call stacks that the CPU records: saved, restored, stitched, joined with walks |
//!
//! # Untrusted input
//!
//! Registers, stacks, code bytes, tables and segment descriptors may hold
//! anything: nothing here panics, allocates or loops without a bound.
//!
//! # Example
//!
//! ```
//! use unwind_core::{End, SliceMemory, StepError, VirtAddr, Walker};
//! use unwind_x86::{FramePointers, X86_64, X86_64Regs};
//!
//! // Two frames: a saved rbp and a return address each, then zeroes.
//! let words = [0x7f10_u64, 0x40_1234, 0, 0];
//! let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
//! let mut memory = SliceMemory::new(VirtAddr::new(0x7f00), &stack);
//!
//! let mut walker = Walker::new(X86_64::FOUR_LEVEL, FramePointers);
//! let regs = X86_64Regs::new(0x40_1000, 0x7f00, 0x7f00);
//! let mut frames = walker.frames(regs, &mut memory);
//! let pcs: Vec<u64> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
//! assert_eq!(pcs, [0x40_1000, 0x40_1234]);
//! // The chain has come to its end, which frame pointers alone cannot prove.
//! let zero = StepError::ZeroReturnAddress { cfa: 0x7f20 };
//! assert_eq!(frames.end(), Some(End::Step(zero)));
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod call;
mod code;
mod context_start;
mod frame_pointer;
mod ia32;
mod initial_stack;
mod instruction;
mod instruction_analysis;
pub mod lbr;
mod linkage;
mod linkage_rows;
pub mod paging;
mod proven_frames;
mod register_number;
mod remote_sframe;
mod segment;
mod sframe_source;
mod sigreturn;
mod stack_check;
mod stack_switch;
mod thread_start;
mod trampoline;
mod unrecorded_push;
mod wild_call;
mod x86_64;

pub use frame_pointer::{FramePointers, TrustedFramePointers};
pub use ia32::{Ia32, Ia32Regs};
pub use instruction_analysis::InstructionAnalysis;
pub use linkage::LinkageEntries;
pub use linkage_rows::LinkageRows;
pub use proven_frames::{FrameProof, FunctionBounds, ProvenFrames};
pub use remote_sframe::{RemoteSframe, RemoteSframeError, SframeScratch};
pub use segment::{CodeMode, Descriptor, DescriptorTable, DescriptorTables, Selector};
pub use sframe_source::{SframeModule, SframeSource};
pub use stack_check::StackCheck;
pub use stack_switch::{
    StackSwitchError, StackSwitches, SwitchingFunction, SwitchingFunctions, WayBack,
};
pub use thread_start::ThreadStarts;
pub use trampoline::SignalTrampolines;
pub use unrecorded_push::UnrecordedPushes;
pub use wild_call::WildCalls;
pub use x86_64::{X86_64, X86_64Regs};
