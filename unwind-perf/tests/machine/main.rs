//! A machine of 8 CPUs and 200 tasks that three profilers watch, with a random
//! step at a time, beside a plain model of what has to come of it.
//!
//! | profiler | its group of two events | on |
//! |---|---|---|
//! | 1 | cycles and instructions, with call stacks by the branch record | every CPU |
//! | 2 | cycles and instructions of one task, with call stacks too | some CPUs, or the task wherever it is |
//! | 3 | an AUX event, and a trigger that pauses or resumes it | every CPU, some with samples |
//!
//! `UNWIND_MACHINE_STEPS` is how many steps there are: a million if it is not
//! set.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unreachable,
    missing_copy_implementations,
    missing_debug_implementations,
    missing_docs,
    unreachable_pub,
    reason = "tests"
)]

mod cpu;
mod host;
mod profilers;

use std::rc::Rc;

use cpu::Cpu;
use host::{Hooks, System, Task};
use profilers::{Profilers, Totals};
use unwind_core::deferred::{
    DeferredUnwind, MAX_CLIENTS, Recipients, SerialCookies, UnwindCache, UserReturn,
};
use unwind_perf::per_cpu::*;
use unwind_perf::task_data::{DataLayout, TaskDataUsers};
use unwind_x86::lbr::LbrState;

const CPUS: usize = 8;
const TASKS: usize = 200;
/// Too few for all events, so that opening fails now and then.
const EVENTS_PER_CPU: usize = 4;

type Core = DeferredUnwind<Hooks, SerialCookies>;
type Registry = FixedRegistry<CPUS, EVENTS_PER_CPU>;

/// A deterministic source of numbers.
pub struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % end
    }

    fn one_in(&mut self, end: usize) -> bool {
        self.below(end) == 0
    }
}

