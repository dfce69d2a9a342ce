//! The record of branches at context switches: each task finds its own, and
//! nobody finds another one's.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::std_instead_of_core,
    reason = "tests"
)]

use testdata::{LbrHardware, LbrKind};
use unwind_core::VirtAddr;
use unwind_x86::lbr::*;

const KINDS: [LbrKind; 7] = [
    LbrKind::Haswell,
    LbrKind::HaswellWithTransactions,
    LbrKind::Skylake,
    LbrKind::Architectural { depth: 32, lost_in_deep_idle: true },
    LbrKind::Architectural { depth: 32, lost_in_deep_idle: false },
    LbrKind::Architectural { depth: 24, lost_in_deep_idle: true },
    LbrKind::Architectural { depth: 8, lost_in_deep_idle: true },
];

fn lbr_of(kind: LbrKind) -> Lbr {
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

struct Registers(LbrHardware);

impl Msrs for Registers {
    fn read(&mut self, msr: u32) -> u64 {
        self.0.read(msr)
    }

    fn write(&mut self, msr: u32, value: u64) {
        self.0.write(msr, value);
    }
}

/// A task: its call stack, as it really is, and its state.
struct Task {
    number: u64,
    stack: Vec<(u64, u64)>,
    state: Option<LbrState>,
}

impl Task {
    fn new(number: u64) -> Self {
        Self { number, stack: Vec::new(), state: None }
    }

    fn with_state(number: u64) -> Self {
        Self { state: Some(LbrState::new()), ..Self::new(number) }
    }

    fn tenant(&mut self) -> Option<Tenant<'_>> {
        let owner = self.number;
        self.state.as_mut().map(|state| Tenant { owner, state })
    }

    /// Addresses that only this task has.
    fn owns(&self, addr: u64) -> bool {
        addr >> 24 == self.number + 1
    }
}

struct Cpu {
    lbr: LbrCpu,
    registers: Registers,
}

impl Cpu {
    fn new(kind: LbrKind) -> Self {
        let mut hardware = LbrHardware::new(kind);
        // Leftovers of whoever used it before.
        hardware.record(true);
        (0..40).for_each(|n| hardware.call(0xdead_0000 + n, 0xbeef_0000 + n));
        hardware.record(false);
        Self { lbr: LbrCpu::new(lbr_of(kind)), registers: Registers(hardware) }
    }

    fn switch_in(&mut self, task: &mut Task) -> SwitchedIn {
        let found = self.lbr.switch_in(&mut self.registers, task.tenant());
        self.update(task);
        found
    }

    fn switch_out(&mut self, task: &mut Task) {
        self.lbr.switch_out(&mut self.registers, task.tenant());
        self.registers.0.record(false);
    }

    /// Records if anybody uses it, as a host has to.
    fn update(&mut self, task: &Task) {
        self.registers.0.record(self.lbr.is_used(task.state.as_ref()));
    }

    fn start(&mut self, task: &mut Task) {
        self.lbr.start(&mut self.registers, task.state.as_mut().unwrap());
        self.update(task);
    }

    fn start_wide(&mut self, task: &Task) {
        self.lbr.start_wide(&mut self.registers, task.state.as_ref());
        self.update(task);
    }

    fn call(&mut self, task: &mut Task) {
        let depth = u64::try_from(task.stack.len()).unwrap();
        let base = (task.number + 1) << 24;
        let call = (base + depth * 64 + 8, base + (depth + 1) * 64);
        self.registers.0.tick(10 + depth);
        self.registers.0.call(call.0, call.1);
        task.stack.push(call);
    }

    fn ret(&mut self, task: &mut Task) {
        if task.stack.pop().is_some() {
            self.registers.0.ret();
        }
    }

    fn sample(&mut self) -> LbrSample {
        self.lbr.read(&mut self.registers)
    }

    fn depth(&self) -> usize {
        usize::try_from(self.lbr.lbr().depth()).unwrap()
    }

