//! Records in the layouts of the perf ring buffer and of `perf.data`.
//!
//! A [`Record`] is split off a stream by its header alone. What its body
//! holds depends on the `perf_event_attr` of the event that wrote it: an
//! [`EventFormat`] says so to every `decode` and `encode`. Several events can
//! share a stream; [`IdPlace`] finds whose record it is.
//!
//! The facts are from the Linux header `include/uapi/linux/perf_event.h`.
//! Constants have names of their own here, with the header's in backticks.
//!
//! # Example
//!
//! On a thread's return to user mode, a host writes the stack of a finished
//! walk for one event:
//!
//! ```
//! use unwind_core::Trace;
//! use unwind_perf::record::{
//!     CallchainDeferred, EventFormat, Ring, RingWriter, SampleId, WriteError,
//! };
//!
//! fn write<R: Ring>(
//!     trace: &Trace,
//!     cookie: u64,
//!     event: (EventFormat, u64),
//!     now: SampleId,
//!     writer: &mut RingWriter<R>,
//! ) -> Result<(), WriteError> {
//!     let ips = trace.pcs().map(|pc| pc.get());
//!     let (format, id) = event;
//!     writer.write(&CallchainDeferred { cookie: Some(cookie), ips, id: now }, format, id, now)
//! }
//! ```
//!
//! # Untrusted input
//!
//! Decoding borrows the bytes, allocates nothing and never panics. A count is
//! checked against the bytes after it before it is used.

mod attr;
mod aux;
mod branches;
mod bytes;
mod callchain;
mod chain_builder;
mod deferred;
mod encode;
mod error;
mod header;
mod mapping;
mod ring;
mod sample;
mod sample_id;
mod side_band;
mod throttle;
mod user_state;

pub(crate) use attr::flags_from_word;
pub use attr::{Attr, AttrFlags, BranchSampleType, EventFormat, ReadFormat, SampleType};
pub use aux::{Aux, AuxFlags, ItraceStart};
pub use branches::{BranchEntry, BranchFlags, BranchStack, WithBranches};
pub use bytes::{Endian, Words};
pub use callchain::{Callchain, Context, Entry, UserPart};
pub use chain_builder::{ChainBuilder, ChainFull, ChainLimits};
pub use deferred::{CallchainDeferred, DeferredLayout};
pub use encode::{Encode, Encoder, Output};
pub use error::Error;
pub use header::{Misc, Record, RecordHeader, RecordType, Records};
pub use mapping::{MappedId, Mapping};
pub use ring::{Ring, RingWriter, WriteError};
pub use sample::{Sample, WithCallchain};
pub use sample_id::{IdPlace, SampleId, Task};
pub use side_band::{Comm, Lifecycle, Lost};
pub use throttle::{LostSamples, Throttle};
pub use user_state::{UserAbi, UserState};
