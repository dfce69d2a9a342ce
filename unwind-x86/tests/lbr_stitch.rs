//! Chains that are deeper than the record, put together from samples: whole
//! wherever the samples overlap, and never wrong.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::collections::HashSet;
use std::rc::Rc;

use test_support::{LbrHardware, LbrKind};
use unwind_x86::lbr::*;

const ARCHITECTURAL: LbrKind = LbrKind::Architectural { depth: 32, lost_in_deep_idle: true };

struct Registers(LbrHardware);

impl Msrs for Registers {
    fn read(&mut self, msr: u32) -> u64 {
        self.0.read(msr)
    }

    fn write(&mut self, msr: u32, value: u64) {
        self.0.write(msr, value);
    }
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

    fn between(&mut self, start: usize, end: usize) -> usize {
        start + self.below(end - start)
    }
}

/// Samples of a random program.
const SAMPLES: usize = if cfg!(debug_assertions) { 4_000 } else { 40_000 };

/// What a program's calls look like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Each level has call sites of its own, a few of them.
    Tree,
    /// One function that calls itself from one place.
    Recursion,
    /// One of two functions at the bottom, then the same calls whichever it
    /// was.
    TwoRoots,
}

/// One call of a running program: where, and which it is of all.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Call {
    from: u64,
    to: u64,
    number: u64,
}

/// A program on a CPU that records it.
struct Program {
    shape: Shape,
    /// How many cycles a call takes, from and to.
    cycles: (usize, usize),
    random: Random,
    stack: Vec<Call>,
    calls: u64,
    cpu: LbrCpu,
    state: LbrState,
    registers: Registers,
    stamped: bool,
}

impl Program {
    fn new(kind: LbrKind, shape: Shape, seed: u64) -> Self {
        let mut hardware = LbrHardware::new(kind);
        let lbr = match kind {
            LbrKind::Haswell => Lbr::haswell(false),
            LbrKind::HaswellWithTransactions => Lbr::haswell(true),
            LbrKind::Skylake => Lbr::skylake(),
            LbrKind::Architectural { .. } => {
                let (eax, ebx) = hardware.cpuid_1c();
                Lbr::architectural(eax, ebx).unwrap()
            }
        };
        hardware.record(true);
        Self {
            shape,
            cycles: (1, 30_000),
            random: Random(0x9e37_79b9_7f4a_7c15 ^ seed),
            stack: Vec::new(),
            calls: 0,
            cpu: LbrCpu::new(lbr),
            state: LbrState::new(),
            registers: Registers(hardware),
            stamped: false,
        }
    }

    fn call(&mut self) {
        let level = u64::try_from(self.stack.len()).unwrap();
        let (from, to) = match self.shape {
            Shape::Recursion => (0x40_1010, 0x40_1000),
            Shape::TwoRoots if level == 0 => {
                let root = u64::try_from(self.random.below(2)).unwrap();
                (0x40_0010 + root * 8, 0x41_0000 + root * 0x100)
            }
            Shape::TwoRoots => (0x42_0000 + level * 0x100, 0x42_0100 + level * 0x100),
            Shape::Tree => {
                let site = u64::try_from(self.random.below(3)).unwrap();
                (0x50_0000 + level * 0x100 + site * 8, 0x50_0100 + level * 0x100)
            }
        };
        let cycles = self.random.between(self.cycles.0, self.cycles.1);
        self.registers.0.tick(u64::try_from(cycles).unwrap());
        self.registers.0.call(from, to);
        self.calls += 1;
        self.stack.push(Call { from, to, number: self.calls });
    }

    fn ret(&mut self) {
        if self.stack.pop().is_some() {
            self.registers.0.ret();
        }
    }

    fn step_towards(&mut self, depth: usize) {
        if self.stack.len() < depth { self.call() } else { self.ret() }
    }

    fn sample(&mut self) -> LbrSample {
        if self.stamped {
            self.cpu.read_stamped(&mut self.registers, &mut self.state)
        } else {
            self.cpu.read(&mut self.registers)
        }
    }

