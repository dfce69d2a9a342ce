//! What a program asks `perf_event_open` for: the bytes of a `perf_event_attr`, and
//! what a kernel answers.
//!
//! A kernel that embeds this crate gets the attr as bytes whose length the program
//! chose. [`EventAttr::decode`] takes every size from the first version's 64 bytes to
//! the newest, and larger ones whose further bytes are zero. [`EventAttr::check`] says
//! whether the event may be opened, by the rules of a [`KernelVersion`], what its PMU
//! can do and what the caller may, with the error number that Linux gives in the same
//! case. A [`CheckedEvent`] has what the other modules take.
//!
//! | field of [`CheckedEvent`] | for |
//! |---|---|
//! | `format` | the layout of the event's records ([`record`](crate::record)) |
//! | `aux`, `role` | what it does in [AUX tracing](crate::aux_trace) |
//! | `max_stack` | how many addresses a call chain has |
//! | `branches` | which branches samples have |
//! | `defers`, `wants_deferred` | the event's place in the [registry](crate::per_cpu) |
//!
//! # Contexts
//!
//! Task context, when an event is opened. Nothing waits or allocates.
//!
//! # Example
//!
//! ```
//! use unwind_perf::Errno;
//! use unwind_perf::event_attr::{Caller, EventAttr, KernelVersion, Pmu};
//! use unwind_perf::record::{Endian, SampleType};
//!
//! // The software event 1 (a task's clock), one sample each millisecond, with a stack.
//! let mut bytes = [0; 64];
//! bytes[0] = 1; // type
//! bytes[4] = 64; // size
//! bytes[8] = 1; // config
//! bytes[16..20].copy_from_slice(&1_000_000_u32.to_le_bytes()); // sample_period
//! bytes[24] = 0x23; // sample_type: IP, TID, CALLCHAIN
//! bytes[40] = 1 << 5; // exclude_kernel
//!
//! let kernel = KernelVersion::new(6, 18, 44);
//! let attr = EventAttr::decode(&bytes, Endian::Little, kernel)?;
//! let event = attr.check(kernel, Pmu::SOFTWARE, Caller::USER, None)?;
//! assert!(event.format.sample_type.contains(SampleType::CALLCHAIN));
//!
//! bytes[40] = 0; // the kernel's own code too
//! let attr = EventAttr::decode(&bytes, Endian::Little, kernel)?;
//! let refusal = attr.check(kernel, Pmu::SOFTWARE, Caller::USER, None).unwrap_err();
//! assert_eq!(refusal.errno(), Errno::AccessDenied);
//! # Ok::<(), unwind_perf::event_attr::AttrError>(())
//! ```

mod attr;
mod check;
mod error;
mod kernel;

pub use attr::EventAttr;
pub use check::CheckedEvent;
pub use error::AttrError;
pub use kernel::{Caller, KernelVersion, Pmu};
