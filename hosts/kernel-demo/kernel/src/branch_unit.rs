//! The CPU's branch unit, simulated: QEMU has none.
//!
//! It has two parts: a record of the innermost calls (LBR in call-stack mode),
//! and a trace of all of them (as Intel PT makes one). Both get their branches
//! from single-stepping the user code that they watch. The rest of the kernel
//! sees them as it would see hardware: the record by model-specific registers,
//! the trace by a switch and a buffer.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use unwind_x86::lbr::{Lbr, Msrs};

use crate::cpu::CPUS;
use crate::each_cpu::EachCpu;
use crate::exclusive::Exclusive;
use crate::frame::Frame;
use crate::memory::read_as_used;
use crate::task::state::Task;
use crate::{counter_unit, shadow_unit};

/// What the CPU would say it has: 32 entries, with information.
pub(crate) const LBR: Lbr = Lbr::skylake();

const ENTRIES: usize = 32;

/// The registers, and what the simulation needs.
pub(crate) struct BranchUnit {
    top: usize,
    /// Source, target, information.
    entries: [[u64; 3]; ENTRIES],
    /// Where the instruction is that comes next, while it is watched.
    next_pc: Option<u64>,
}

/// The unit of each CPU. NMIs read it too.
pub(crate) static UNIT: EachCpu<Exclusive<BranchUnit>> = EachCpu(
    [const { Exclusive::new(BranchUnit { top: 0, entries: [[0; 3]; ENTRIES], next_pc: None }) };
        CPUS],
);

impl Msrs for BranchUnit {
    fn read(&mut self, msr: u32) -> u64 {
        match self.register(msr) {
            Some(register) => *register,
            None => self.top as u64,
        }
    }

    fn write(&mut self, msr: u32, value: u64) {
        match self.register(msr) {
            Some(register) => *register = value,
            None => self.top = value as usize % ENTRIES,
        }
    }
}

impl BranchUnit {
    /// The register with this number; `None` for that of the top.
    fn register(&mut self, msr: u32) -> Option<&mut u64> {
        const TOP: u32 = 0x1c9;
        let (kind, slot) = match msr {
            TOP => return None,
            0x680..0x6a0 => (0, msr - 0x680),
            0x6c0..0x6e0 => (1, msr - 0x6c0),
            0xdc0..0xde0 => (2, msr - 0xdc0),
            _ => panic!("no such register: {msr:#x}"),
        };
        Some(&mut self.entries[slot as usize][kind])
    }

    fn call(&mut self, from: u64, to: u64) {
        const ONE_CYCLE: u64 = 1;
        self.top = (self.top + 1) % ENTRIES;
        self.entries[self.top] = [from, to, ONE_CYCLE];
    }

    /// The CPU continues with other code than the code that was watched.
    pub(crate) fn switched(&mut self) {
        self.next_pc = None;
    }

    /// Sees the instruction that has led to where `frame` is, if it has not been seen.
    pub(crate) fn catch_up(&mut self, task: &Task, frame: &Frame) {
        let pc = frame.rip;
        let Some(last) = self.next_pc.filter(|&last| last != pc) else { return };
        self.next_pc = Some(pc);
        match Branch::at(task, last) {
            Branch::Call => {
                self.call(last, pc);
                shadow_unit::call(task, frame.rsp);
            }
            Branch::Return => {
                self.ret();
                shadow_unit::ret(task, pc);
            }
            Branch::Other => return,
        }
        trace(last);
    }

    fn ret(&mut self) {
        self.entries[self.top] = [0; 3];
        self.top = (self.top + ENTRIES - 1) % ENTRIES;
    }
}

/// The flag that makes the trap after each instruction.
const SINGLE_STEP: u64 = 1 << 8;

/// Before a task goes back to user mode: its code is watched, or not.
pub(crate) fn set_watching(frame: &mut Frame, on: bool) {
    let steps = on || counter_unit::is_on();
    frame.rflags = frame.rflags & !SINGLE_STEP | if steps { SINGLE_STEP } else { 0 };
    UNIT.own().with(|unit| unit.next_pc = on.then_some(frame.rip));
}

/// The way into the kernel from user code that may be watched. Any context.
///
/// Hardware is up to date when an instruction is done. An NMI may come between the
/// instruction and its trap, so it calls this, too; and one that comes between the way in
/// and this call does so for its sample.
pub(crate) fn entered(task: &Task, frame: &Frame) {
    UNIT.own().try_with(|unit| unit.catch_up(task, frame));
}

/// The trap after each instruction of user code that is watched or counted.
pub(crate) fn stepped(frame: &mut Frame) {
    if counter_unit::is_on() {
        counter_unit::count();
    } else if UNIT.own().try_with(|unit| unit.next_pc.is_some()) == Some(false) {
        frame.rflags &= !SINGLE_STEP;
    }
}

/// What an instruction is to the unit.
enum Branch {
    Call,
    Return,
    Other,
}

impl Branch {
    fn at(task: &Task, pc: u64) -> Self {
        let mut code = [0; 2];
        // It was executed just now, so it is there; unless it is the last byte
        // of a page, a `ret` at most.
        if read_as_used(task.root(), pc, &mut code).is_none() {
            code[1] = 0;
        }
        match code {
            [0xe8, _] => Self::Call,
            [0xff, modrm] if modrm >> 3 & 7 == 2 => Self::Call,
            [0xc2 | 0xc3, _] => Self::Return,
            _ => Self::Other,
        }
    }
}

static TRACING: EachCpu<AtomicBool> = EachCpu([const { AtomicBool::new(false) }; CPUS]);

/// How many branches the trace holds.
pub(crate) static TRACED: AtomicU64 = AtomicU64::new(0);
/// How many of them lie outside of the code that was to be traced.
pub(crate) static TRACED_OUTSIDE: AtomicU64 = AtomicU64::new(0);
/// That code: start and end.
pub(crate) static TO_BE_TRACED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The switch of this CPU's trace.
pub(crate) fn set_tracing(on: bool) {
    TRACING.own().store(on, Ordering::Relaxed);
}

/// Whether it is on.
pub(crate) fn is_tracing() -> bool {
    TRACING.own().load(Ordering::Relaxed)
}

fn trace(from: u64) {
    if is_tracing() {
        TRACED.fetch_add(1, Ordering::Relaxed);
        let [start, end] = TO_BE_TRACED.each_ref().map(|bound| bound.load(Ordering::Relaxed));
        if !(start..end).contains(&from) {
            TRACED_OUTSIDE.fetch_add(1, Ordering::Relaxed);
        }
    }
}
