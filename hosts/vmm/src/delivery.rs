//! A stack is handed out: it becomes a record.

use std::sync::mpsc;

use unwind_core::deferred::{Recipients, UnwindCache};
use unwind_core::{PackedFrame, VirtAddr};
use unwind_guest::paging::VmMemory;
use unwind_guest::{GuestRows, GuestStack, VcpuRegisters};
use unwind_perf::record::{CallchainDeferred, Context};

use crate::monitor::{Task, UNWIND};
use crate::samples::{Ring, now};
use crate::shared::Shared;

/// How many frames both parts have at most.
const FRAMES: usize = 252;

/// Gives a stack to those who have asked for it, each cookie once, on the vCPU's behalf.
pub(crate) fn hand_out(
    task: &Task,
    ring: &Ring,
    registers: &VcpuRegisters,
    stack: &GuestStack,
    shared: &Shared,
) {
    let mut cache = UnwindCache::<[PackedFrame; FRAMES]>::new();
    let walk = |trace: &mut _| stack.write_to(trace);
    let mut delivery = UNWIND.deliver(task, Recipients::Requesters, Some(&mut cache), walk);
    while let Some(guard) = delivery.next() {
        let pcs = guard.trace().into_iter().flat_map(|trace| trace.pcs());
        let ips: Vec<_> = with_marks(pcs).collect();
        let (cookie, ips) = (Some(guard.cookie().get()), ips.iter().copied());
        ring.write(&CallchainDeferred { cookie, ips, id: now(task.thread) }, task.thread);
        shared.note(guard.cookie(), guard.outcome(), registers, stack);
    }
}

/// The words of a guest's call chain: before each part the mark of whose code it is.
fn with_marks(pcs: impl Iterator<Item = VirtAddr>) -> impl Iterator<Item = u64> {
    let mut before = None;
    pcs.flat_map(move |pc| {
        let of = if pc.get() >> 63 == 0 { Context::GuestUser } else { Context::GuestKernel };
        let mark = (before.replace(of) != Some(of)).then(|| of.word());
        mark.into_iter().chain([pc.get()])
    })
}

/// A vCPU that stands until its stack was walked.
pub(crate) struct Standing {
    pub(crate) task: &'static Task,
    pub(crate) registers: VcpuRegisters,
    pub(crate) done: mpsc::Sender<()>,
}

/// Walks the stacks of vCPUs that stand, by a thread of its own: its reads wait until a page is there.
pub(crate) fn walk_patiently(standing: mpsc::Receiver<Standing>, ring: &Ring, shared: &Shared) {
    let mut rows = GuestRows::new();
    let mut walker = shared.tables.walker(&mut rows);
    let mut stack = GuestStack::new();
    for Standing { task, registers, done } in standing {
        let memory = VmMemory::new(shared.ram.memory());
        walker.walk_by_key(&registers, memory, &shared.tables, &mut stack);
        hand_out(task, ring, &registers, &stack, shared);
        // The vCPU's thread waits for it.
        let _ = done.send(());
    }
}
