//! A program that calls, returns and is sampled: chains put together from the
//! samples are never wrong; and branches from elsewhere, which may be anything,
//! are joined with any walk in bounds.

use test_support::{LbrHardware, LbrKind};
use unwind_x86::lbr::{Branch, BranchInfo, Lbr, LbrCpu, LbrSample, LbrState, Msrs, Stitcher, join};

use crate::input::Input;

struct Registers(LbrHardware);

impl Msrs for Registers {
    fn read(&mut self, msr: u32) -> u64 {
        self.0.read(msr)
    }

    fn write(&mut self, msr: u32, value: u64) {
        self.0.write(msr, value);
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if input.bool() { program(&mut input) } else { anything(&mut input) }
}

/// Stamped samples of a CPU.
fn program(input: &mut Input<'_>) {
    let kind = match input.u8() % 3 {
        0 => LbrKind::Architectural { depth: 8, lost_in_deep_idle: true },
        1 => LbrKind::Architectural { depth: 32, lost_in_deep_idle: false },
        _ => LbrKind::Skylake,
    };
    let mut hardware = LbrHardware::new(kind);
    let lbr = match kind {
        LbrKind::Architectural { .. } => {
            let (eax, ebx) = hardware.cpuid_1c();
            Lbr::architectural(eax, ebx).unwrap()
        }
        _ => Lbr::skylake(),
    };
    hardware.record(true);
    let mut registers = Registers(hardware);
    let (cpu, mut state) = (LbrCpu::new(lbr), LbrState::new());
    let mut stitcher = Stitcher::<u32, 40>::new();
    let mut stack: Vec<(u64, u64)> = Vec::new();
    let mut samples = 0;
    while !input.is_empty() {
        let step = input.u8();
        match step {
            0..0x70 => {
                // Few sites, so that entries are often equal.
                let site = u64::from(step & 3);
                let call = (0x40_0000 + site * 8, 0x50_0000 + site * 0x100);
                registers.0.tick(u64::from(step >> 4));
                for _ in 0..=(step >> 2 & 3) {
                    registers.0.call(call.0, call.1);
                    stack.push(call);
                }
            }
            0x70..0xc0 => {
                for _ in 0..=(step & 7) {
                    if stack.pop().is_some() {
                        registers.0.ret();
                    }
                }
            }
            0xc0..0xf8 => {
                samples += 1;
                let sample = cpu.read_stamped(&mut registers, &mut state);
                let older = stitcher.push(&sample, &samples);
                assert_eq!(older, stitcher.older().len());
                let chain: Vec<_> =
                    stitcher.calls().map(|(branch, _)| (branch.from, branch.to)).collect();
                let truth: Vec<_> = stack.iter().rev().copied().collect();
                assert!(truth.starts_with(&chain), "{chain:x?} of {truth:x?}");
                assert!(chain.len() >= sample.branches().len());
            }
            _ => stitcher.clear(),
        }
    }
}

/// Branches that any hardware, or none, may have recorded.
fn anything(input: &mut Input<'_>) {
    let mut stitcher = Stitcher::<(), 8>::new();
    if input.bool() {
        stitcher = stitcher.trusting_addresses();
    }
    while !input.is_empty() {
        let (depth, top) = (u32::from(input.u8() % 40), input.u8());
        let branches: Vec<Branch> = (0..input.u8() % 36)
            .map(|_| {
                let (from, to) = (u64::from(input.u8()), u64::from(input.u8()));
                let info = if input.bool() { input.u64() } else { u64::from(input.u8()) };
                Branch { from, to, info: BranchInfo::from_bits(info) }
            })
            .collect();
        let walk: Vec<u64> = (0..input.u8() % 12).map(|_| u64::from(input.u8())).collect();
        let joined = join(&branches, &walk);
        assert!(joined.agreed() <= branches.len().min(walk.len() + 1));
        assert!(joined.frames().count() <= branches.len() + walk.len() + 1);
        let fits = branches.len() <= depth as usize && depth as usize <= Lbr::MAX_DEPTH;
        let sample = LbrSample::from_branches(&branches, depth, Some(top.into()));
        assert_eq!(sample.is_some(), fits);
        let Some(sample) = sample else { continue };
        assert_eq!(sample.branches(), branches);
        let older = stitcher.push(&sample, &());
        assert!(older <= 8 && stitcher.calls().count() == branches.len() + older);
    }
}
