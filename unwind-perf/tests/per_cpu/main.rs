//! The rules of the per-CPU event registry: whose client asks, and which event
//! gets the stack.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, unreachable_pub, reason = "tests")]

mod descriptor;
mod groups;
#[path = "../kernel/mod.rs"]
mod kernel;
mod recorder;
mod removal;
mod request;
mod task_event;
mod tasks;
mod work;

use kernel::Core;
use unwind_core::deferred::MAX_CLIENTS;
use unwind_perf::per_cpu::*;

type Registry = FixedRegistry<4, 4>;

fn registry() -> Registry {
    Registry::new(DeliveryPolicy::FirstLive)
}

fn spec(leader: u64, cpu: i32, key: u64) -> EventSpec {
    EventSpec {
        leader: GroupLeader(leader),
        cpu,
        task: None,
        key: EventKey(key),
        defer_output: false,
    }
}

/// A registry without events, over a core without registered clients.
fn assert_empty(core: &Core, registry: &Registry, leaders: &[u64]) {
    for &leader in leaders {
        assert_eq!(registry.occupied_cpus(GroupLeader(leader)), 0);
        assert_eq!(registry.client_of(GroupLeader(leader)), None);
    }
    // Every slot of the core and every place of the registry can be had.
    let all: Vec<_> = (0..MAX_CLIENTS).map(|_| core.register().unwrap()).collect();
    for client in all {
        core.cancel(None, client).unwrap();
    }
    let events: Vec<_> =
        (0..16).map(|n| registry.add(core, spec(1000, n % 4, 0)).unwrap()).collect();
    for event in events {
        registry.remove(core, None, event).unwrap();
    }
}
