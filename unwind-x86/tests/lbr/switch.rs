//! What a context switch saves, restores and clears.

use test_support::LbrKind;
use unwind_x86::lbr::*;

use crate::machine::*;

#[test]
fn r2_19_a_record_that_is_used_is_saved_and_restored_and_others_are_not() {
    for kind in KINDS {
        let (mut cpu, mut other) = (Cpu::new(kind), Cpu::new(kind));
        let mut used = Task::with_state(1);
        used.state.as_mut().unwrap().add_user();
        let mut unused = Task::with_state(2);

        assert_eq!(cpu.switch_in(&mut used), RestoreOutcome::Cleared, "{kind:?}");
        (0..5).for_each(|_| cpu.call(&mut used));
        cpu.switch_out(&mut used);
        assert_eq!(other.switch_in(&mut used), RestoreOutcome::Restored);
        assert_eq!(other.check(&used), 5);
        other.switch_out(&mut used);

        // Without users nothing is saved, and there is no access at all.
        let before = cpu.registers.0.accesses;
        assert_eq!(cpu.switch_in(&mut unused), RestoreOutcome::Unused);
        cpu.call(&mut unused);
        cpu.switch_out(&mut unused);
        assert_eq!(cpu.registers.0.accesses, before);
        unused.state.as_mut().unwrap().add_user();
        assert_eq!(cpu.switch_in(&mut unused), RestoreOutcome::Cleared);
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
        assert_eq!(cpu.switch_in(&mut b), RestoreOutcome::Cleared);
        (0..3).for_each(|_| cpu.call(&mut b));
        cpu.switch_out(&mut b);
        assert_eq!(cpu.switch_in(&mut a), RestoreOutcome::Restored);
        assert_eq!(cpu.check(&a), 4);
        cpu.switch_out(&mut a);
        assert_eq!(cpu.switch_in(&mut b), RestoreOutcome::Restored);
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
        assert_eq!(cpu.switch_in(&mut task), RestoreOutcome::Kept);
        assert!(cpu.registers.0.accesses - before <= 3, "at most a look at the newest entry");
        assert_eq!(cpu.check(&task), 6);

        // Nor after a task whose record was not used.
        let mut unused = Task::with_state(2);
        cpu.switch_out(&mut task);
        assert_eq!(cpu.switch_in(&mut unused), RestoreOutcome::Unused);
        cpu.switch_out(&mut unused);
        assert_eq!(cpu.switch_in(&mut task), RestoreOutcome::Kept);
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
        let expected = if survives { RestoreOutcome::Kept } else { RestoreOutcome::Restored };
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
        assert_eq!(there.switch_in(&mut task), RestoreOutcome::Restored);
        (0..3).for_each(|_| there.ret(&mut task));
        (0..5).for_each(|_| there.call(&mut task));
        there.switch_out(&mut task);
        assert_eq!(here.switch_in(&mut task), RestoreOutcome::Restored);
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
        assert_eq!(cpu.switch_in(&mut b), RestoreOutcome::Cleared);
        assert_eq!(cpu.check(&b), 0);
        (0..2).for_each(|_| cpu.call(&mut b));
        assert_eq!(cpu.check(&b), 2);
        cpu.switch_out(&mut b);
        // And back: what the hardware holds is not what was left there.
        assert_eq!(cpu.switch_in(&mut a), RestoreOutcome::Restored);
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
        assert_eq!(cpu.switch_in(&mut a), RestoreOutcome::Restored, "{kind:?}");
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
        // No one records while it runs, returns and calls.
        cpu.lbr.stop_wide();
        assert_eq!(cpu.switch_in(&mut task), RestoreOutcome::Unused);
        (0..6).for_each(|_| cpu.ret(&mut task));
        (0..2).for_each(|_| cpu.call(&mut task));
        cpu.switch_out(&mut task);
        let mut other = Task::with_state(2);
        cpu.switch_in(&mut other);
        cpu.start_wide(&other);
        cpu.switch_out(&mut other);
        assert_eq!(cpu.switch_in(&mut task), RestoreOutcome::Cleared, "{kind:?}");
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