    /// What was recorded is the inner end of the task's stack; returns how
    /// much of it.
    fn check(&mut self, task: &Task) -> usize {
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

#[test]
fn r2_19_a_record_that_is_used_is_saved_and_restored_and_others_are_not() {
    for kind in KINDS {
        let (mut cpu, mut other) = (Cpu::new(kind), Cpu::new(kind));
        let mut used = Task::with_state(1);
        used.state.as_mut().unwrap().add_user();
        let mut unused = Task::with_state(2);

        assert_eq!(cpu.switch_in(&mut used), SwitchedIn::Cleared, "{kind:?}");
        (0..5).for_each(|_| cpu.call(&mut used));
        cpu.switch_out(&mut used);
        assert_eq!(other.switch_in(&mut used), SwitchedIn::Restored);
        assert_eq!(other.check(&used), 5);
        other.switch_out(&mut used);

        // Without users nothing is saved, and there is no access at all.
        let before = cpu.registers.0.accesses;
        assert_eq!(cpu.switch_in(&mut unused), SwitchedIn::Unused);
        cpu.call(&mut unused);
        cpu.switch_out(&mut unused);
        assert_eq!(cpu.registers.0.accesses, before);
        unused.state.as_mut().unwrap().add_user();
        assert_eq!(cpu.switch_in(&mut unused), SwitchedIn::Cleared);
        assert_eq!(cpu.check(&unused), 0);
    }
}

#[test]
fn r2_19_a_cpu_wide_user_saves_every_task_that_has_a_place() {
    for kind in KINDS {
        let mut cpu = Cpu::new(kind);
        let (mut a, mut b) = (Task::with_state(1), Task::with_state(2));
        cpu.switch_in(&mut a);
        cpu.start_wide(&a);
        (0..4).for_each(|_| cpu.call(&mut a));
        cpu.switch_out(&mut a);
        assert_eq!(cpu.switch_in(&mut b), SwitchedIn::Cleared);
        (0..3).for_each(|_| cpu.call(&mut b));
        cpu.switch_out(&mut b);
        assert_eq!(cpu.switch_in(&mut a), SwitchedIn::Restored);
        assert_eq!(cpu.check(&a), 4);
        cpu.switch_out(&mut a);
        assert_eq!(cpu.switch_in(&mut b), SwitchedIn::Restored);
        assert_eq!(cpu.check(&b), 3);
    }
}

#[test]
fn r2_20_a_record_that_is_still_there_is_not_restored() {
    for kind in KINDS {
        let mut cpu = Cpu::new(kind);
        let mut task = Task::with_state(1);
        task.state.as_mut().unwrap().add_user();
        cpu.switch_in(&mut task);
        (0..6).for_each(|_| cpu.call(&mut task));
        cpu.switch_out(&mut task);
        // The idle task runs no user code and needs no switch.
        let before = cpu.registers.0.accesses;
        assert_eq!(cpu.switch_in(&mut task), SwitchedIn::Kept);
        assert!(cpu.registers.0.accesses - before <= 3, "at most a look at the newest entry");
        assert_eq!(cpu.check(&task), 6);

        // Nor after a task whose record nobody used.
        let mut unused = Task::with_state(2);
        cpu.switch_out(&mut task);
        assert_eq!(cpu.switch_in(&mut unused), SwitchedIn::Unused);
        cpu.switch_out(&mut unused);
        assert_eq!(cpu.switch_in(&mut task), SwitchedIn::Kept);
        assert_eq!(cpu.check(&task), 6);
    }
}

#[test]
fn r2_20_a_record_that_was_lost_in_deep_idle_is_restored() {
    for kind in KINDS {
        let survives = matches!(kind, LbrKind::Architectural { lost_in_deep_idle: false, .. });
        let mut cpu = Cpu::new(kind);
        let mut task = Task::with_state(1);
        task.state.as_mut().unwrap().add_user();
        cpu.switch_in(&mut task);
        (0..6).for_each(|_| cpu.call(&mut task));
        cpu.switch_out(&mut task);
        cpu.registers.0.deep_idle();
        let expected = if survives { SwitchedIn::Kept } else { SwitchedIn::Restored };
        assert_eq!(cpu.switch_in(&mut task), expected, "{kind:?}");
        assert_eq!(cpu.check(&task), 6);

        // An empty record looks lost, unless the hardware loses none.
        (0..6).for_each(|_| cpu.ret(&mut task));
        cpu.switch_out(&mut task);
        assert_eq!(cpu.switch_in(&mut task), expected, "{kind:?}");
    }
}

#[test]
fn r2_20_a_record_that_went_on_elsewhere_is_restored() {
    for kind in KINDS {
        let (mut here, mut there) = (Cpu::new(kind), Cpu::new(kind));
        let mut task = Task::with_state(1);
        task.state.as_mut().unwrap().add_user();
        here.switch_in(&mut task);
        (0..3).for_each(|_| here.call(&mut task));
        here.switch_out(&mut task);
        // It returns and calls again on another CPU: same owner, later save.
        assert_eq!(there.switch_in(&mut task), SwitchedIn::Restored);
        (0..3).for_each(|_| there.ret(&mut task));
        (0..5).for_each(|_| there.call(&mut task));
        there.switch_out(&mut task);
        assert_eq!(here.switch_in(&mut task), SwitchedIn::Restored);
        assert_eq!(here.check(&task), 5);
    }
}

#[test]
fn r2_21_a_task_without_data_does_not_see_the_one_before() {
    for kind in KINDS {
        let mut cpu = Cpu::new(kind);
        let (mut a, mut b) = (Task::with_state(1), Task::new(2));
        cpu.switch_in(&mut a);
        cpu.start_wide(&a);
        (0..40).for_each(|_| cpu.call(&mut a));
        assert_eq!(cpu.check(&a), cpu.depth());
        cpu.switch_out(&mut a);
        assert_eq!(cpu.switch_in(&mut b), SwitchedIn::Cleared);
        assert_eq!(cpu.check(&b), 0);
        (0..2).for_each(|_| cpu.call(&mut b));
        assert_eq!(cpu.check(&b), 2);
        cpu.switch_out(&mut b);
        // And back: what the hardware holds is not what was left there.
        assert_eq!(cpu.switch_in(&mut a), SwitchedIn::Restored);
        assert_eq!(cpu.check(&a), cpu.depth());
    }
}

#[test]
fn r2_21_a_task_does_not_see_another_whose_event_ended_while_it_ran() {
    for kind in KINDS {
        let mut cpu = Cpu::new(kind);
        let (mut a, mut b) = (Task::with_state(1), Task::with_state(2));
        for task in [&mut a, &mut b] {
            task.state.as_mut().unwrap().add_user();
        }
        cpu.switch_in(&mut a);
        (0..4).for_each(|_| cpu.call(&mut a));
        cpu.switch_out(&mut a);
        cpu.switch_in(&mut b);
        (0..4).for_each(|_| cpu.call(&mut b));
        // The event of b ends: nothing is saved when it leaves, and a was the
        // last one that was.
        b.state.as_mut().unwrap().remove_user();
        cpu.update(&b);
        cpu.switch_out(&mut b);
        assert_eq!(cpu.switch_in(&mut a), SwitchedIn::Restored, "{kind:?}");
        assert_eq!(cpu.check(&a), 4);
    }
}

#[test]
fn r2_21_a_task_that_ran_unrecorded_does_not_get_its_old_record() {
    for kind in KINDS {
        let mut cpu = Cpu::new(kind);
        let mut task = Task::with_state(1);
        cpu.switch_in(&mut task);
        cpu.start_wide(&task);
        (0..6).for_each(|_| cpu.call(&mut task));
        cpu.switch_out(&mut task);
        // Nobody records while it runs, returns and calls.
        cpu.lbr.stop_wide();
        assert_eq!(cpu.switch_in(&mut task), SwitchedIn::Unused);
        (0..6).for_each(|_| cpu.ret(&mut task));
        (0..2).for_each(|_| cpu.call(&mut task));
        cpu.switch_out(&mut task);
        let mut other = Task::with_state(2);
        cpu.switch_in(&mut other);
        cpu.start_wide(&other);
        cpu.switch_out(&mut other);
        assert_eq!(cpu.switch_in(&mut task), SwitchedIn::Cleared, "{kind:?}");
        assert_eq!(cpu.check(&task), 0);
    }
}

#[test]
fn r2_21_what_others_left_in_the_hardware_is_cleared_when_recording_starts() {
    for kind in KINDS {
        let mut cpu = Cpu::new(kind);
        let mut task = Task::with_state(1);
        cpu.switch_in(&mut task);
        cpu.start(&mut task);
        assert_eq!(cpu.check(&task), 0);
        // A further user takes nothing away.
        (0..3).for_each(|_| cpu.call(&mut task));
        cpu.start(&mut task);
        cpu.start_wide(&task);
        assert_eq!(cpu.check(&task), 3);
    }
}

#[test]
fn r2_22_only_hardware_with_a_top_register_says_where_entries_are() {
    for kind in KINDS {
        let mut cpu = Cpu::new(kind);
        let mut task = Task::with_state(1);
        cpu.switch_in(&mut task);
        cpu.start(&mut task);
        let before = cpu.sample().top();
        cpu.call(&mut task);
        let after = cpu.sample().top();
        if matches!(kind, LbrKind::Architectural { .. }) {
            assert_eq!((before, after), (None, None));
        } else {
            let depth = cpu.lbr.lbr().depth();
            assert_eq!(after.unwrap(), (before.unwrap() + 1) % depth);
        }
    }
}

#[test]
fn a_call_chain_is_the_pc_and_the_call_sites() {
    let mut cpu = Cpu::new(LbrKind::Skylake);
    let mut task = Task::with_state(0);
    cpu.switch_in(&mut task);
    cpu.start(&mut task);
    cpu.call(&mut task);
    cpu.call(&mut task);
    let sample = cpu.sample();
    let chain = |pc: Option<u64>| -> Vec<u64> {
        sample.call_chain(pc.map(VirtAddr::new)).map(VirtAddr::get).collect()
    };
    assert_eq!(chain(Some(0x100_0085)), [0x100_0085, 0x100_0048, 0x100_0008]);
    assert_eq!(chain(None), [0x100_0080, 0x100_0048, 0x100_0008]);
    assert_eq!(LbrSample::from_branches(&[], 32, None).unwrap().call_chain(None).count(), 0);
}

#[test]
fn flags_and_cycles_are_read_from_where_the_hardware_has_them() {
    for kind in KINDS {
        let mut cpu = Cpu::new(kind);
        let mut task = Task::with_state(1);
        cpu.switch_in(&mut task);
        cpu.start(&mut task);
        // Kernel addresses, to see the sign extension; the second call is
        // mispredicted.
        let calls = [(0xffff_ffff_8100_0000, 0xffff_ffff_8100_0120), (0x40_0010, 0x40_0000)];
        for (from, to) in calls {
            cpu.registers.0.tick(77);
            cpu.registers.0.call(from, to);
        }
        // Through the state and back, so that every bit is written too.
        cpu.switch_out(&mut task);
        let mut cpu = Cpu::new(kind);
        cpu.switch_in(&mut task);
        let sample = cpu.sample();
        let newest: Vec<_> = sample.branches().iter().map(|b| (b.from, b.to)).collect();
        assert_eq!(newest, [calls[1], calls[0]], "{kind:?}");
        let info = sample.branches()[0].info;
        let counted = !matches!(kind, LbrKind::Haswell | LbrKind::HaswellWithTransactions);
        assert_eq!(info.cycles(), if counted { 77 } else { 0 });
        assert!(info.is_mispredicted() && !sample.branches()[1].info.is_mispredicted());
        assert!(!info.is_in_transaction());
    }
}

#[test]
fn an_architectural_record_needs_call_stack_mode_and_a_depth_that_fits() {
    let depth = |eax, ebx| Lbr::architectural(eax, ebx).map(Lbr::depth);
    assert_eq!(depth(0b1111_1111, 1 << 2), Some(32), "64 are too many");
    assert_eq!(depth(0b0000_0111, 1 << 2), Some(24));
    assert_eq!(depth(0b0000_0001, 1 << 2), Some(8));
    assert_eq!(depth(0b1000_0000, 1 << 2), None);
    assert_eq!(depth(0b1111_1111, !(1 << 2)), None);
}

/// A deterministic source of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % end
    }
}

