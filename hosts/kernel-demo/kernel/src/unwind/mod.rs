//! The unwinder, embedded. This folder is what a kernel has to write to have
//! one; all else in this crate is a small kernel around it.
//!
//! | hook | where it is called | file |
//! |---|---|---|
//! | what the unwinder asks of the kernel | by the unwinder, in any context | [`host`] |
//! | a sample is due | the NMI | [`sampler`] |
//! | a system call begins | [`kernel_entry`] | [`tracer`] |
//! | a task goes back to user mode | [`leave`], on every way out | [`delivery`] |
//! | a task starts, forks, executes another program or ends | `task/life.rs` | [`delivery`], [`branches`] |
//! | the CPU switches tasks | `task/schedule.rs`, by the hook of [`register`] | [`branches`], [`aux_trace`] |
//! | kernel frames | the NMI | [`kernel_stack`] |
//! | user frames | a delivery; an NMI that may not defer | [`user_stack`] |
//! | records out | the NMI, deliveries, life-cycle events | [`stream`] |
//!
//! [`kernel_entry`]: crate::entry
//! [`leave`]: crate::entry

pub(crate) mod aux_trace;
pub(crate) mod branches;
mod client;
mod counter;
pub(crate) mod delivery;
pub(crate) mod event;
pub(crate) mod events;
pub(crate) mod followers;
pub(crate) mod host;
pub(crate) mod kernel_modules;
pub(crate) mod kernel_stack;
pub(crate) mod panic_trace;
pub(crate) mod rows;
pub(crate) mod sampler;
pub(crate) mod shared_trace;
pub(crate) mod stream;
pub(crate) mod tracer;
pub(crate) mod user_stack;

use crate::each_cpu::are_several;
use crate::task::schedule;
use crate::task::state::Task;
use crate::unwind::client::Client;
use crate::unwind::host::UNWIND;

/// Registers all clients, and the hook of the scheduler. Once, before anything
/// is sampled.
pub(crate) fn register() {
    schedule::set_hook(switch);
    for client in Client::ALL {
        if client == Client::Profiler && are_several() {
            events::add_all();
            continue;
        }
        match UNWIND.register() {
            Ok(id) => client.set_id(id),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The context switch, on the way from one task to the other. Interrupts are
/// off.
fn switch(from: &Task, to: &Task) {
    branches::switch(from, to);
    aux_trace::schedule(from, false);
    aux_trace::schedule(to, true);
}