    /// The stack, innermost first.
    fn truth(&self) -> Vec<(u64, u64)> {
        self.stack.iter().rev().map(|call| (call.from, call.to)).collect()
    }
}

/// What can be known: the same calls, told apart by their numbers.
#[derive(Default)]
struct Oracle {
    recorded: Vec<u64>,
    older: Vec<u64>,
}

impl Oracle {
    /// How many calls are known at a sample that has `len` in the record.
    fn push(&mut self, program: &Program, len: usize) -> usize {
        let recorded: Vec<u64> =
            program.stack.iter().rev().take(len).map(|call| call.number).collect();
        let at = recorded
            .last()
            .and_then(|oldest| self.recorded.iter().position(|number| number == oldest));
        self.older = match at {
            Some(at) => [&self.recorded[at + 1..], &self.older].concat(),
            None => Vec::new(),
        };
        self.recorded = recorded;
        self.recorded.len() + self.older.len()
    }
}

fn known(stitcher: &Stitcher<(), 200>) -> Vec<(u64, u64)> {
    stitcher.calls().map(|(branch, ())| (branch.from, branch.to)).collect()
}

/// Takes a sample; the chain has to be right, and as long as it can be.
fn check(program: &mut Program, stitcher: &mut Stitcher<(), 200>, oracle: &mut Oracle) -> usize {
    let sample = program.sample();
    stitcher.push(&sample, &());
    let (chain, truth) = (known(stitcher), program.truth());
    assert_eq!(chain, truth[..chain.len()], "{:?}", program.shape);
    assert_eq!(chain.len(), oracle.push(program, sample.branches().len()));
    chain.len()
}

#[test]
fn r2_22_chains_of_every_depth_are_whole_while_samples_overlap() {
    for (kind, stamped) in [
        (LbrKind::Skylake, false),
        (LbrKind::Skylake, true),
        (ARCHITECTURAL, true),
        (LbrKind::Haswell, false),
    ] {
        for depth in 1..=100 {
            let mut program = Program::new(kind, Shape::Tree, 1);
            program.stamped = stamped;
            let reach = usize::try_from(program.cpu.lbr().depth()).unwrap() / 2;
            let mut stitcher = Stitcher::<(), 200>::new();
            if kind == LbrKind::Haswell {
                stitcher = stitcher.trusting_addresses();
            }
            let mut oracle = Oracle::default();
            for _ in 0..60 {
                // Between two samples the stack changes by less than half the
                // record, around the depth in question.
                let target = depth + program.random.below(reach / 2);
                for _ in 0..program.random.between(1, reach) {
                    program.step_towards(target);
                }
                let len = check(&mut program, &mut stitcher, &mut oracle);
                assert_eq!(len, program.stack.len(), "{kind:?} at depth {depth}");
            }
            assert!(program.stack.len() + reach >= depth);
        }
    }
}

/// Random programs with random gaps between samples. Returns how many chains
/// were longer than the record, and how many there were.
fn run(program: &mut Program, stitcher: Stitcher<(), 200>, samples: usize) -> (usize, usize) {
    let (mut stitcher, mut oracle) = (stitcher, Oracle::default());
    let (mut longer, mut target) = (0, 50);
    for _ in 0..samples {
        if program.random.below(8) == 0 {
            target = program.random.below(101);
        }
        let gap = program.random.between(1, 30);
        for _ in 0..gap {
            let noise = program.random.below(13);
            program.step_towards((target + noise).saturating_sub(6));
        }
        let depth = usize::try_from(program.cpu.lbr().depth()).unwrap();
        longer += usize::from(check(program, &mut stitcher, &mut oracle) > depth);
    }
    (longer, samples)
}