/// Tasks on CPUs that come and go, migrate, call and return, while events
/// start and stop: at every moment each record is the inner end of the stack
/// of the task that runs.
#[test]
fn r2_21_no_task_ever_sees_another_ones_branches() {
    for (seed, kind) in (1..).zip(KINDS) {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed);
        let mut cpus: Vec<Cpu> = (0..3).map(|_| Cpu::new(kind)).collect();
        let mut wide = [0; 3];
        let mut tasks: Vec<Option<Task>> =
            (0..8).map(|n| Some(if n < 6 { Task::with_state(n) } else { Task::new(n) })).collect();
        let mut running: Vec<Option<Task>> = (0..3).map(|_| None).collect();
        let (mut found, mut checked) = (0, 0);
        for _ in 0..30_000 {
            let at = random.below(3);
            let cpu = &mut cpus[at];
            match (random.below(40), &mut running[at]) {
                (0..5, current @ Some(_)) => {
                    let mut task = current.take().unwrap();
                    cpu.switch_out(&mut task);
                    let place = usize::try_from(task.number).unwrap();
                    tasks[place] = Some(task);
                }
                (5, None) => cpu.registers.0.deep_idle(),
                (_, current @ None) => {
                    if let Some(mut task) = tasks[random.below(8)].take() {
                        cpu.switch_in(&mut task);
                        *current = Some(task);
                    }
                }
                (6, Some(task)) if task.state.as_ref().is_some_and(|s| s.users() < 2) => {
                    cpu.start(task);
                }
                (7, Some(task)) => {
                    if let Some(state) = task.state.as_mut() {
                        state.remove_user();
                    }
                    cpu.update(task);
                }
                (8, Some(task)) if wide[at] == 0 => {
                    cpu.start_wide(task);
                    wide[at] += 1;
                }
                (9, Some(task)) if wide[at] == 1 && random.below(4) == 0 => {
                    cpu.lbr.stop_wide();
                    cpu.update(task);
                    wide[at] -= 1;
                }
                (10..26, Some(task)) => cpu.call(task),
                (26..40, Some(task)) => cpu.ret(task),
                _ => {}
            }
            if let Some(task) = &running[at] {
                let cpu = &mut cpus[at];
                if cpu.lbr.is_used(task.state.as_ref()) {
                    let seen = cpu.check(task);
                    checked += 1;
                    found += u32::from(seen > 0);
                }
            }
        }
        assert!(checked > 5_000, "{kind:?}: {checked} looks");
        assert!(found > checked / 4, "{kind:?}: only {found} of {checked} had anything");
    }
}

