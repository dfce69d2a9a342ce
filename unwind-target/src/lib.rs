//! The stacks of processes and core files of Linux on x86-64 and i386, with the names of functions,
//! files, lines and inlined functions.
//!
//! # The stacks of another process
//!
//! Each thread, innermost frame first, and why its stack has no more frames:
//!
//! ```
//! use unwind_target::Process;
//!
//! fn print(id: i32) -> Result<(), unwind_target::TargetError> {
//!     for thread in &Process::new(id).stacks()?.threads {
//!         println!("thread {}", thread.id);
//!         for frame in &thread.frames {
//!             for inlined in &frame.symbol.source.inlined {
//!                 println!("  inlined {inlined}");
//!             }
//!             println!("  {:#x} {}", frame.pc, frame.symbol);
//!         }
//!         println!("  {}", thread.end);
//!     }
//!     Ok(())
//! }
//! # let mut child = std::process::Command::new("sleep").arg("60").spawn()?;
//! # print(i32::try_from(child.id())?)?;
//! # child.kill()?;
//! # child.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The threads of a core file, as JSON
//!
//! [`Stacks`] is what `unwind stack --json` prints:
//!
//! ```no_run
//! use unwind_target::Core;
//!
//! let stacks = Core::new("core").program("target/debug/program").stacks()?;
//! println!("{}", serde_json::to_string_pretty(&stacks)?);
//! for warning in &stacks.warnings {
//!     eprintln!("{warning}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What addresses of this process are called
//!
//! ```
//! use unwind_target::Symbolizer;
//!
//! # fn backtrace() -> [u64; 1] { [1] }
//! // The return addresses of a backtrace: from `unwind-local`, an allocator's records, a crash handler.
//! let addresses = backtrace();
//! let found = Symbolizer::of_own_process()?.find_return_addresses(&addresses);
//! for (address, symbol) in addresses.iter().zip(&found.symbols) {
//!     println!("{address:#x} {symbol}");
//! }
//! # Ok::<(), unwind_target::TargetError>(())
//! ```
//!
//! # JSON
//!
//! [`Stacks`] serializes as an object of its fields; `schema` is 2. A [`ThreadStack`] has `thread` for its id.
//! A [`Frame`] has the fields of its [`Symbol`] and of the [`Source`] of that beside its own. Addresses (`pc`, `sp`,
//! `object_pc`) are texts as `"0x401136"`, since many readers' numbers end at 53 bits; other numbers are numbers.
//!
//! # Rights, time and side effects
//!
//! - To look at a process takes the right to trace it: one's own processes if `kernel.yama.ptrace_scope` is 0, else
//!   root or `CAP_SYS_PTRACE`. A thread of this process traces; the signal handlers and limits of this process stay as
//!   they are.
//! - A process is let go after its [limit](HoldLimit), but a call may last longer: it ends when the read that it waits for
//!   does, of a file on a network that is gone for example. Names take as long as the files of the target are
//!   large.
//! - File descriptors are taken for the files of a target, and a file without a name in the directory for temporary
//!   files for a core that is compressed or comes from a pipe. [Another process](LineReader::Apart) is started for
//!   lines only if that is asked for, and the client of debuginfod only with [`DebugServers`].
//!
//! # What it promises
//!
//! - A process stands still only while its stacks are copied: for less than a millisecond as a rule, and for
//!   [30 seconds, or what the caller says](Process::hold_limit), at most. If this program ends or is killed, it runs again.
//! - A stack says whether it is complete, and why not: [`StackEnd`].
//! - Text of a target or its files is [`Untrusted`]: shown and serialized with escapes.
//! - Files and memory of a target may be crafted: nothing panics by them, and how much of them is read and
//!   kept is bounded. Lines are an exception: unless told otherwise this process reads the DWARF of files by a library
//!   [without such bounds](LineReader::Here). For files that are not trusted, have [another process](LineReader::Apart)
//!   do it, or do [without lines](Naming::plain).
//! - Nothing is printed, and nothing is kept beyond the values that the caller has.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

// What the command and the tools of this workspace use beside the names below; it changes without notice.
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod counted;
#[doc(hidden)]
pub mod demangle;
#[doc(hidden)]
pub mod elf;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod input_error;
#[doc(hidden)]
pub mod interpreters;
#[doc(hidden)]
pub mod jit;
#[doc(hidden)]
pub mod lines;
#[doc(hidden)]
pub mod loaded;
#[doc(hidden)]
pub mod notices;
#[doc(hidden)]
pub mod rows;
#[doc(hidden)]
pub mod stack;
#[doc(hidden)]
pub mod symbols;
#[doc(hidden)]
pub mod system_error;
#[doc(hidden)]
pub mod target;
#[doc(hidden)]
pub mod untrusted;

pub use crate::elf::error::{ElfError, Part as ElfPart};
pub use crate::files::debug_files::DebugFiles;
pub use crate::files::debug_servers::{DebugServers, NoServers};
pub use crate::input_error::InputError;
pub use crate::interpreters::frame::{CallKind, Interpreted, InterpretedFrame};
pub use crate::lines::LineReader;
pub use crate::lines::apart::{ServeError, serve as serve_lines};
pub use crate::notices::Notices;
pub use crate::stack::core_dump::Core;
pub use crate::stack::frame::{FoundBy, Frame};
pub use crate::stack::naming::Naming;
pub use crate::stack::options::WalkOptions;
pub use crate::stack::process::Process;
pub use crate::stack::source_text::SourceFiles;
pub use crate::stack::stacks::{Stacks, ThreadStack};
pub use crate::stack::symbol::{Inlined, Source, Symbol};
pub use crate::stack::symbolizer::{Symbolizer, Symbols};
pub use crate::stack::walk::{EndReason, Method, StackEnd};
pub use crate::stack::walked::Walked;
pub use crate::system_error::SystemError;
pub use crate::target::compressed_core::CompressedError;
pub use crate::target::error::TargetError;
pub use crate::target::pause::HoldLimit;
pub use crate::untrusted::{Escaped, Untrusted};