#[test]
fn r2_22_stamped_chains_are_never_wrong_and_as_long_as_they_can_be() {
    for (kind, shape) in [LbrKind::Skylake, ARCHITECTURAL].into_iter().flat_map(|kind| {
        [Shape::Tree, Shape::Recursion, Shape::TwoRoots].map(|shape| (kind, shape))
    }) {
        let mut program = Program::new(kind, shape, 2);
        program.stamped = true;
        // The worst case for anything but stamps.
        program.cycles = (100, 101);
        let (longer, samples) = run(&mut program, Stitcher::new(), SAMPLES);
        assert!(longer > samples / 4, "{kind:?} {shape:?}: {longer} of {samples}");
    }
}

#[test]
fn r2_22_chains_by_cycles_are_never_wrong_and_as_long_as_they_can_be() {
    for shape in [Shape::Tree, Shape::Recursion, Shape::TwoRoots] {
        let mut program = Program::new(LbrKind::Skylake, shape, 3);
        let (longer, samples) = run(&mut program, Stitcher::new(), SAMPLES);
        assert!(longer > samples / 4, "{shape:?}: {longer} of {samples}");
    }
}

/// How many chains of a program are wrong.
fn wrong(shape: Shape, cycles: usize, stamped: bool, stitcher: Stitcher<(), 200>) -> usize {
    let mut program = Program::new(LbrKind::Skylake, shape, 4);
    (program.cycles, program.stamped) = ((cycles, cycles + 1), stamped);
    let mut stitcher = stitcher;
    let mut wrong = 0;
    for round in 0..500 {
        // Deep, in steps that overlap, every other time; then down, often to
        // the bottom, and deep again at once.
        let (low, high) = (program.random.below(8).saturating_sub(4), 40 + 4 * (round % 15));
        while program.stack.len() > low {
            program.ret();
        }
        while program.stack.len() < high {
            program.call();
            if program.stack.len() == high || (round % 2 == 0 && program.stack.len() % 16 == 0) {
                stitcher.push(&program.sample(), &());
                let (chain, truth) = (known(&stitcher), program.truth());
                wrong += usize::from(!truth.starts_with(&chain));
            }
        }
    }
    wrong
}

#[test]
fn r2_22_equal_entries_deceive_and_evidence_keeps_from_it() {
    // Entries that are equal in everything are taken for the same call by
    // whoever trusts addresses.
    let trusting = || Stitcher::new().trusting_addresses();
    assert!(wrong(Shape::Recursion, 100, false, trusting()) > 0);
    assert!(wrong(Shape::TwoRoots, 100, false, trusting()) > 0);
    // An entry that the record has more than once is no evidence.
    assert_eq!(wrong(Shape::Recursion, 100, false, Stitcher::new()), 0);
    // Neither is one without cycles.
    assert_eq!(wrong(Shape::TwoRoots, 0, false, Stitcher::new()), 0);
    // Cycles that always coincide are the limit of cycles, and not of stamps.
    assert!(wrong(Shape::TwoRoots, 100, false, Stitcher::new()) > 0);
    for shape in [Shape::Recursion, Shape::TwoRoots, Shape::Tree] {
        for stitcher in [Stitcher::new(), trusting()] {
            assert_eq!(wrong(shape, 100, true, stitcher), 0);
        }
    }
}

#[test]
fn stamps_of_one_sample_are_unique_and_stay_with_their_calls() {
    for kind in [LbrKind::Skylake, ARCHITECTURAL] {
        let mut program = Program::new(kind, Shape::Recursion, 5);
        program.stamped = true;
        let mut stamps = HashSet::new();
        for _ in 0..100 {
            for _ in 0..20 {
                program.call();
            }
            let first = program.sample();
            let of = |sample: &LbrSample| -> Vec<u16> {
                sample.branches().iter().map(|b| b.info.stamp().unwrap()).collect()
            };
            assert_eq!(of(&program.sample()), of(&first), "nothing happened in between");
            let unique: HashSet<u16> = of(&first).into_iter().collect();
            assert_eq!(unique.len(), first.branches().len());
            stamps.extend(unique);
            program.ret();
            let second = program.sample();
            assert_eq!(of(&second)[..], of(&first)[1..]);
        }
        assert!(stamps.len() > 1900, "each call gets one of its own");
    }
    // Where there is no room for them, the record is only read.
    let mut program = Program::new(LbrKind::Haswell, Shape::Recursion, 5);
    program.call();
    let before = program.sample();
    program.stamped = true;
    assert_eq!(program.sample(), before);
}

