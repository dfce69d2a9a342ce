//! A CPU, its branch record, and tasks that know their call stack.

use test_support::{LbrHardware, LbrKind};
use unwind_x86::lbr::*;

pub const KINDS: [LbrKind; 7] = [
    LbrKind::Haswell,
    LbrKind::HaswellWithTransactions,
    LbrKind::Skylake,
    LbrKind::Architectural { depth: 32, lost_in_deep_idle: true },
    LbrKind::Architectural { depth: 32, lost_in_deep_idle: false },
    LbrKind::Architectural { depth: 24, lost_in_deep_idle: true },
    LbrKind::Architectural { depth: 8, lost_in_deep_idle: true },
];

pub fn lbr_of(kind: LbrKind) -> Lbr {
    match kind {
        LbrKind::Haswell => Lbr::haswell(false),
        LbrKind::HaswellWithTransactions => Lbr::haswell(true),
        LbrKind::Skylake => Lbr::skylake(),
        LbrKind::Architectural { .. } => {
            let (eax, ebx) = LbrHardware::new(kind).cpuid_1c();
            Lbr::architectural(eax, ebx).unwrap()
        }
    }
}

pub struct Registers(pub LbrHardware);

impl Msrs for Registers {
    fn read(&mut self, msr: u32) -> u64 {
        self.0.read(msr)
    }

    fn write(&mut self, msr: u32, value: u64) {
        self.0.write(msr, value);
    }
}

/// A task: its call stack, as it really is, and its state.
pub struct Task {
    pub number: u64,
    pub stack: Vec<(u64, u64)>,
    pub state: Option<LbrState>,
}

impl Task {
    pub fn new(number: u64) -> Self {
        Self { number, stack: Vec::new(), state: None }
    }

    pub fn with_state(number: u64) -> Self {
        Self { state: Some(LbrState::new()), ..Self::new(number) }
    }

    pub fn tenant(&mut self) -> Option<LbrTask<'_>> {
        let owner = self.number;
        self.state.as_mut().map(|state| LbrTask { owner, state })
    }

    /// Addresses that only this task has.
    pub fn owns(&self, addr: u64) -> bool {
        addr >> 24 == self.number + 1
    }
}

pub struct Cpu {
    pub lbr: LbrCpu,
    pub registers: Registers,
}

impl Cpu {
    pub fn new(kind: LbrKind) -> Self {
        let mut hardware = LbrHardware::new(kind);
        // Leftovers of whoever used it before.
        hardware.record(true);
        (0..40).for_each(|n| hardware.call(0xdead_0000 + n, 0xbeef_0000 + n));
        hardware.record(false);
        Self { lbr: LbrCpu::new(lbr_of(kind)), registers: Registers(hardware) }
    }

    pub fn switch_in(&mut self, task: &mut Task) -> RestoreOutcome {
        let found = self.lbr.switch_in(&mut self.registers, task.tenant());
        self.update(task);
        found
    }

    pub fn switch_out(&mut self, task: &mut Task) {
        self.lbr.switch_out(&mut self.registers, task.tenant());
        self.registers.0.record(false);
    }

    /// Records if anyone uses it, as a host has to.
    pub fn update(&mut self, task: &Task) {
        self.registers.0.record(self.lbr.is_used(task.state.as_ref()));
    }

    pub fn start(&mut self, task: &mut Task) {
        self.lbr.start(&mut self.registers, task.state.as_mut().unwrap());
        self.update(task);
    }

    pub fn start_wide(&mut self, task: &Task) {
        self.lbr.start_wide(&mut self.registers, task.state.as_ref());
        self.update(task);
    }

    pub fn call(&mut self, task: &mut Task) {
        let depth = u64::try_from(task.stack.len()).unwrap();
        let base = (task.number + 1) << 24;
        let call = (base + depth * 64 + 8, base + (depth + 1) * 64);
        self.registers.0.tick(10 + depth);
        self.registers.0.call(call.0, call.1);
        task.stack.push(call);
    }

    pub fn ret(&mut self, task: &mut Task) {
        if task.stack.pop().is_some() {
            self.registers.0.ret();
        }
    }

    pub fn sample(&mut self) -> LbrSample {
        self.lbr.read(&mut self.registers)
    }

    pub fn depth(&self) -> usize {
        usize::try_from(self.lbr.lbr().depth()).unwrap()
    }

    /// What was recorded is the inner end of the task's stack; returns how
    /// much of it.
    pub fn check(&mut self, task: &Task) -> usize {
        let sample = self.sample();
        for (call, branch) in task.stack.iter().rev().zip(sample.branches()) {
            assert_eq!((branch.from, branch.to), *call, "task {}", task.number);
        }
        for branch in sample.branches() {
            assert!(task.owns(branch.from) && task.owns(branch.to), "a leak: {branch:?}");
        }
        assert!(sample.branches().len() <= task.stack.len());
        sample.branches().len()
    }
}
