//! Joins samples with the user stacks that arrive later.
//!
//! A sample whose user part was deferred carries a cookie; a
//! `PERF_RECORD_CALLCHAIN_DEFERRED` with the same thread and cookie carries
//! the stack. [`Merger`] takes both as they come and gives every sample back
//! exactly once: merged, unmatched, or as it was.
//!
//! What Linux 7.2 does, measured on recorded streams:
//!
//! * The record comes when the thread returns to user mode: microseconds to
//!   seconds after the sample, and the thread may have moved to a CPU with
//!   another ring by then.
//! * It can also come *before* a sample of its cookie, in the ring and in
//!   time, because interrupts on the way out of the kernel still find the
//!   cookie. Up to 7 % of the samples taken in the kernel are such.
//! * Its time can be older than that of a sample in front of it: the sample
//!   interrupted the writing of the record.
//! * Several samples can share a cookie, and a record can come more than once.
//! * A thread has one cookie at a time. Another cookie of the thread shows
//!   that the one before is over.
//! * exec is one kernel entry. Samples from before it share a cookie with the
//!   stack of the program after it; such a merge is marked
//!   ([`Merged::across_exec`]).
//!
//! So both records and samples are kept, until no record or sample that belongs
//! to them can come any more. [`Reorder`] sorts a stream by time within its
//! rounds, for readers that want events in order.
//!
//! Records of the first proposal for Linux have no cookie
//! ([`DeferredLayout::MarkerFirst`](crate::record::DeferredLayout::MarkerFirst)).
//! [`CookiesByTime`] joins them by time, as far as nothing was lost: once a record is lost,
//! the next would be taken for the stack of an earlier kernel entry.
//!
//! # Memory
//!
//! Both types hold at most the bytes that they are given, whatever the input.
//! Their counts say how much was dropped to keep this limit.

mod by_time;
mod chain;
mod counts;
mod merger;
mod outcome;
mod policy;
mod reorder;
mod store;
mod thread;

pub use by_time::CookiesByTime;
pub use chain::whole_chain;
pub use counts::MergeCounts;
pub use merger::Merger;
pub use outcome::{Merged, Outcome, Timestamped, Unmatched};
pub use policy::Policy;
pub use reorder::{Reorder, ReorderCounts};