/// All of it.
pub struct Machine {
    system: Rc<System>,
    core: Core,
    registry: Registry,
    users: TaskDataUsers,
    cpus: Vec<Cpu>,
    profilers: Profilers,
    random: Random,
    totals: Totals,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let system = Rc::new(System::default());
        Self {
            core: DeferredUnwind::new(Hooks(Rc::clone(&system)), SerialCookies::new()),
            system,
            registry: Registry::new(DeliveryPolicy::FirstLive),
            users: TaskDataUsers::new(Some(DataLayout::of::<LbrState>())),
            cpus: (0..CPUS).map(|_| Cpu::new()).collect(),
            profilers: Profilers::default(),
            random: Random(0x9e37_79b9_7f4a_7c15 ^ seed),
            totals: Totals::default(),
        }
    }

    fn step(&mut self) {
        let cpu = self.random.below(CPUS);
        match self.random.below(100) {
            0..6 => self.schedule(cpu),
            6..56 => self.user_code(cpu),
            56..68 => self.sample(cpu),
            68..90 => self.return_to_user(cpu),
            90..93 if self.random.one_in(4) => self.fork(),
            93..95 if self.random.one_in(4) => self.exit(cpu),
            95 => self.tracer_step(cpu),
            96 if self.random.one_in(4) => self.change_profilers(),
            96 => self.replace_event(),
            97 if self.cpus[cpu].current.is_none() => self.cpus[cpu].deep_idle(),
            98 => self.weather(),
            _ => {}
        }
        self.check_cpu(cpu);
    }

    /// Memory and queues come and go.
    fn weather(&mut self) {
        let short = self.random.one_in(6);
        self.system.room.set(if short { self.random.below(TASKS) } else { usize::MAX });
        self.system.cannot_schedule.set(self.random.one_in(8));
    }

    /// Another task on a CPU, which may have run on any; often the one that ran
    /// here before or that a profiler watches.
    fn schedule(&mut self, cpu: usize) {
        let tasks = self.system.tasks.borrow();
        let before = self.cpus[cpu].before.upgrade().filter(|_| self.random.one_in(2));
        let before = before.or(self.profilers.target());
        let before = before.filter(|task| task.on.get().is_none() && !task.exiting.get());
        if let Some(task) = before.filter(|_| self.random.one_in(2)) {
            drop(tasks);
            return self.cpus[cpu].switch(&self.system, cpu, Some(task));
        }
        let waiting: Vec<_> = tasks.values().filter(|task| task.on.get().is_none()).collect();
        let next = (!self.random.one_in(5) && !waiting.is_empty())
            .then(|| Rc::clone(waiting[self.random.below(waiting.len())]));
        drop(tasks);
        self.cpus[cpu].switch(&self.system, cpu, next);
    }

    /// A burst of calls or of returns.
    fn user_code(&mut self, cpu: usize) {
        let cpu = &mut self.cpus[cpu];
        let Some(task) = cpu.current.clone().filter(|task| !task.in_kernel.get()) else { return };
        let mut stack = task.stack.borrow_mut();
        let calls = self.random.one_in(2);
        for _ in 0..self.random.below(12) {
            if !calls {
                if stack.pop().is_some() {
                    cpu.ret(&task);
                }
            } else if stack.len() < 60 {
                let level = u64::try_from(stack.len()).unwrap();
                let site = u64::try_from(self.random.below(4)).unwrap();
                let base = task.number << 20;
                let call = (base + level * 0x100 + site * 8, base + (level + 1) * 0x100);
                stack.push(call);
                cpu.call(&task, call.0, call.1);
            }
        }
    }

    /// An NMI on a CPU: the events on it overflow.
    fn sample(&mut self, cpu: usize) {
        let Some(task) = self.cpus[cpu].current.clone() else { return };
        if task.exiting.get() {
            return;
        }
        task.in_kernel.set(true);
        self.check_record(cpu);
        self.ask_for_stacks(cpu, &task);
        if let Some(trigger) = self.profilers.trigger() {
            if self.random.one_in(3) {
                *self.cpus[cpu].tracer.nmi.borrow_mut() = Some(Rc::clone(trigger));
            }
            self.cpus[cpu].tracer.overflow(trigger);
        }
    }

    /// The branch record of a CPU holds the inner end of the stack of the task
    /// that runs on it, as much as was recorded, and nothing else.
    fn check_record(&mut self, cpu: usize) {
        let cpu = &mut self.cpus[cpu];
        let Some(task) = cpu.current.clone() else { return };
        if !cpu.is_used(&self.system) {
            return;
        }
        let sample = cpu.sample();
        let stack = task.stack.borrow();
        assert_eq!(sample.branches().len(), task.recorded.get());
        for (branch, call) in sample.branches().iter().zip(stack.iter().rev()) {
            assert!(task.owns(branch.from) && task.owns(branch.to), "a leak: {branch:?}");
            assert_eq!((branch.from, branch.to), *call);
        }
        self.totals.records += 1;
        self.totals.recorded_calls += u64::try_from(sample.branches().len()).unwrap();
    }

    /// The task continues to its user code, after its deliveries.
    fn return_to_user(&mut self, cpu: usize) {
        let Some(task) = self.cpus[cpu].current.clone() else { return };
        self.run_work(&task);
        self.deliver(cpu, &task);
        task.in_kernel.set(false);
    }

    fn deliver(&mut self, cpu: usize, task: &Rc<Task>) {
        let mut cache = UnwindCache::<[_; 1]>::new();
        while self.core.user_return(task) == UserReturn::Pending {
            let mut delivery =
                self.core.deliver(task, Recipients::Requesters, Some(&mut cache), |_| ());
            while let Some(guard) = delivery.next() {
                let client = guard.client();
                assert_eq!(Some(guard.cookie().get()), task.cookie.get());
                let served = task.asked.borrow_mut().insert(client, true);
                assert_eq!(served, Some(false), "asked for, and not served yet");
                self.totals.served += 1;
                let expected = self.profilers.first_event(client, cpu);
                let fails = self.random.one_in(10);
                let mut got = Vec::new();
                let number = u32::try_from(cpu).unwrap();
                self.registry.deliver(client, number, TaskKey(task.number), |event| {
                    got.push(event.0);
                    if fails { Err(()) } else { Ok(()) }
                });
                assert_eq!(got, expected.into_iter().collect::<Vec<_>>());
                match expected {
                    None => self.totals.no_event += 1,
                    Some(_) if fails => self.totals.output_failed += 1,
                    Some(_) => self.totals.written += 1,
                }
            }
        }
        // A profiler that asked and was not served is gone.
        for (client, served) in task.asked.take() {
            if !served {
                assert!(!self.registry.owns(client), "{client:?} was not served");
                self.totals.cancelled += 1;
            }
        }
        task.cookie.set(None);
    }

    fn fork(&mut self) {
        if self.system.tasks.borrow().len() == TASKS {
            return;
        }
        let child = self.system.spawn();
        let forked = self.users.fork(&*self.system, &child);
        child.unmarked.set(forked.is_err());
        self.totals.missed_forks += u64::from(forked.is_err());
        self.totals.forks += 1;
    }

    /// The task that runs on a CPU exits.
    fn exit(&mut self, cpu: usize) {
        let Some(task) = self.cpus[cpu].current.clone() else { return };
        task.exiting.set(true);
        self.core.close(&task);
        self.run_work(&task);
        self.deliver(cpu, &task);
        self.users.exit(&*self.system, &task);
        self.cpus[cpu].switch(&self.system, cpu, None);
        self.system.tasks.borrow_mut().remove(&task.number);
        self.totals.exits += 1;
    }

    /// The scheduler starts or stops the AUX event of a CPU.
    fn tracer_step(&mut self, cpu: usize) {
        let Some(trigger) = self.profilers.trigger().cloned() else { return };
        let tracer = &self.cpus[cpu].tracer;
        if self.random.one_in(2) {
            *tracer.nmi.borrow_mut() = Some(trigger);
        }
        tracer.set_started(self.random.one_in(2));
    }

    fn check_cpu(&mut self, cpu: usize) {
        self.check_record(cpu);
        self.cpus[cpu].tracer.check();
        let Some(task) = &self.cpus[cpu].current else { return };
        self.check_data(task);
    }

    /// A task has its data as long as an event needs it.
    fn check_data(&self, task: &Task) {
        let marked = self.profilers.is_system_wide() && !task.unmarked.get();
        let users = task.attached.get() + u32::from(marked);
        assert_eq!((task.data.users(), task.data.is_marked()), (users, marked), "{task:?}");
        assert_eq!(task.data.handle().is_some(), users != 0);
    }

    fn check_everything(&self) {
        let tasks = self.system.tasks.borrow();
        let with_data = tasks.values().filter(|task| {
            self.check_data(task);
            task.data.handle().is_some()
        });
        assert_eq!(with_data.count(), self.system.live());
        let (counters, totals) = (self.registry.counters(), &self.totals);
        assert_eq!(counters.no_event, totals.no_event);
        assert_eq!(counters.output_failed, totals.output_failed);
        assert_eq!((counters.unknown_cpu, counters.stale_requests), (0, 0));
        assert_eq!(self.users.counters().missed_forks, totals.missed_forks);
        assert_eq!(totals.served, totals.written + totals.no_event + totals.output_failed);
        let queued = tasks.values().any(|task| !task.work.borrow().is_empty());
        assert_eq!(self.profilers.hold.is_free(), !queued);
        let missed: u64 = self.cpus.iter().map(|cpu| cpu.tracer.missed.get()).sum();
        assert_eq!(self.profilers.missed() + totals.missed_before, missed + totals.retired_missed);
    }

    /// Everything ends, and nothing is left.
    fn finish(&mut self) {
        self.system.room.set(usize::MAX);
        self.system.cannot_schedule.set(false);
        self.close_all_profilers();
        for cpu in 0..CPUS {
            self.cpus[cpu].switch(&self.system, cpu, None);
        }
        // Tasks that never ran again still get what is theirs.
        loop {
            let task = self.system.tasks.borrow().values().next().cloned();
            let Some(task) = task else { break };
            self.cpus[0].switch(&self.system, 0, Some(task));
            self.exit(0);
        }
        self.check_everything();
        assert_eq!(self.system.live(), 0, "memory is left");
        let counters = self.users.counters();
        assert_eq!(counters.allocated, counters.freed);
        assert_eq!(self.users.system_wide(), 0);
        let totals = &self.totals;
        assert_eq!(totals.asked, totals.served + totals.cancelled, "each request ends");
        assert_eq!(self.core.drops().client_cancelled, totals.cancelled);
        assert_eq!(self.core.drops().schedule_failed, totals.cannot_schedule);
        let all: Vec<_> = (0..MAX_CLIENTS).map(|_| self.core.register().unwrap()).collect();
        assert_eq!(all.len(), MAX_CLIENTS, "a client is left");
    }
}

#[test]
fn three_profilers_watch_200_tasks_on_8_cpus() {
    let steps = std::env::var("UNWIND_MACHINE_STEPS")
        .map_or(1_000_000, |steps| steps.parse().expect("a number of steps"));
    let mut machine = Machine::new(1);
    machine.system.room.set(usize::MAX);
    for _ in 0..TASKS {
        machine.fork();
    }
    for step in 0..steps {
        machine.step();
        if step % 1000 == 0 {
            machine.check_everything();
        }
    }
    machine.finish();
    println!("{steps} steps: {:?}", machine.totals);
    machine.totals.assert_everything_happened();
}
