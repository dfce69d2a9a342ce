//! The stack of what a guest's vCPU executes, from outside: the frames of its Linux kernel, and those of
//! the user code that has entered it.
//!
//! A monitor has the registers of a vCPU when it exits, and can read guest memory. That is all that is
//! needed: page tables are walked as the CPU does it, on behalf of the code that runs, the kernel's frames are
//! found by its ORC tables or frame pointers, and where the kernel has saved the registers of user code the walk continues there.
//! Nothing is needed in the guest, and nothing in it is changed. Neither allocation nor `unsafe`.
//!
//! | type | what |
//! |---|---|
//! | [`VcpuRegisters`] | the registers, as KVM has them, and what they say: privilege, kind of code, address space |
//! | [`GuestWalker`] | walks the stack of a vCPU into a [`GuestStack`]: two parts, each with provenance and end |
//! | [`GuestRows`] | rows that are kept from one walk to the next |
//! | [`StackParts`] | for a host that takes more of each frame than a [`GuestStack`] has |
//! | [`orc`] | ORC tables, of each layout that Linux had, in sections of a file or in guest memory |
//! | [`find_kernel`] | how far KASLR has moved a kernel |
//! | [`KernelFramePointers`] | the rows of a kernel that keeps frame pointers, whose [code](KernelCode) is known or not |
//! | [`SavedRegisters`] | where the kernel has saved those of interrupted code |
//! | [`paging`] | guest memory through page tables, from `unwind-x86` |
//!
//! # Example
//!
//! ```
//! use unwind_core::VirtAddr;
//! use unwind_guest::orc::{OrcError, OrcLayout, OrcRows, OrcTable};
//! use unwind_guest::paging::PhysicalMemory;
//! use unwind_guest::{GuestRows, GuestStack, GuestWalker, VcpuRegisters};
//! use unwind_x86::SignalTrampolines;
//!
//! /// Sections of the guest's `vmlinux`, and how far KASLR has moved it.
//! struct Kernel<'a> {
//!     orc_header: &'a [u8; 20],
//!     orc_unwind_ip: (&'a [u8], u64),
//!     orc_unwind: &'a [u8],
//!     moved_by: u64,
//! }
//!
//! /// Prints what a vCPU executes that stands, as at its exit.
//! fn show(kernel: &Kernel, vcpu: &VcpuRegisters, memory: impl PhysicalMemory) -> Result<(), OrcError> {
//!     let layout = OrcLayout::of_header(kernel.orc_header).expect("a layout that is known");
//!     let (ips, linked_at) = kernel.orc_unwind_ip;
//!     let ips = (ips, VirtAddr::new(linked_at.wrapping_add(kernel.moved_by)));
//!     let tables = [OrcTable::from_sections(layout, ips, kernel.orc_unwind)?];
//!     // A monitor keeps the rows from one walk to the next. In place of the trampolines come the tables of
//!     // programs, as of `unwind-cfi`.
//!     let mut rows: GuestRows = GuestRows::new();
//!     let orc = OrcRows::new(&tables);
//!     let mut walker = GuestWalker::new(&mut rows, orc, SignalTrampolines, SignalTrampolines);
//!     let mut stack: GuestStack = GuestStack::new();
//!     walker.walk(vcpu, memory, &mut stack);
//!     for (part, trace) in [("kernel", stack.kernel()), ("user", stack.user())] {
//!         let Some(trace) = trace else { continue };
//!         for frame in trace.frames() {
//!             println!("{part} {} {:?}", frame.pc.addr(), frame.provenance);
//!         }
//!         println!("{part} {:?}", trace.end());
//!     }
//!     println!("user code: {:?}, all frames: {}", stack.user_code(), stack.is_complete());
//!     Ok(())
//! }
//! ```
//!
//! # Where it ends
//!
//! - **Kernels**: 64-bit Linux since 4.14 with ORC tables, as distributions build it, or with frame pointers, as
//!   micro-VMs often have it. Of a kernel with neither, frames are followed by frame pointers as a guess: each is
//!   marked, and no such stack is complete. 32-bit kernels likewise.
//! - **User code** that has entered the kernel: where registers were saved, by Linux's own segments. In the first instructions
//!   of a system call, before that, the user part is [not known](UserCode::Unknown), and the stack not complete.
//! - **16-bit code** is told, with its first frame alone.
//! - **BPF programs and trampolines of ftrace** have no tables: followed by a frame pointer, as a guess. So are modules of
//!   kernels that keep frame pointers, and functions whose return is traced.
//!
//! # Untrusted input
//!
//! Registers, page tables, stacks and tables are the guest's and may hold anything. A walk takes at most as many
//! frames as the stack has room for, a lookup at most 33 steps in each table, a translation five reads, and an interrupted
//! function of a kernel that keeps frame pointers a scan of some thousand [instructions](unwind_x86::ProvenFrames). Nothing
//! panics.
#![no_std]
#![forbid(unsafe_code)]

mod frame_pointers;
mod kaslr;
mod kernel_code;
mod kernel_rows;
pub mod linux;
pub mod orc;
mod parts;
mod saved_registers;
mod stack;
mod user_code;
mod vcpu;
mod walker;

pub use unwind_x86::paging;

pub use frame_pointers::{KernelCode, KernelFramePointers};
pub use kaslr::find_kernel;
pub use kernel_code::{AddressHalf, LinuxKernel};
pub use kernel_rows::{Entry, KernelRows};
pub use parts::{StackPart, StackParts, VcpuMemory};
pub use saved_registers::{Interrupted, SavedRegisters};
pub use stack::GuestStack;
pub use user_code::UserCode;
pub use vcpu::{CodeKind, Segment, VcpuRegisters};
pub use walker::{GuestRows, GuestWalker, NoKeys};
