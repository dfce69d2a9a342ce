//! The last branch record.

use unwind_core::VirtAddr;
use unwind_x86::lbr::{
    Branch, BranchInfo, Lbr, LbrCpu, LbrSample, LbrState, LbrTask, Msrs, Stitcher, join,
};

use crate::seen;

unsafe extern "C" {
    /// Reads a register.
    fn read_msr(msr: u32) -> u64;
    /// Writes a register.
    fn write_msr(msr: u32, value: u64);
}

struct Registers;

impl Msrs for Registers {
    fn read(&mut self, msr: u32) -> u64 {
        // SAFETY: promised by the function that links this.
        unsafe { read_msr(msr) }
    }

    fn write(&mut self, msr: u32, value: u64) {
        // SAFETY: as above.
        unsafe { write_msr(msr, value) }
    }
}

/// Switches and samples on a CPU.
#[unsafe(no_mangle)]
pub fn branch_record(
    cpu: &mut LbrCpu,
    out: &mut LbrState,
    into: &mut LbrState,
    owner: u64,
    cpuid: (u32, u32),
) {
    into.add_user();
    cpu.start(&mut Registers, into);
    cpu.start_wide(&mut Registers, Some(&*into));
    cpu.switch_out(&mut Registers, Some(LbrTask { owner, state: out }));
    seen(cpu.switch_in(&mut Registers, Some(LbrTask { owner, state: into })));
    let sample = cpu.read(&mut Registers);
    let stamped = cpu.read_stamped(&mut Registers, into);
    for sample in [sample, stamped] {
        seen((sample.is_full(), sample.top(), sample.depth()));
        for addr in sample.call_chain(Some(VirtAddr::new(owner))) {
            seen(addr);
        }
    }
    cpu.switch_out(&mut Registers, None);
    cpu.stop_wide();
    into.remove_user();
    seen((cpu.is_used(Some(&*into)), into.users(), cpu.lbr().depth()));
    if let Some(lbr) = Lbr::architectural(cpuid.0, cpuid.1) {
        *cpu = LbrCpu::new(lbr);
    }
}

/// Samples put together, and joined with a walk.
#[unsafe(no_mangle)]
pub fn stitch(
    stitcher: &mut Stitcher<u32, 40>,
    branches: &[Branch; 40],
    walk: &[u64; 64],
    lens: (usize, usize),
    depth: u32,
    top: u32,
) {
    let branches = branches.get(..lens.0).unwrap_or_default();
    let walk = walk.get(..lens.1).unwrap_or_default();
    if let Some(sample) = LbrSample::from_branches(branches, depth, Some(top)) {
        stitcher.push(&sample, &depth);
    }
    for (branch, reference) in stitcher.calls() {
        seen((branch.returns_to(u64::from(*reference)), branch.info.stamp(), branch.info.cycles()));
    }
    seen((stitcher.is_cut(), stitcher.older().len(), BranchInfo::from_bits(top.into()).bits()));
    stitcher.clear();
    let joined = join(branches, walk);
    seen((joined.outcome(), joined.agreed()));
    for frame in joined.frames() {
        seen((frame.addr(), frame.lookup_addr()));
    }
}
