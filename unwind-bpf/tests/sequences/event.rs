//! What happens on a machine.

use std::fmt::{self, Write as _};

/// Where the simulated code has a table.
pub const CODE: u64 = 0x40_0000;
/// What a program asks to be replaced by another with.
pub const EXECVE: u64 = 59;

pub const KERNEL_THREAD: u32 = 0x20_0000;
pub const IO_WORKER: u32 = 0x10;

/// The user code of a kernel entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    pub pc: u64,
    /// Frames of its stack, at least 2.
    pub depth: u32,
}

impl Code {
    /// Whether a table covers it.
    pub fn has_table(self) -> bool {
        (CODE..CODE + 0x800).contains(&self.pc)
    }
}

/// Events that come within another one, where the program does this one of what it shares with interrupts.
#[derive(Clone, Debug)]
pub struct Within {
    pub point: u32,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug)]
pub enum Event {
    /// A task begins, as a thread of another slot's unless that is its own.
    Task {
        slot: usize,
        number: u32,
        started: u64,
        leader: usize,
        flags: u32,
    },
    /// This CPU continues with a task.
    Run(usize),
    Cpu(u32),
    /// A sample of user code, which enters the kernel.
    User(Code),
    /// A system call.
    Call {
        code: Code,
        number: u64,
    },
    /// A sample while the kernel runs.
    Kernel,
    /// A sample as the task begins to wait in the kernel.
    Wait,
    /// The task has other registers: by sigreturn, or as it begins another program.
    Registers(u64),
    /// The task has another program's memory, perhaps at the same place.
    Memory {
        is_same: bool,
    },
    /// A thread that executes becomes the leader, which has ended.
    Number(u32),
    /// Back to user code. These numbers of samples come before the task work is released, and after it.
    Return {
        within: Option<Within>,
        busy: u32,
        late: u32,
    },
    Exit {
        within: Option<Within>,
    },
    /// The kernel refuses these requests to schedule.
    Refuse(u32),
    /// The ring has no room.
    Full {
        samples: bool,
        stacks: bool,
    },
    /// Memory is not resident.
    Absent(bool),
    /// The kernel cannot defer.
    Old,
}

impl Event {
    pub const RETURN: Self = Self::Return { within: None, busy: 0, late: 0 };
    pub const EXIT: Self = Self::Exit { within: None };
}

fn point(within: Option<&Within>, f: &mut fmt::Formatter<'_>) -> Result<u32, fmt::Error> {
    let Some(within) = within else { return Ok(0) };
    for event in &within.events {
        writeln!(f, "\t{event}")?;
    }
    Ok(within.point)
}

/// A line, after those of the events within.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task { slot, number, started, leader, flags } => {
                write!(f, "task {slot} {number} {started} {leader} {flags}")
            }
            Self::Run(slot) => write!(f, "run {slot}"),
            Self::Cpu(cpu) => write!(f, "cpu {cpu}"),
            Self::User(Code { pc, depth }) => write!(f, "user {pc} {depth}"),
            Self::Call { code: Code { pc, depth }, number } => {
                write!(f, "call {pc} {number} {depth}")
            }
            Self::Kernel => f.write_str("kernel"),
            Self::Wait => f.write_str("wait"),
            Self::Registers(pc) => write!(f, "registers {pc}"),
            Self::Memory { is_same } => write!(f, "memory {}", u8::from(*is_same)),
            Self::Number(number) => write!(f, "number {number}"),
            Self::Return { within, busy, late } => {
                let at = point(within.as_ref(), f)?;
                write!(f, "return {at} {busy} {late}")
            }
            Self::Exit { within } => {
                let at = point(within.as_ref(), f)?;
                write!(f, "exit {at}")
            }
            Self::Refuse(requests) => write!(f, "refuse {requests}"),
            Self::Full { samples, stacks } => {
                write!(f, "full {} {}", u8::from(*samples), u8::from(*stacks))
            }
            Self::Absent(is_absent) => write!(f, "absent {}", u8::from(*is_absent)),
            Self::Old => f.write_str("old"),
        }
    }
}

/// A sequence as the stand-in for the kernel reads it.
pub fn lines(events: &[Event]) -> String {
    let mut lines = "start\n".to_owned();
    for event in events {
        let _ = writeln!(lines, "{event}");
    }
    lines + "counts\n"
}
