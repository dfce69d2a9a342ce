//! What is promised to be new if its bytes are all zero, so that a kernel can make it in
//! memory that comes zeroed, where it is to live.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::incompatible_msrv, clippy::arithmetic_side_effects, reason = "tests")]

#[path = "support/sim.rs"]
mod sim;

use core::mem::MaybeUninit;

use sim::{Call, Kernel, Task};
use unwind_core::deferred::{Recipients, SampleOutcome, TaskState, UnwindCache, UserReturn};
use unwind_core::{Module, PackedFrame, RowCache, SharedModuleMap, TableLocation, Trace, VirtAddr};

/// # Safety
///
/// All zeroes have to be a value of the type.
unsafe fn zeroed<T>() -> Box<T> {
    let zeroed: Box<MaybeUninit<T>> = Box::new_zeroed();
    // SAFETY: the caller's.
    unsafe { zeroed.assume_init() }
}

#[test]
fn a_task_state_of_zeroes_is_a_new_one() {
    // SAFETY: documented to be so.
    let state: Box<TaskState> = unsafe { zeroed() };
    assert_eq!(format!("{state:?}"), format!("{:?}", TaskState::new()));
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task { state: *state, ..Task::new(&[0x1000, 0x2000]) };
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready);
    let cookie = kernel.ask(&task, client);
    // SAFETY: documented to be so.
    let mut cache: Box<UnwindCache<[PackedFrame; 16]>> = unsafe { zeroed() };
    assert!(cache.cookie().is_none() && cache.trace().is_empty() && cache.trace().end().is_none());
    {
        let walk = |trace: &mut Trace| task.walk(trace);
        let mut delivery =
            kernel.unwind.deliver(&task, Recipients::Requesters, Some(&mut *cache), walk);
        let call = Call::of(&delivery.next().unwrap());
        assert_eq!((call.cookie, call.end), (cookie, SampleOutcome::Matched));
        assert_eq!(call.stack, Some(vec![0x1000, 0x2000]));
        assert!(delivery.next().is_none());
    }
    assert_eq!(cache.cookie(), Some(cookie));
    assert_eq!(kernel.unwind.user_return(&task), UserReturn::Ready);
}

#[test]
fn a_trace_of_zeroes_is_a_new_one() {
    // SAFETY: documented to be so.
    let trace: Box<Trace<[PackedFrame; 510]>> = unsafe { zeroed() };
    assert!(trace.is_empty() && trace.end().is_none() && !trace.is_complete());
    assert_eq!(format!("{trace:?}"), format!("{:?}", Trace::<[_; 510]>::new()));
}

#[test]
fn a_row_cache_and_a_module_map_of_zeroes_are_new_ones() {
    // SAFETY: documented to be so.
    let cache: Box<RowCache<64>> = unsafe { zeroed() };
    assert_eq!(format!("{cache:?}"), format!("{:?}", RowCache::<64>::new()));
    // SAFETY: documented to be so.
    let map: Box<SharedModuleMap<4>> = unsafe { zeroed() };
    assert_eq!(map.find(VirtAddr::new(0)), Ok(None));
    let text = VirtAddr::new(0x1000)..VirtAddr::new(0x2000);
    let module = Module { text, table: TableLocation::default() };
    assert_eq!(map.add(&module), Ok(()));
    assert_eq!(map.find(VirtAddr::new(0x1800)), Ok(Some(module)));
}