fn branch(n: u64) -> Branch {
    Branch { from: 0x40_0000 + n * 16, to: 0x50_0000 + n * 16, info: BranchInfo::from_bits(n + 1) }
}

/// A sample on a record of 8 entries: the calls of these levels, outermost
/// first, each in the register of its level.
fn levels(levels: std::ops::Range<u64>) -> LbrSample {
    let top = levels.clone().next_back().map_or(0, |level| u32::try_from(level % 8).unwrap());
    let branches: Vec<Branch> = levels.rev().map(branch).collect();
    LbrSample::from_branches(&branches, 8, Some(top)).unwrap()
}

/// How many older calls are known after both samples.
fn stitched(first: &LbrSample, second: &LbrSample) -> usize {
    let mut stitcher = Stitcher::<(), 32>::new();
    stitcher.push(first, &());
    stitcher.push(second, &())
}

#[test]
fn r2_22_one_equal_entry_in_the_same_register_is_enough() {
    for overlap in 0..8 {
        let second = levels(8 - overlap..16 - overlap);
        let expected = if overlap == 0 { 0 } else { 8 - usize::try_from(overlap).unwrap() };
        assert_eq!(stitched(&levels(0..8), &second), expected, "overlap of {overlap}");
    }
    // The newest call of the last sample is the oldest of this one.
    assert_eq!(stitched(&levels(0..8), &levels(7..15)), 7);
    // The stack has become shorter.
    assert_eq!(stitched(&levels(4..12), &levels(4..6)), 0);
    let mut stitcher = Stitcher::<(), 32>::new();
    for sample in [levels(0..8), levels(4..12), levels(4..6), levels(4..9)] {
        stitcher.push(&sample, &());
    }
    assert_eq!(known_levels(&stitcher), (0..9).rev().collect::<Vec<_>>());
}

fn known_levels<const N: usize>(stitcher: &Stitcher<(), N>) -> Vec<u64> {
    stitcher.calls().map(|(branch, ())| (branch.from - 0x40_0000) / 16).collect()
}

#[test]
fn r2_22_without_overlap_there_is_no_stitch() {
    // The last sample's stack was shorter.
    assert_eq!(stitched(&levels(0..3), &levels(4..12)), 0);
    // The oldest entry differs in one field.
    let changes: [fn(&mut Branch); 3] = [
        |branch| branch.from += 1,
        |branch| branch.to += 1,
        |branch| branch.info = BranchInfo::from_bits(branch.info.bits() | 1 << 63),
    ];
    for change in changes {
        let mut branches: Vec<Branch> = (4..12).rev().map(branch).collect();
        change(branches.last_mut().unwrap());
        let second = LbrSample::from_branches(&branches, 8, Some(3)).unwrap();
        assert_eq!(stitched(&levels(0..8), &second), 0);
    }
    // Equal entries in other registers.
    let branches: Vec<Branch> = (4..12).rev().map(branch).collect();
    for (top, expected) in [(3, 4), (4, 0), (2, 0)] {
        let second = LbrSample::from_branches(&branches, 8, Some(top)).unwrap();
        assert_eq!(stitched(&levels(0..8), &second), expected, "top {top}");
    }
    // It is not known in which register, or the record has another depth, so that
    // the registers have nothing to do with each other.
    for (depth, top) in [(8, None), (9, Some(2)), (16, Some(11))] {
        let second = LbrSample::from_branches(&branches, depth, top).unwrap();
        assert_eq!(stitched(&levels(0..8), &second), 0);
    }
    // No record at all says which register was the newest.
    let none = LbrSample::from_branches(&[], 0, Some(0));
    assert!(none.is_none_or(|none| stitched(&levels(0..8), &none) == 0));
    // An empty record.
    assert_eq!(stitched(&levels(0..8), &levels(0..0)), 0);
    assert_eq!(stitched(&levels(0..0), &levels(0..8)), 0);
}

