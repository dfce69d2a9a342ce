//! What the demonstration does: starts programs, makes their pages absent,
//! carries the records out, and ends the run with an account.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use unwind_perf::task_data::AllAttachment;

use crate::each_cpu::are_several;
use crate::grace::Moment;
use crate::serial::println;
use crate::task::program::Program;
use crate::task::state::Task;
use crate::task::{life, schedule, state};
use crate::unwind::host::UNWIND;
use crate::unwind::{aux_trace, branches, delivery, followers, sampler, stream, tracer};
use crate::{apic, cpu, descriptors, measure, memory, options, shadow_unit, single_step};

/// The programs that run all the time. Those that end are started again.
const PROGRAMS: [Program; 9] = [
    Program::Records,
    Program::FramePointers,
    Program::Tables,
    Program::Compat,
    Program::Nested,
    Program::Exits,
    Program::Executes,
    Program::Forks,
    Program::Crashes,
];

/// Bus clocks between two timer ticks: half a millisecond.
pub(crate) const TICK: u32 = 500_000;

/// Ticks between two evictions.
const EVICT_EVERY: u64 = 2;

/// Ticks of the phase in which stacks are measured.
const MEASURE: u64 = 200;

/// Ticks that the tasks get to end.
const SETTLE: u64 = 100;
/// The most that they get if some have not.
const MOST_SETTLE: u64 = 10_000;

static READER_STALLS: AtomicBool = AtomicBool::new(false);
pub(crate) static EVICTED: AtomicU64 = AtomicU64::new(0);

/// Makes the threads that conduct the run by this function, and starts the clocks.
pub(crate) fn start(conduct: extern "C" fn(u64) -> !) {
    let threads = [life::spawn_kernel_thread(read, 0), life::spawn_kernel_thread(conduct, 0)];
    assert!(threads.iter().all(Option::is_some), "no room for the first threads");
    apic::start_tick(TICK);
    apic::start_sampling(options::get().hertz as u32);
}

/// A kernel thread: carries the records out.
extern "C" fn read(_: u64) -> ! {
    cpu::enable_interrupts();
    let mut round = Moment::now();
    loop {
        if !READER_STALLS.load(Ordering::Relaxed) {
            // What was being written when the round began is written by now.
            let ends = round.has_passed();
            stream::export();
            if ends {
                stream::end_round();
                round = Moment::now();
            }
        }
        schedule::sleep(1);
    }
}

/// A kernel thread: conducts the run.
pub(crate) extern "C" fn conduct(_: u64) -> ! {
    cpu::enable_interrupts();
    let wanted = options::get();
    let mut running = PROGRAMS.map(|program| (program, None::<(&Task, u32)>));
    // Those that the timer caused.
    let taken = || {
        let stepped = single_step::STEPS.load(Ordering::Relaxed);
        sampler::COUNTS.taken.load(Ordering::Relaxed) - stepped
    };
    let mut stalled = 0;
    let mut record_all = RecordAll::NotYet;
    while taken() < wanted.samples {
        for (program, task) in &mut running {
            if task.is_none_or(|(task, id)| task.has_ended(id)) {
                *task = start_program(*program);
            }
        }
        if schedule::ticks().is_multiple_of(EVICT_EVERY) {
            EVICTED.fetch_add(schedule::evict_next().into(), Ordering::Relaxed);
        }
        record_all.turn(taken(), wanted.samples);
        let stall = taken() > wanted.samples / 2 && stalled < wanted.stall;
        READER_STALLS.store(stall, Ordering::Relaxed);
        stalled += u64::from(stall);
        schedule::sleep(1);
    }
    record_all.end();
    finish()
}

/// Starts a program, and the events that belong to it.
pub(crate) fn start_program(program: Program) -> Option<(&'static Task, u32)> {
    let task = life::spawn_program(program, |task| {
        if program == Program::Records {
            task.set_traced();
            shadow_unit::start(task);
            let attached = branches::attach(task);
            assert!(attached.is_some(), "no memory for a task's record");
        }
        match program {
            Program::Forks if are_several() => followers::follow(task),
            Program::Tables if are_several() => followers::give_own(task),
            _ => {}
        }
    })?;
    Some((task, task.id()))
}

