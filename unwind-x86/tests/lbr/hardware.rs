//! What a branch record tells, by the hardware that it comes from.

use test_support::LbrKind;
use unwind_core::VirtAddr;
use unwind_x86::lbr::*;

use crate::machine::*;

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
