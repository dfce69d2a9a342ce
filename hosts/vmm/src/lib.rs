//! A small monitor on KVM that samples the whole stacks of its vCPUs: the thread on the host, the guest's kernel
//! and the user code that has entered it.
//!
//! | file | what |
//! |---|---|
//! | `monitor.rs` | what a monitor tells the unwinder, and a sample, which asks for a stack |
//! | `vcpu_thread.rs` | the way into the guest, which delivers |
//! | `walks.rs` | from a vCPU's registers to its stack |
//! | `delivery.rs` | a stack becomes a record |
//! | `absent_pages.rs` | a guest of which pages are absent, as after the restore of a snapshot |
//! | `samples.rs`, `recording.rs` | records in rings, and the file that they make |
//! | `vcpu.rs` | a vCPU: KVM's, or a made-up one where there is no `/dev/kvm` |
//! | `machine.rs`, `shared.rs`, `report.rs` | the threads, what they share, what came of it |
//! | `guest.S`, `image.rs`, `ram.rs` | the guest, its file and its memory |
//! | `known.rs` | which stack is right, by the registers alone |
//! | `raw.rs` | what is unsafe: system calls, and memory that the host's kernel shares |
#![deny(unsafe_code)]

mod absent_pages;
mod delivery;
mod image;
mod known;
mod machine;
mod made_up;
mod monitor;
mod ram;
#[expect(unsafe_code, reason = "system calls, and what the host's kernel shares")]
mod raw;
mod recording;
mod report;
mod samples;
mod shared;
mod vcpu;
mod vcpu_thread;
mod walks;

pub use image::GuestImage;
pub use machine::{Machine, Options};
pub use made_up::MadeUpVcpu;
pub use ram::{GuestRam, ResidentMemory};
pub use report::Report;
pub use vcpu::{KvmVcpu, Vcpu, has_kvm};
pub use walks::GuestTables;

/// The page for authors of monitors is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/monitors.md")]
struct Monitors;
