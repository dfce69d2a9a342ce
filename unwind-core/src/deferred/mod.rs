//! Stacks are requested where they cannot be walked, and walked and delivered later,
//! where they can.
//!
//! It is checked in three ways, since each finds faults that the others cannot find. Unit tests have
//! atomics that let a handler run before each access: a model runs a step once for every place where
//! an NMI, and a second one after it, can interrupt. loom tries the orders of several CPUs. Random
//! sequences of everything run against a plain model with sets instead of bits.

mod client;
mod client_table;
mod cookie;
mod cookie_cell;
mod counters;
mod deferred_unwind;
mod delivery;
mod delivery_state;
mod host;
mod life_cycle;
#[cfg(all(test, not(loom)))]
mod nmi_model;
mod registration;
mod renewal;
mod request;
mod sample_outcome;
mod task_state;
mod unwind_cache;
mod word;

pub use client::{ClientId, MAX_CLIENTS};
pub use cookie::{
    ClockCookies, Cookie, CookieSource, CounterCookies, PerCpuCookies, SerialCookies,
};
pub use counters::DropCounts;
pub use deferred_unwind::{CancelError, DeferredUnwind, TooManyClients};
pub use delivery::{Abandonment, Delivery, DeliveryGuard, LossReason, Recipients};
pub use host::{Host, RequestContext, ScheduleError, TaskKind, relax_while};
pub use life_cycle::UserReturn;
pub use request::{Refusal, RequestOutcome};
pub use sample_outcome::SampleOutcome;
pub use task_state::TaskState;
pub use unwind_cache::UnwindCache;
