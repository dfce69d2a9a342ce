//! Any walk will do: other architectures, other rows, modes that have no stack.

use core::convert::Infallible;

use test_support::cpu::{Cpu32, Cpu64, FramePointers, Regs, Unwalkable};
use unwind_core::deferred::*;
use unwind_core::*;

use crate::{
    STACK,
    sim::{self, Cache, Call, Kernel, Task},
};

#[test]
fn r3_1_stacks_of_either_word_size_are_delivered() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, client);
    // The caller's frame pointer, the return address; then the end.
    let words = [0x108_u32, 0x2000, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut cache = Cache::new();
    let walk = |trace: &mut Trace| {
        let mut memory = SliceMemory::new(VirtAddr::new(0x100), &bytes);
        let regs = Regs::new(0x1000, 0x100, Some(0x100));
        Walker::new(Cpu32, FramePointers).trace(regs, &mut memory, trace);
    };
    let mut delivery = kernel.unwind.deliver(&task, Recipients::Requesters, Some(&mut cache), walk);
    let call = Call::of(&delivery.next().unwrap());
    assert_eq!((call.end, call.stack), (SampleOutcome::Matched, Some(vec![0x1000, 0x2000])));
}

/// A source of rows that knows no address.
struct NoSource;

impl RowSource<Cpu64> for NoSource {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(None)
    }
}

#[test]
fn r1_8_any_walk_will_do_and_a_partial_one_is_told_from_a_whole_one() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    let regs = Regs::new(0x1000, 0x100, Some(0x100));
    kernel.ask(&task, client);
    let mut cache = Cache::new();
    let walk = |trace: &mut Trace| {
        let mut memory = SliceMemory::new(VirtAddr::new(0), &[]);
        Walker::new(Cpu64, NoSource).trace(regs, &mut memory, trace);
    };
    let mut delivery = kernel.unwind.deliver(&task, Recipients::Requesters, Some(&mut cache), walk);
    let guard = delivery.next().unwrap();
    assert_eq!(guard.outcome(), SampleOutcome::Truncated);
    assert_eq!(guard.trace().unwrap().end(), Some(End::NoRow));
    assert_eq!(sim::pcs_of(guard.trace().unwrap()), [0x1000]);
}

#[test]
fn r3_10_a_task_in_a_mode_that_cannot_be_walked_is_called_back_without_frames() {
    let kernel = Kernel::new();
    let [client] = kernel.register();
    let task = Task::new(STACK);
    kernel.ask(&task, client);
    let mut cache = Cache::new();
    let walk = |trace: &mut Trace| {
        let mut memory = SliceMemory::new(VirtAddr::new(0), &[]);
        let regs = Regs::new(0x1000, 0x100, Some(0x100));
        Walker::new(Unwalkable, FramePointers).trace(regs, &mut memory, trace);
    };
    let mut delivery = kernel.unwind.deliver(&task, Recipients::Requesters, Some(&mut cache), walk);
    let guard = delivery.next().unwrap();
    assert_eq!(guard.outcome(), SampleOutcome::StackLost);
    assert_eq!(guard.trace().unwrap().end(), Some(End::NotWalkable));
    assert!(guard.trace().unwrap().is_empty());
}
