//! Profiles of Linux programs on x86-64 and i386: where they spend their time, or wait.
//!
//! # A flame graph of a part of this program
//!
//! ```
//! use unwind_profile::{Format, Recorder};
//!
//! fn words() -> usize {
//!     (0..200_000_u32).map(|number| number.to_string().len()).sum()
//! }
//!
//! let (letters, profile) = Recorder::new().rate(4999).record(words)?;
//! println!("{letters} letters");
//! # #[cfg(feature = "svg")]
//! profile.write(Format::Svg, std::fs::File::create("/tmp/words.svg")?)?;
//! print!("{}", profile.ledger());
//! # std::fs::remove_file("/tmp/words.svg").ok();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A command, or a process that runs
//!
//! ```
//! use std::process::Command;
//! use unwind_profile::{Format, Recorder};
//!
//! let mut command = Command::new("sh");
//! command.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"]);
//! let (status, profile) = Recorder::new().command(command)?;
//! println!("{status}");
//! for function in profile.functions().iter().take(10) {
//!     println!("{:6} {:6} {}", function.own, function.total, function.name);
//! }
//! profile.write(Format::Folded, std::io::stdout())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Recorder::process`] records a process by its id for a time.
//!
//! # A recording of perf
//!
//! ```no_run
//! use unwind_profile::{Format, Profile};
//!
//! let profile = Profile::open("perf.data")?;
//! profile.save(Format::Speedscope, "profile.json")?;
//! for error in profile.ended().errors {
//!     eprintln!("{error}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Those of `perf record --call-graph dwarf` have copies of stacks, which are walked. [`ProfileOptions`] says what
//! stacks are put together under, where debug information is looked for, and how much memory may be used.
//!
//! # What it promises
//!
//! - Each sample that the kernel has taken or lost is in one class of the [`Ledger`]: complete, incomplete with a
//!   reason, lost. A profile has it, and each format shows it.
//! - A stack that is not complete stands under a frame that says why, outside of all others.
//! - Recordings may be crafted: nothing panics by them, and memory, time and output are bounded. Lines are an
//!   exception: unless told otherwise this process reads the DWARF of files by a library without such bounds. For
//!   files that are not trusted have [another process](ProfileOptions::lines) do it, or do
//!   [without inlined functions](ProfileOptions::inlined) in other formats than HTML.
//! - Names of functions and files come from outside. In [`FunctionSamples`] and all formats they have escapes and may be
//!   shown as they are.
//! - Nothing is printed. Files and processes are held as long as the values that the caller has.
//!
//! # Features
//!
//! All are on unless [`default-features`](https://doc.rust-lang.org/cargo/reference/features.html) are off: `firefox`,
//! `html`, `otlp`, `parquet`, `pprof` and `svg`, a [`Format`] each. Without them there are text, folded stacks and those
//! for speedscope, and half of the crates. `clap` makes [`Format`] and [`By`] values of options.
//!
//! # Rights and costs
//!
//! - One's own programs can be recorded if `kernel.perf_event_paranoid` is 2 or less, with the kernel's part of
//!   stacks if it is 1 or less; other programs take root or `CAP_PERFMON`.
//! - While a [`Recorder`] records, this process has two threads more, which empty rings and walk stacks, one of them
//!   with a higher priority if that is allowed; at most 8 MiB a CPU are locked for rings, and a file without a name
//!   in the directory for temporary files has the recording, about 50 to 300 bytes a sample.

#![deny(unsafe_code)]
#![cfg_attr(
    not(all(
        feature = "firefox",
        feature = "html",
        feature = "otlp",
        feature = "parquet",
        feature = "pprof",
        feature = "svg"
    )),
    allow(dead_code, unused_imports, unused_variables, reason = "what only such a format uses")
)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

// What the command and the tools of this workspace use beside the names below; it changes without notice.
#[doc(hidden)]
pub mod bounded;
#[doc(hidden)]
pub mod collected;
mod difference;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod formats;
mod function_samples;
#[doc(hidden)]
pub mod mapped;
#[doc(hidden)]
pub mod output_file;
mod profile;
mod recorder;
#[doc(hidden)]
pub mod recording;
#[doc(hidden)]
pub mod session;
#[doc(hidden)]
pub mod walks;

pub use crate::collected::error::{Ended, MissingSamples, ReadingError, SeveralEvents};
pub use crate::collected::grouping::By;
pub use crate::collected::interpreted_calls::InterpretedCalls;
pub use crate::difference::Difference;
pub use crate::engine::EngineError;
pub use crate::engine::requested::{NameError as EventNameError, TracepointError};
pub use crate::engine::sampling::WalkedBy;
pub use crate::engine::subject::StartError;
pub use crate::formats::format::Format;
pub use crate::function_samples::FunctionSamples;
pub use crate::profile::{Profile, ProfileOptions, WriteError};
pub use crate::recorder::{RecordError, Recorder};
pub use crate::recording::error::{Fault as RecordFault, PerfError, RecordingError};
pub use crate::recording::off_cpu::OffCpu;
pub use crate::recording::reader::ReadProgress;
pub use crate::session::SessionError;
pub use crate::session::guest_stops::GuestStops;
pub use crate::session::ledger::{EventLedger, Ledger, LedgerError, TimeOfSamples};
pub use crate::session::parts::DrainFailed;
pub use crate::session::rings::NoProcess;
pub use crate::session::told::Throttled;
pub use crate::walks::chosen_event::NoEvent;
pub use unwind_target::{DebugFiles, DebugServers, LineReader, NoServers, Notices, Untrusted};
