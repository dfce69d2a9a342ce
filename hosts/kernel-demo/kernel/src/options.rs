//! What the machine was started with: `-append "samples=400"`.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use unwind_x86::paging::{PhysAddr, PhysicalMemory};

use crate::memory::DirectMap;

/// A protection that a run can do without, to see that its checks notice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protection {
    /// Pages are freed when no CPU uses them any more.
    Shootdown = 1,
    /// A task is taken by another CPU when its stack is left.
    LeftStack,
    /// An NMI leads a task that is on its way to user mode back to deliver.
    ReturnInterrupt,
    /// Each CPU writes into its own ring.
    OwnRing,
    /// What was asked for is delivered before the task executes another program.
    Suspension,
    /// An event is removed before it is freed.
    EventRemoval,
    /// The branch record changes hands with the task.
    BranchSwitch,
    /// The memory of a module is another one's when no NMI uses it any more.
    ModuleGrace,
    /// Who switches a trace on looks again whether it was stopped meanwhile.
    TraceGate,
}

impl Protection {
    const ALL: [(&'static str, Self); 9] = [
        ("shootdown", Self::Shootdown),
        ("left-stack", Self::LeftStack),
        ("return-interrupt", Self::ReturnInterrupt),
        ("own-ring", Self::OwnRing),
        ("suspension", Self::Suspension),
        ("event-removal", Self::EventRemoval),
        ("branch-switch", Self::BranchSwitch),
        ("module-grace", Self::ModuleGrace),
        ("trace-gate", Self::TraceGate),
    ];

    /// Whether the run has it. Any context.
    pub(crate) fn is_on(self) -> bool {
        WITHOUT.load(Ordering::Relaxed) != self as u8
    }
}

static WITHOUT: AtomicU8 = AtomicU8::new(0);

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How many samples are taken.
    pub(crate) samples: u64,
    /// How many a second.
    pub(crate) hertz: u64,
    /// For how many ticks, in the middle of the run, no thread reads the rings.
    pub(crate) stall: u64,
    /// How many CPUs the machine has. With more than one the scenario is that of
    /// `several.rs`.
    pub(crate) cpus: u64,
    /// Instructions of user code between two samples of the counter, on several CPUs.
    pub(crate) period: u64,
    /// MiB of memory from 64 MiB on that take the records; 0: they go out by a port.
    pub(crate) area: u64,
    /// Whether a delivery goes to all clients on several CPUs, or to those that asked.
    pub(crate) everyone: u64,
    /// Whether the kernel panics, to be looked at.
    pub(crate) panic: u64,
}

const DEFAULT: Options = Options {
    samples: 400,
    hertz: 1000,
    stall: 0,
    cpus: 1,
    period: 100,
    area: 0,
    everyone: 0,
    panic: 0,
};

static SAMPLES: AtomicU64 = AtomicU64::new(DEFAULT.samples);
static HERTZ: AtomicU64 = AtomicU64::new(DEFAULT.hertz);
static STALL: AtomicU64 = AtomicU64::new(DEFAULT.stall);
static CPUS: AtomicU64 = AtomicU64::new(DEFAULT.cpus);
static PERIOD: AtomicU64 = AtomicU64::new(DEFAULT.period);
static AREA: AtomicU64 = AtomicU64::new(DEFAULT.area);
static EVERYONE: AtomicU64 = AtomicU64::new(DEFAULT.everyone);
static PANIC: AtomicU64 = AtomicU64::new(DEFAULT.panic);

/// The options.
pub(crate) fn get() -> Options {
    Options {
        samples: SAMPLES.load(Ordering::Relaxed),
        hertz: HERTZ.load(Ordering::Relaxed),
        stall: STALL.load(Ordering::Relaxed),
        cpus: CPUS.load(Ordering::Relaxed),
        period: PERIOD.load(Ordering::Relaxed),
        area: AREA.load(Ordering::Relaxed),
        everyone: EVERYONE.load(Ordering::Relaxed),
        panic: PANIC.load(Ordering::Relaxed),
    }
}

/// Reads the command line that the machine's start information leads to.
/// Unknown words are ignored.
pub(crate) fn read(start_info: u64) {
    const COMMAND_LINE_AT: u64 = 24;
    let mut addr = [0; 8];
    let mut line = [0; 256];
    if DirectMap.read(PhysAddr::new(start_info + COMMAND_LINE_AT), &mut addr).is_err() {
        return;
    }
    if DirectMap.read(PhysAddr::new(u64::from_le_bytes(addr)), &mut line).is_err() {
        return;
    }
    let line = line.split(|&byte| byte == 0).next().unwrap_or_default();
    for word in line.split(|&byte| byte == b' ') {
        let word = core::str::from_utf8(word).unwrap_or_default();
        let Some((name, value)) = word.split_once('=') else { continue };
        if name == "without" {
            let known = Protection::ALL.iter().find(|(name, _)| *name == value);
            let Some((_, protection)) = known else { panic!("no protection is called {value}") };
            WITHOUT.store(*protection as u8, Ordering::Relaxed);
        }
        let Ok(value) = value.parse() else { continue };
        match name {
            "samples" => SAMPLES.store(value, Ordering::Relaxed),
            "hertz" => HERTZ.store(value, Ordering::Relaxed),
            "stall" => STALL.store(value, Ordering::Relaxed),
            "cpus" => CPUS.store(value, Ordering::Relaxed),
            "period" => PERIOD.store(value, Ordering::Relaxed),
            "area" => AREA.store(value, Ordering::Relaxed),
            "everyone" => EVERYONE.store(value, Ordering::Relaxed),
            "panic" => PANIC.store(value, Ordering::Relaxed),
            _ => {}
        }
    }
}
