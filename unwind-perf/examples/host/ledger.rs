//! What is counted, and what has to be equal.

use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::deferred::Refusal;
use unwind_perf::per_cpu::RequestError;

/// Who asks for stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Profiler {
    /// By an event on each CPU, of whatever task runs there.
    OfCpus,
    /// By an event of a task, on whatever CPU that runs.
    OfTasks,
}

impl Profiler {
    pub(crate) const ALL: [Self; 2] = [Self::OfCpus, Self::OfTasks];
}

/// What became of a sample, as far as its stack is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The stack came, and is the one that the task had.
    Right,
    /// A stack came, and it is another one or a part.
    Wrong,
    /// The task returned on a CPU where the profiler had no event at that moment.
    NoEvent,
    /// Promised, and it never came.
    Missing,
    /// Refused: the event was being removed.
    EventRemoved,
    /// Refused: the task was exiting.
    TaskExits,
    /// Refused: it interrupted another request of its event.
    Queueing,
    /// Refused for another reason.
    Refused,
}

impl Outcome {
    const ALL: [Self; 8] = [
        Self::Right,
        Self::Wrong,
        Self::NoEvent,
        Self::Missing,
        Self::EventRemoved,
        Self::TaskExits,
        Self::Queueing,
        Self::Refused,
    ];

    const PROMISED: [Self; 4] = [Self::Right, Self::Wrong, Self::NoEvent, Self::Missing];

    pub(crate) fn of_error(error: RequestError) -> Self {
        match error {
            RequestError::Removed => Self::EventRemoved,
            RequestError::Queueing => Self::Queueing,
            RequestError::Refused(Refusal::Exiting) => Self::TaskExits,
            _ => Self::Refused,
        }
    }
}

static ASKED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static PROMISED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static OUTCOMES: [[AtomicU64; 8]; 2] = [const { [const { AtomicU64::new(0) }; 8] }; 2];

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A sample asks. Any context.
pub(crate) fn asked(profiler: Profiler) {
    count(&ASKED[profiler as usize]);
}

/// It was promised a stack. Any context.
pub(crate) fn promised(profiler: Profiler) {
    count(&PROMISED[profiler as usize]);
}

/// What became of it is known. Any context.
pub(crate) fn ended(profiler: Profiler, outcome: Outcome) {
    count(&OUTCOMES[profiler as usize][outcome as usize]);
}

/// How many samples ended so.
pub(crate) fn of(profiler: Profiler, outcomes: &[Outcome]) -> u64 {
    outcomes.iter().map(|&outcome| get(&OUTCOMES[profiler as usize][outcome as usize])).sum()
}

/// Prints what became of the samples; whether it adds up.
pub(crate) fn print_and_check() -> bool {
    println!("{:26} {:>10} {:>10}", "", "of cpus", "of tasks");
    let line = |name: &str, of: &dyn Fn(Profiler) -> u64| {
        let [cpus, tasks] = Profiler::ALL.map(of);
        println!("{name:26} {cpus:>10} {tasks:>10}");
    };
    line("samples", &|profiler| get(&ASKED[profiler as usize]));
    line("promised a stack", &|profiler| get(&PROMISED[profiler as usize]));
    for outcome in Outcome::ALL {
        line(&format!("  {outcome:?}"), &|profiler| of(profiler, &[outcome]));
    }
    Profiler::ALL.iter().all(|&profiler| {
        let bad = of(profiler, &[Outcome::Wrong, Outcome::Missing, Outcome::Refused]);
        get(&ASKED[profiler as usize]) == of(profiler, &Outcome::ALL)
            && get(&PROMISED[profiler as usize]) == of(profiler, &Outcome::PROMISED)
            && of(profiler, &[Outcome::Right]) != 0
            && bad == 0
    })
}