#[test]
fn r2_22_a_gap_forgets_what_was_known() {
    let mut stitcher = Stitcher::<(), 32>::new();
    stitcher.push(&levels(0..8), &());
    assert_eq!(stitcher.push(&levels(6..14), &()), 6);
    assert_eq!(stitcher.push(&levels(20..28), &()), 0);
    assert_eq!(stitcher.push(&levels(22..30), &()), 2);
    stitcher.clear();
    assert_eq!(stitcher.calls().count(), 0);
    assert_eq!(stitcher.push(&levels(22..30), &()), 0, "another program");
}

#[test]
fn what_does_not_fit_is_cut_at_the_root() {
    let mut stitcher = Stitcher::<(), 10>::new();
    for base in (0..40).step_by(4) {
        stitcher.push(&levels(base..base + 8), &());
    }
    assert!(stitcher.is_cut());
    assert_eq!(known_levels(&stitcher), (26..44).rev().collect::<Vec<_>>());
    stitcher.push(&levels(100..108), &());
    assert!(!stitcher.is_cut());
}

#[test]
fn r2_23_what_is_kept_with_calls_is_freed_with_them() {
    let (old, new) = (Rc::new("maps before"), Rc::new("maps after"));
    let mut stitcher = Stitcher::<Rc<&str>, 32>::new();
    stitcher.push(&levels(0..8), &old);
    assert_eq!(Rc::strong_count(&old), 1 + 8);
    stitcher.push(&levels(4..12), &new);
    // Four calls are older than the record; each is resolved by what was there
    // when it was sampled.
    assert_eq!((Rc::strong_count(&old), Rc::strong_count(&new)), (1 + 4, 1 + 8));
    assert!(stitcher.older().iter().all(|(_, maps)| Rc::ptr_eq(maps, &old)));
    stitcher.push(&levels(50..58), &new);
    assert_eq!((Rc::strong_count(&old), Rc::strong_count(&new)), (1, 1 + 8));
    stitcher.clear();
    assert_eq!(Rc::strong_count(&new), 1);
    stitcher.push(&levels(0..8), &old);
    stitcher.push(&levels(4..12), &new);
    stitcher.clear();
    assert_eq!((Rc::strong_count(&old), Rc::strong_count(&new)), (1, 1), "the older ones too");
    // The thread dies with samples in it.
    stitcher.push(&levels(0..8), &old);
    stitcher.push(&levels(4..12), &new);
    drop(stitcher);
    assert_eq!((Rc::strong_count(&old), Rc::strong_count(&new)), (1, 1));
}

#[test]
fn a_sample_from_elsewhere_is_checked() {
    let branches: Vec<Branch> = (0..33).map(branch).collect();
    assert!(LbrSample::from_branches(&branches[..32], 32, Some(31)).is_some());
    assert!(LbrSample::from_branches(&branches, 33, Some(0)).is_none());
    assert!(LbrSample::from_branches(&branches[..9], 8, Some(0)).is_none());
    let sample = LbrSample::from_branches(&branches[..8], 8, Some(8)).unwrap();
    assert_eq!(sample.top(), None, "there is no such register");
    assert!(sample.is_full());
    // Whatever the numbers are, pushing them is harmless.
    for depth in [0, 1, 7, 32] {
        for top in [None, Some(0), Some(depth), Some(u32::MAX)] {
            let len = usize::try_from(depth).unwrap();
            let sample = LbrSample::from_branches(&branches[..len], depth, top).unwrap();
            stitched(&levels(0..8), &sample);
            stitched(&sample, &levels(0..8));
            stitched(&sample, &sample);
        }
    }
}
