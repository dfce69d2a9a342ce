//! NMIs at each instruction of a piece of the kernel, by the trap after each
//! instruction.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cpu::CPUS;
use crate::each_cpu::EachCpu;
use crate::{apic, cpu};

/// How many instructions were stepped over with an NMI each.
pub(crate) static STEPS: AtomicU64 = AtomicU64::new(0);

static NMI_AT_EACH_STEP: EachCpu<AtomicBool> = EachCpu([const { AtomicBool::new(false) }; CPUS]);

/// Calls `f` with an NMI between any two of its instructions.
///
/// The NMI comes out of the trap's handler, so it interrupts that and not `f`;
/// but what it finds of the state that `f` works on is what an NMI at that
/// instruction would find.
#[inline(never)]
pub(crate) fn with_nmi_at_each_instruction<R>(f: impl FnOnce() -> R) -> R {
    let interrupts = cpu::disable_interrupts();
    NMI_AT_EACH_STEP.own().store(true, Ordering::Relaxed);
    set_step(true);
    let result = f();
    set_step(false);
    NMI_AT_EACH_STEP.own().store(false, Ordering::Relaxed);
    cpu::restore_interrupts(interrupts);
    result
}

/// Switches the trap after each instruction of this code on or off.
fn set_step(on: bool) {
    const TRAP: u32 = 1 << 8;
    let (keep, set) = (if on { u64::MAX } else { !u64::from(TRAP) }, if on { TRAP } else { 0 });
    // SAFETY: changes one flag; the trap is handled below. Not `nomem`, so that
    // what is stepped stays inside.
    unsafe {
        asm!(
            "pushfq",
            "and qword ptr [rsp], {keep}",
            "or qword ptr [rsp], {set}",
            "popfq",
            keep = in(reg) keep,
            set = in(reg) u64::from(set),
        );
    }
}

/// The trap after each instruction of the kernel, where it is on.
#[inline(never)]
pub(crate) fn trap() {
    if NMI_AT_EACH_STEP.own().load(Ordering::Relaxed) {
        STEPS.fetch_add(1, Ordering::Relaxed);
        apic::send_nmi();
    }
}
