//! The run on several CPUs: as many samples as wanted, while tasks change CPUs, events come
//! and go, and pages are taken away; then the account of each CPU.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::conductor::{EVICTED, RecordAll, end_tasks, start_program};
use crate::each_cpu::online;
use crate::memory::shootdown;
use crate::serial::println;
use crate::task::program::Program;
use crate::task::state::Task;
use crate::task::{life, schedule};
use crate::unwind::event::Event;
use crate::unwind::host::UNWIND;
use crate::unwind::{
    aux_trace, branches, delivery, events, kernel_modules, sampler, shared_trace, stream, tracer,
};
use crate::{apic, counter_unit, cpu, memory, options, serial, shadow_unit};

/// The programs that run all the time, some of them twice.
const PROGRAMS: [Program; 15] = [
    Program::Records,
    Program::FramePointers,
    Program::FramePointers,
    Program::Tables,
    Program::Tables,
    Program::Compat,
    Program::Compat,
    Program::Nested,
    Program::Nested,
    Program::Exits,
    Program::Executes,
    Program::Executes,
    Program::Forks,
    Program::Forks,
    Program::Crashes,
];

/// Ticks for which instructions are counted, and then are not.
const COUNT_FOR: u64 = 8;

/// A kernel thread: conducts the run.
pub(crate) extern "C" fn conduct(_: u64) -> ! {
    cpu::enable_interrupts();
    let mut running = PROGRAMS.map(|program| (program, None::<(&Task, u32)>));
    let wanted = options::get().samples;
    let taken = || sampler::COUNTS.taken.load(Ordering::Relaxed);
    let mut exchanges = 0;
    assert!(life::spawn_kernel_thread(change, 0).is_some(), "no room for a thread");
    let mut record_all = RecordAll::NotYet;
    while taken() < wanted {
        record_all.turn(taken(), wanted);
        for (program, task) in &mut running {
            if task.is_none_or(|(task, id)| task.has_ended(id)) {
                *task = start_program(*program);
            }
        }
        // Counted code is slow. So that all programs get on, it is counted by turns.
        counter_unit::switch(schedule::ticks() % (2 * COUNT_FOR) < COUNT_FOR);
        EVICTED.fetch_add(schedule::evict_next().into(), Ordering::Relaxed);
        // The profiler's oldest event changes, so that its stacks go to the other one.
        let event = [Event::Cycles, Event::Instructions, Event::Spans][exchanges % 3];
        events::exchange(event, exchanges / 3 % online());
        exchanges += 1;
        schedule::sleep(1);
    }
    record_all.end();
    ENDS.store(true, Ordering::Relaxed);
    apic::stop_sampling();
    counter_unit::switch(false);
    end_tasks();
    account(exchanges);
    println!("RESULT ok");
    cpu::exit_machine(0x10)
}

static ENDS: AtomicBool = AtomicBool::new(false);

/// A kernel thread: modules come and go, and the shared trace is stopped and started.
extern "C" fn change(_: u64) -> ! {
    cpu::enable_interrupts();
    for turn in 0.. {
        if !ENDS.load(Ordering::Relaxed) {
            kernel_modules::exchange(turn);
            shared_trace::stop_and_start();
        }
        schedule::sleep(1);
    }
    unreachable!("it does not run for that many ticks")
}

/// Prints the counters.
fn account(exchanges: usize) {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let samples = &sampler::COUNTS;
    sampler::account();
    println!("samples: {} within the unwinder", get(&samples.in_unwinder));
    println!(
        "machine: {} cpus, {} instructions counted, {} for everyone",
        online(),
        counter_unit::counted(),
        options::get().everyone,
    );
    for cpu in 0..online() {
        let own = events::of_cpu(cpu);
        for event in Event::ALL {
            let [samples, promised, stacks] = own.of(event);
            println!(
                "cpu {cpu} event {}: {samples} samples, {promised} promised, {stacks} stacks",
                event.number(),
            );
        }
        println!(
            "cpu {cpu}: {} asked elsewhere, {} without event, {} strangers, {} failed",
            get(&own.crossed),
            get(&own.without_event),
            get(&own.strangers),
            get(&own.failed),
        );
    }
    tracer::account();
    delivery::account();
    println!("drops: {:?}", UNWIND.drops());
    branches::account();
    aux_trace::account();
    shadow_unit::account();
    kernel_modules::account();
    shared_trace::account();
    println!("records: {} lost, {} bytes", stream::lost(), serial::exported());
    println!(
        "pages: {} evicted, {} frames left; {} waits for other cpus; {} ticks",
        get(&EVICTED),
        memory::frames_in_use(),
        get(&shootdown::WAITS),
        schedule::ticks(),
    );
    println!("events: {exchanges} exchanged");
}
