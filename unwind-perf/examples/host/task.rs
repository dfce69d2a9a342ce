//! Tasks, and the table of all of them.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, OnceLock};

use unwind_core::PackedFrame;
use unwind_core::deferred::{Cookie, TaskState, UnwindCache};
use unwind_perf::per_cpu::{Receiver, SampledTask, SwitchHold, TaskKey};
use unwind_perf::task_data::{TaskAttachment, TaskData};
use unwind_x86::lbr::LbrSample;

use crate::ledger::{Outcome, Profiler};
use crate::program::{Program, SystemCall};

/// Tasks that there can be, from first to last.
const TASKS: usize = 256;
/// Samples that are kept of one kernel entry.
const SAMPLES: usize = 64;

/// A task: in a real kernel, the structure that `current` points to.
pub(crate) struct Task {
    pub(crate) key: TaskKey,
    /// For deferred unwinding.
    pub(crate) unwind: TaskState,
    /// For the branch record.
    pub(crate) data: TaskData,
    /// The event of the profiler that follows this task, if one does; its work that is to be done,
    /// and what keeps it from changing hands meanwhile.
    pub(crate) own: OnceLock<Receiver>,
    pub(crate) own_is_due: AtomicBool,
    pub(crate) hold: SwitchHold,
    /// What holds the task's branch record for that event.
    pub(crate) attachment: Mutex<Option<TaskAttachment>>,
    /// Work to be done on the way to user code: a flag like any other of its kind.
    pub(crate) work: AtomicBool,
    pub(crate) in_user: AtomicBool,
    pub(crate) is_alive: AtomicBool,
    /// The CPU on which it ran last.
    on: AtomicUsize,
    /// The group of AUX events is about this task.
    pub(crate) is_traced: bool,
    /// What the branch record had at the first sample of this entry.
    pub(crate) record: Mutex<Option<(Cookie, LbrSample)>>,
    samples: [Sample; SAMPLES],
    taken: AtomicUsize,
    /// What the CPU that runs the task has alone: no NMI touches it.
    pub(crate) rest: Mutex<Rest>,
}

/// What a profiler was promised.
struct Sample {
    profiler: AtomicU64,
    cookie: AtomicU64,
}

pub(crate) struct Rest {
    pub(crate) program: Program,
    pub(crate) cache: UnwindCache<[PackedFrame; 127]>,
    /// The system call that the task is in, and how many steps it takes.
    pub(crate) call: (SystemCall, u32),
    /// What came of the stacks of this kernel entry.
    pub(crate) stacks: HashMap<(Profiler, Cookie), Outcome>,
}

impl Task {
    fn new(number: u64) -> Self {
        let is_traced = number == 0;
        Self {
            key: TaskKey(number),
            unwind: TaskState::new(),
            data: TaskData::new(),
            own: OnceLock::new(),
            own_is_due: AtomicBool::new(false),
            hold: SwitchHold::new(),
            attachment: Mutex::new(None),
            work: AtomicBool::new(false),
            in_user: AtomicBool::new(true),
            is_alive: AtomicBool::new(false),
            on: AtomicUsize::new(0),
            is_traced,
            record: Mutex::new(None),
            samples: [const { Sample::new() }; SAMPLES],
            taken: AtomicUsize::new(0),
            rest: Mutex::new(Rest {
                program: Program::new(0x9e37_79b9_7f4a_7c15 ^ number << 20, is_traced),
                cache: UnwindCache::<[_; 127]>::new(),
                call: (SystemCall::Work, 0),
                stacks: HashMap::new(),
            }),
        }
    }

    /// What a sample has to know of it. A kernel has other kinds of tasks too.
    pub(crate) fn sampled(&self) -> SampledTask {
        SampledTask {
            has_memory: true,
            is_kernel_thread: false,
            is_user_worker: false,
            has_user_registers: true,
        }
    }

    /// A CPU takes it; whether another one had it before.
    pub(crate) fn moves_to(&self, cpu: usize) -> bool {
        self.on.swap(cpu, Ordering::Relaxed) != cpu
    }

    /// Room for another sample of this entry. Any context.
    pub(crate) fn place(&self) -> Option<usize> {
        let at = self.taken.fetch_add(1, Ordering::Relaxed);
        (at < SAMPLES).then_some(at)
    }

    /// Keeps what was promised. A place without a promise stays empty. Any context.
    pub(crate) fn keep(&self, at: usize, profiler: Profiler, cookie: Cookie) {
        self.samples[at].profiler.store(profiler as u64, Ordering::Relaxed);
        self.samples[at].cookie.store(cookie.get(), Ordering::Relaxed);
    }

    /// Takes what was promised in the entry that is over.
    pub(crate) fn take_promises(&self) -> impl Iterator<Item = (Profiler, Cookie)> {
        let taken = self.taken.swap(0, Ordering::Relaxed).min(SAMPLES);
        self.samples[..taken].iter().filter_map(|sample| {
            let cookie = Cookie::new(sample.cookie.swap(0, Ordering::Relaxed))?;
            Some((Profiler::ALL[sample.profiler.load(Ordering::Relaxed) as usize], cookie))
        })
    }
}

impl Sample {
    const fn new() -> Self {
        Self { profiler: AtomicU64::new(0), cookie: AtomicU64::new(0) }
    }
}

static TABLE: LazyLock<Vec<Task>> = LazyLock::new(|| (0..TASKS as u64).map(Task::new).collect());
static CREATED: AtomicUsize = AtomicUsize::new(0);

/// Creates a task, which can be found from now on and does not run yet. `None` if there is no room.
pub(crate) fn create() -> Option<&'static Task> {
    let task = TABLE.get(CREATED.fetch_add(1, Ordering::Relaxed))?;
    task.is_alive.store(true, Ordering::Release);
    Some(task)
}

/// The task that comes next in the table, of those that live.
pub(crate) fn next(after: Option<&Task>) -> Option<&'static Task> {
    let first = after.map_or(0, |task| task.key.0 as usize + 1);
    TABLE[first..].iter().find(|task| task.is_alive.load(Ordering::Acquire))
}
