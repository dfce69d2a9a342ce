//! How much of a call stack a sample has.

use test_support::LbrKind;

use crate::machine::*;

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
