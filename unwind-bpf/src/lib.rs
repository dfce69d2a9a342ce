//! Deferred stack walks on a stock Linux kernel: a BPF program takes samples and walks the user stack by
//! tables, in the task, before it returns to user code.
//!
//! A perf event ends a moment of user code or of a system call in an interrupt, where memory may not be
//! brought in. The [program](Walker) that runs there writes a [`Sample`] with a [`Cookie`]. If the
//! interrupt came in user code, and the stack is short and resident, it walks the stack at once. Else it
//! has the kernel call it again in the task, on its way back to user code, where it may sleep, and walks
//! it there: a [`Stack`] with the same cookie comes later. All samples of one entry into the kernel share
//! it.
//!
//! The walk knows tables: [images](Tables::install) in the format of `unwind-sframe`'s module
//! `compact`, which are installed by [file](FileKey), whatever processes have it mapped. It asks for those
//! that it [wants](Wanted). Where tables do not say what the caller is, and until they are there, the
//! registers and the stack are [copied](StackCopy), for a walk outside.
//!
//! Of a file with an [`Interpreter`] it reads what that has of the thread's own [`Calls`] where the evaluator is on
//! the stack: at the same moment, as words whose meaning is told outside. Through code of V8, of which no table tells, it
//! steps by frame pointers.
//!
//! Needed: Linux 6.4 on x86-64 with BTF (`/sys/kernel/btf/vmlinux`), and the capabilities `CAP_BPF` and
//! `CAP_PERFMON`. Before 6.18 the kernel calls no program in a task: all stacks are walked at once, and
//! what is not resident ends them ([`End::Memory`]).
//!
//! The program is in the folder `bpf`, in C, under MIT or GPL-2.0. It is not compiled here: `walk.loader`
//! and `walk.data` are what libbpf makes of it (`bpf_object__gen_loader`), a program that loads it inside of
//! the kernel. So nobody who builds this needs a C compiler or a library.

#![deny(unsafe_code)]

mod calls;
mod head;
mod kernel;
mod program;
mod record;
mod ring;
mod tables;
mod walker;

pub use calls::{CPython, Calls, Interpreter, Piece, Pieces, V8, identity_of};
pub use head::{Cookie, End, Origin};
pub use program::{LoadStep, is_deferring_kernel};
pub use record::{FileKey, Pcs, Record, Registers, Sample, Stack, StackCopy, Wanted};
pub use tables::{Segment, Table, TableError, Tables};
pub use walker::{Attached, Counts, Limits, LoadError, Walker};