/// A system-wide event that records the calls of all tasks for a while. It
/// slows them down: the branch unit is simulated.
pub(crate) enum RecordAll {
    NotYet,
    On(AllAttachment, u64),
    Over,
}

impl RecordAll {
    /// Ticks for which it is on.
    const TICKS: u64 = 60;

    /// Ends it, if it is on.
    pub(crate) fn end(self) {
        if let Self::On(attachment, _) = self {
            branches::detach_all(attachment);
        }
    }

    /// Called each tick.
    pub(crate) fn turn(&mut self, taken: u64, wanted: u64) {
        *self = match core::mem::replace(self, Self::Over) {
            Self::NotYet if taken > wanted / 4 => match branches::attach_all() {
                Some(attachment) => Self::On(attachment, schedule::ticks()),
                None => panic!("no memory for the records of all tasks"),
            },
            Self::On(attachment, since) if schedule::ticks() >= since + Self::TICKS => {
                branches::detach_all(attachment);
                Self::Over
            }
            other => other,
        };
    }
}

fn finish() -> ! {
    apic::stop_sampling();
    measure::set_measuring(true);
    for _ in 0..MEASURE {
        // Meanwhile the pages that tasks need to continue are brought in.
        schedule::sleep(1);
    }
    measure::set_measuring(false);
    end_tasks();
    account();
    println!("RESULT ok");
    cpu::exit_machine(0x10)
}

/// Ends all tasks, and carries the last records out. No task runs any more then, and
/// nothing of them is left.
pub(crate) fn end_tasks() {
    // Each task ends on its next way out, and delivers before it does.
    life::end_all();
    for _ in 0..SETTLE {
        schedule::sleep(1);
    }
    // The machine below may hold up any CPU for longer than that, also in the middle of the
    // end of a task.
    for _ in 0..MOST_SETTLE {
        if life::user_tasks() == 0 && memory::frames_in_use() == 0 {
            break;
        }
        schedule::sleep(1);
    }
    assert!(life::user_tasks() == 0, "{} tasks did not end", life::user_tasks());
    assert!(memory::frames_in_use() == 0, "{} frames are left", memory::frames_in_use());
    cpu::disable_interrupts();
    while !stream::export() {
        schedule::sleep(1);
    }
    stream::end_round();
}

/// Prints the counters.
fn account() {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let samples = &sampler::COUNTS;
    sampler::account();
    println!(
        "samples: {} within the unwinder, {} instructions stepped with an nmi each",
        get(&samples.in_unwinder),
        get(&single_step::STEPS),
    );
    println!(
        "requests: {} queued, {} pending, {} executed, {} refused",
        get(&samples.queued),
        get(&samples.already_pending),
        get(&samples.already_executed),
        get(&samples.refused),
    );
    println!(
        "walks in the nmi: {} of user stacks, {} cut short by absent pages; {} kernel stacks incomplete",
        get(&samples.compared),
        get(&samples.would_be_cut),
        get(&samples.kernel_incomplete),
    );
    tracer::account();
    delivery::account();
    println!("drops: {:?}", UNWIND.drops());
    branches::account();
    aux_trace::account();
    shadow_unit::account();
    println!("records: {} lost", stream::lost());
    println!(
        "stack: {} request, {} walk by tables, {} walk by frame pointers, {} walk of 32-bit code",
        measure::REQUEST.bytes(),
        measure::WALK_BY_TABLES.bytes(),
        measure::WALK_BY_FRAME_POINTERS.bytes(),
        measure::WALK_OF_COMPAT.bytes(),
    );
    println!(
        "stack: {} nmi in all, {} task in all",
        descriptors::most_nmi_stack_used(),
        state::most_stack_used(),
    );
    println!(
        "pages: {} evicted, {} frames left; {} ticks",
        get(&EVICTED),
        memory::frames_in_use(),
        schedule::ticks(),
    );
}
