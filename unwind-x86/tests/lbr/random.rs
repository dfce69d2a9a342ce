//! Tasks and CPUs at random.

use crate::machine::*;

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