/// How long chains are on average when two tasks take turns on a CPU, each
/// `depth` calls deep, and what is done at a switch.
fn average_chain(depth: usize, switch: impl Fn(&mut Cpu, &mut Task, &mut Task)) -> usize {
    let mut cpu = Cpu::new(LbrKind::Skylake);
    let (mut a, mut b) = (Task::with_state(1), Task::with_state(2));
    switch(&mut cpu, &mut Task::new(0), &mut a);
    let (mut sum, mut samples) = (0, 0);
    for turn in 0..1000 {
        let (current, next) = if turn % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        while current.stack.len() < depth {
            cpu.call(current);
        }
        for _ in 0..5 {
            cpu.ret(current);
            cpu.call(current);
            sum += cpu.check(current);
            samples += 1;
        }
        switch(&mut cpu, current, next);
    }
    sum / samples
}

#[test]
fn r2_5_system_wide_chains_are_as_long_as_those_of_one_task() {
    for depth in [1, 2, 10, 31, 32, 33, 60] {
        let per_task = average_chain(depth, |cpu, from, to| {
            if from.number == 0 {
                cpu.switch_in(to);
                cpu.start(to);
                return;
            }
            cpu.switch_out(from);
            cpu.switch_in(to);
            if to.state.as_ref().unwrap().users() == 0 {
                cpu.start(to);
            }
        });
        let system_wide = average_chain(depth, |cpu, from, to| {
            if from.number == 0 {
                cpu.start_wide(from);
            } else {
                cpu.switch_out(from);
            }
            cpu.switch_in(to);
        });
        // What it was before tasks had data in system-wide mode: the record is
        // cleared at each switch.
        let cleared = average_chain(depth, |cpu, from, to| {
            if from.number == 0 {
                cpu.start_wide(from);
            }
            to.state = None;
            cpu.switch_in(to);
        });
        assert_eq!(per_task, depth.min(32));
        assert_eq!(system_wide, per_task);
        assert!(cleared < per_task || depth == 1, "{cleared} at depth {depth}");
    }
}
