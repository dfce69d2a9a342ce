//! Memory that runs out where the perf side allocates at run time: a registry
//! whose number of CPUs is known late.
//!
//! A merge allocates too, but by maps that have no way to report it: there the
//! limit on what is held is the protection.
#![cfg(not(loom))]
#![cfg(test)]

use test_support::LimitedAllocator;
use unwind_perf::per_cpu::{AddError, DeliveryPolicy, HeapRegistry};

#[global_allocator]
static ALLOCATOR: LimitedAllocator = LimitedAllocator;

#[test]
fn a_registry_without_memory_is_not_made_and_says_so() {
    let make = |cpus| HeapRegistry::<4>::try_with_cpus(DeliveryPolicy::FirstLive, cpus, 0);
    let (none, _) = LimitedAllocator::with(0, || make(64));
    let (of_no_cpus, _) = LimitedAllocator::with(0, || make(0));
    assert_eq!(none.unwrap_err(), AddError::NoMemory);
    assert!(of_no_cpus.is_ok(), "which takes none");
    assert!(make(64).is_ok());
    // More than there can be.
    for (cpus, spare) in [(usize::MAX, 0), (64, usize::MAX - 64), (2, usize::MAX)] {
        let all = HeapRegistry::<4>::try_with_cpus(DeliveryPolicy::FirstLive, cpus, spare);
        assert_eq!(all.unwrap_err(), AddError::NoMemory);
    }
}
