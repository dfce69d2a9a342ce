//! The profilers of the machine: what they open and close, and what each
//! request of theirs has to lead to.

use std::collections::BTreeMap;
use std::rc::Rc;

use unwind_core::deferred::{ClientId, Cookie, Refusal, ScheduleError};
use unwind_perf::aux_trace::{
    AuxAction, AuxAttr, Creator, PmuCapabilities, Trigger, TriggerAction,
};
use unwind_perf::per_cpu::*;
use unwind_perf::task_data::{AllAttachment, TaskAttachment};

use crate::cpu::Tracer;
use crate::host::Task;
use crate::{CPUS, Core, Machine};

/// What happened, and what was lost.
#[derive(Debug, Default)]
pub struct Totals {
    pub opened: [u64; 3],
    pub not_opened: u64,
    pub replaced: u64,
    pub records: u64,
    pub recorded_calls: u64,
    /// Requests that were queued, each of which ends in one of two ways.
    pub asked: u64,
    pub served: u64,
    pub cancelled: u64,
    /// How the served requests ended.
    pub written: u64,
    pub no_event: u64,
    pub output_failed: u64,
    pub cannot_schedule: u64,
    pub work_written: u64,
    pub work_taken_back: u64,
    pub forks: u64,
    pub missed_forks: u64,
    pub exits: u64,
    /// Missed AUX actions, of triggers and tracers that are gone.
    pub missed_before: u64,
    pub retired_missed: u64,
}

impl Totals {
    /// A run in which one of the counts is zero shows nothing about that case.
    pub fn assert_everything_happened(&self) {
        let Self { opened: [one, two, three], .. } = self;
        let all = [
            *one,
            *two,
            *three,
            self.not_opened,
            self.replaced,
            self.recorded_calls,
            self.written,
            self.no_event,
            self.output_failed,
            self.cannot_schedule,
            self.cancelled,
            self.work_written,
            self.work_taken_back,
            self.missed_forks,
            self.exits,
            self.missed_before,
        ];
        assert!(all.iter().all(|&count| count > 0), "{self:?}");
    }
}

/// An event, and what the registry knows of it.
#[derive(Debug)]
struct Opened {
    receiver: Receiver,
    cpu: Option<usize>,
    key: u64,
}

impl Opened {
    fn client(&self) -> Option<ClientId> {
        match &self.receiver {
            Receiver::Cpu(event) => Some(event.client()),
            Receiver::Task(_) => None,
        }
    }
}

#[derive(Debug, Default)]
struct Group {
    events: Vec<Opened>,
    everyone: Option<AllAttachment>,
    one: Option<(Rc<Task>, TaskAttachment)>,
    trigger: Option<Rc<Trigger>>,
}

/// The three profilers: each has its group open, or not.
#[derive(Debug, Default)]
pub struct Profilers {
    groups: [Option<Group>; 3],
    /// The events in the registry in the order in which they came: client,
    /// CPU, key.
    order: BTreeMap<u64, (ClientId, usize)>,
    keys: u64,
    pub hold: SwitchHold,
}

impl Profilers {
    /// The event that has to get a stack: the oldest one of the client on the
    /// CPU.
    pub fn first_event(&self, client: ClientId, cpu: usize) -> Option<u64> {
        let of_client = self.order.iter().find(|(_, event)| **event == (client, cpu));
        of_client.map(|(&key, _)| key)
    }

    pub fn is_system_wide(&self) -> bool {
        self.groups[0].is_some()
    }

    /// The task that the second profiler watches.
    pub fn target(&self) -> Option<Rc<Task>> {
        let group = self.groups[1].as_ref()?;
        group.one.as_ref().map(|(task, _)| Rc::clone(task))
    }

    pub fn trigger(&self) -> Option<&Rc<Trigger>> {
        self.groups[2].as_ref().and_then(|group| group.trigger.as_ref())
    }

    /// Actions that the trigger that there is has missed.
    pub fn missed(&self) -> u64 {
        self.trigger().map_or(0, |trigger| trigger.counters().missed)
    }
}

/// The work of an event on the task that runs.
struct Work<'a> {
    core: &'a Core,
    task: Option<&'a Task>,
    key: u64,
    fails: bool,
}

impl Work<'_> {
    fn queued(&self) -> std::cell::RefMut<'_, std::collections::BTreeSet<u64>> {
        self.task.expect("only events of a task have work").work.borrow_mut()
    }
}

impl TaskWork for Work<'_> {
    fn cookie(&self) -> Result<Cookie, Refusal> {
        self.core.cookie(self.task.expect("only events of a task have work"))
    }

    fn queue(&self) -> Result<(), ScheduleError> {
        if self.fails {
            return Err(ScheduleError);
        }
        assert!(self.queued().insert(self.key), "queued twice");
        Ok(())
    }

    fn unqueue(&self) {
        assert!(self.queued().remove(&self.key), "not queued");
    }

    fn is_current(&self) -> bool {
        true
    }

    fn relax(&self) {
        unreachable!("there is no one to wait for: one thread does everything");
    }
}

const USER: SampledTask = SampledTask {
    has_memory: true,
    is_kernel_thread: false,
    is_user_worker: false,
    has_user_registers: true,
};

impl Machine {
    /// Opens or closes the group of a profiler.
    pub fn change_profilers(&mut self) {
        let which = self.random.below(3);
        if self.profilers.groups[which].is_some() {
            self.close(which);
        } else if self.open(which) {
            self.totals.opened[which] += 1;
        } else {
            self.totals.not_opened += 1;
        }
    }

    pub fn close_all_profilers(&mut self) {
        for which in 0..3 {
            if self.profilers.groups[which].is_some() {
                self.close(which);
            }
        }
    }

    /// Opens a group, or undoes it if any part fails.
    fn open(&mut self, which: usize) -> bool {
        self.profilers.groups[which] = Some(Group::default());
        let opened = match which {
            0 => self.open_system_wide(),
            1 => self.open_for_one_task(),
            _ => self.open_tracing(),
        };
        if opened.is_none() {
            self.close(which);
        }
        opened.is_some()
    }

    fn open_system_wide(&mut self) -> Option<()> {
        let everyone = self.users.attach_all(&*self.system).ok();
        // Until it is there, no task has to have a mark.
        let Some(everyone) = everyone else {
            self.profilers.groups[0] = None;
            return None;
        };
        for task in self.system.tasks.borrow().values() {
            task.unmarked.set(false);
        }
        self.group(0).everyone = Some(everyone);
        for cpu in 0..CPUS {
            self.cpus[cpu].hook.add_user().unwrap();
            self.cpus[cpu].start(&self.system, true);
        }
        self.add_events(0, None, 2)
    }

    fn open_for_one_task(&mut self) -> Option<()> {
        let tasks = self.system.tasks.borrow();
        let index = self.random.below(tasks.len().max(1));
        let task = tasks.values().nth(index).cloned();
        drop(tasks);
        let task = task?;
        let attachment = self.users.attach_task(&*self.system, &task).ok()?;
        task.attached.set(task.attached.get() + 1);
        match task.on.get() {
            Some(cpu) => self.cpus[cpu].start(&self.system, false),
            None => {
                let handle = task.data.handle().expect("it was attached");
                self.system.with_state(handle, |task| task.state.add_user());
            }
        }
        self.group(1).one = Some((Rc::clone(&task), attachment));
        if self.random.one_in(2) {
            return self.add_events(1, Some(&task), 2);
        }
        for _ in 0..2 {
            self.add_event(1, Some(&task), None)?;
        }
        Some(())
    }

    fn open_tracing(&mut self) -> Option<()> {
        let (pt, plain) = (PmuCapabilities::AUX_PAUSE, PmuCapabilities::NONE);
        let attr = |action| AuxAttr { action, ..AuxAttr::default() };
        let choose = |one: bool, a, b| if one { a } else { b };
        let start = choose(self.random.one_in(2), AuxAction::START_PAUSED, AuxAction::NONE);
        let action = choose(self.random.one_in(2), AuxAction::PAUSE, AuxAction::RESUME);
        let aux = attr(start).check(pt, Creator::User, None).ok()?;
        let role = attr(action).check(plain, Creator::User, Some(pt)).ok()?;
        self.group(2).trigger = Some(Rc::new(Trigger::new(role.trigger?)));
        for cpu in 0..CPUS {
            self.totals.retired_missed += self.cpus[cpu].tracer.missed.get();
            self.cpus[cpu].tracer = Tracer::new(aux.start_paused);
            self.cpus[cpu].tracer.set_started(true);
        }
        self.add_events(2, None, 1)
    }

    fn group(&mut self, which: usize) -> &mut Group {
        self.profilers.groups[which].as_mut().expect("it is being opened")
    }

    /// Adds this many events on each CPU, or on some if not for all tasks.
    fn add_events(&mut self, which: usize, task: Option<&Rc<Task>>, each: usize) -> Option<()> {
        for cpu in 0..CPUS {
            if which != 0 && self.random.one_in(3) {
                continue;
            }
            for _ in 0..each {
                self.add_event(which, task, Some(cpu))?;
            }
        }
        Some(())
    }

    fn add_event(
        &mut self,
        which: usize,
        task: Option<&Rc<Task>>,
        cpu: Option<usize>,
    ) -> Option<()> {
        self.profilers.keys += 1;
        let key = self.profilers.keys;
        let spec = EventSpec {
            leader: GroupLeader(100 + u64::try_from(which).unwrap()),
            cpu: cpu.map_or(-1, |cpu| i32::try_from(cpu).unwrap()),
            task: task.map(|task| TaskKey(task.number)),
            key: EventKey(key),
            defer_output: false,
        };
        let room = cpu.is_none_or(|cpu| {
            self.profilers.order.values().filter(|event| event.1 == cpu).count()
                < crate::EVENTS_PER_CPU
        });
        let receiver = match Receiver::open(&self.registry, &self.core, spec) {
            Ok(receiver) => receiver,
            Err(error) => {
                assert_eq!(error, AddError::NoMemory);
                assert!(!room, "there is room");
                return None;
            }
        };
        assert!(room, "there is no room");
        let opened = Opened { receiver, cpu, key };
        if let (Some(client), Some(cpu)) = (opened.client(), cpu) {
            self.profilers.order.insert(key, (client, cpu));
        }
        self.group(which).events.push(opened);
        Some(())
    }

    /// Closes a group, as far as it was opened.
    fn close(&mut self, which: usize) {
        let Some(group) = self.profilers.groups[which].take() else { return };
        let target = group.one.as_ref().map(|(task, _)| Rc::clone(task));
        for event in &group.events {
            self.remove_event(event, target.as_deref());
        }
        if let Some(everyone) = group.everyone {
            for cpu in 0..CPUS {
                self.cpus[cpu].lbr.stop_wide();
                self.cpus[cpu].hook.remove_user().unwrap();
            }
            self.users.detach_all(&*self.system, everyone).unwrap();
            for task in self.system.tasks.borrow().values() {
                task.unmarked.set(false);
            }
        }
        if let Some((task, attachment)) = group.one {
            if let Some(handle) = task.data.handle() {
                self.system.with_state(handle, |task| task.state.remove_user());
            }
            self.users.detach_task(&*self.system, &task, attachment).unwrap();
            task.attached.set(task.attached.get() - 1);
        }
        if let Some(trigger) = group.trigger {
            self.totals.missed_before += trigger.counters().missed;
            for cpu in 0..CPUS {
                self.cpus[cpu].tracer.set_started(false);
            }
        }
        for cpu in 0..CPUS {
            self.cpus[cpu].update_recording(&self.system);
        }
    }

    fn remove_event(&mut self, event: &Opened, target: Option<&Task>) {
        self.profilers.order.remove(&event.key);
        // The task itself takes back whatever is queued on it: in one thread
        // there is no other caller.
        let queued = target.is_some_and(|task| task.work.borrow().contains(&event.key));
        self.totals.work_taken_back += u64::from(queued);
        let work = Work { core: &self.core, task: target, key: event.key, fails: false };
        let own = (&work, &self.profilers.hold);
        event.receiver.remove(&self.registry, &self.core, None, own).unwrap();
    }

    /// One event of a group goes, and another one comes in its stead. A
    /// trigger is replaced by one that does the contrary.
    pub fn replace_event(&mut self) {
        let which = self.random.below(3);
        let Some(mut group) = self.profilers.groups[which].take() else { return };
        if let Some(trigger) = &mut group.trigger {
            self.totals.missed_before += trigger.counters().missed;
            *trigger = Rc::new(Trigger::new(match trigger.action() {
                TriggerAction::Pause => TriggerAction::Resume,
                TriggerAction::Resume => TriggerAction::Pause,
            }));
        }
        let target = group.one.as_ref().map(|(task, _)| Rc::clone(task));
        let index = self.random.below(group.events.len().max(1));
        let gone = (index < group.events.len()).then(|| group.events.swap_remove(index));
        self.profilers.groups[which] = Some(group);
        if let Some(event) = gone {
            self.remove_event(&event, target.as_deref());
            if !self.random.one_in(3) {
                let added = self.add_event(which, target.as_ref(), event.cpu);
                assert!(added.is_some(), "there is room where one has gone");
                self.totals.replaced += 1;
            }
        }
    }

    /// The events that count the task on this CPU ask for its stack.
    pub fn ask_for_stacks(&mut self, cpu: usize, task: &Rc<Task>) {
        let fails = self.system.cannot_schedule.get();
        for group in self.profilers.groups.iter().flatten() {
            let target = group.one.as_ref().map(|(task, _)| task.number);
            if target.is_some_and(|number| number != task.number) {
                continue;
            }
            for event in group.events.iter().filter(|e| e.cpu.is_none_or(|at| at == cpu)) {
                let work = Work { core: &self.core, task: Some(task), key: event.key, fails };
                let queued = task.work.borrow().contains(&event.key);
                let own = (&work, &self.profilers.hold);
                let of = (&**task, TaskKey(task.number));
                let asked = event.receiver.request(&self.registry, &self.core, USER, of, own);
                let (client, totals) = (event.client(), &mut self.totals);
                match (asked, client) {
                    (Ok(cookie), Some(client)) => {
                        // The same cookie for everybody in one entry.
                        let first = *task.cookie.get().get_or_insert(cookie.get());
                        assert_eq!(first, cookie.get());
                        task.cookie.set(Some(first));
                        if !task.asked.borrow().contains_key(&client) {
                            task.asked.borrow_mut().insert(client, false);
                            totals.asked += 1;
                        }
                    }
                    // The record of the work can be joined with the sample.
                    (Ok(cookie), None) => {
                        assert!(queued || !fails);
                        let first = *task.cookie.get().get_or_insert(cookie.get());
                        assert_eq!(first, cookie.get());
                        task.cookie.set(Some(first));
                    }
                    (Err(error), client) => {
                        assert_eq!(error, RequestError::Refused(Refusal::ScheduleFailed));
                        assert!(fails && !queued);
                        // The core has counted it unless it is the event's own queue that
                        // failed, after the entry has its cookie.
                        let by_core = client.is_some() || task.cookie.get().is_none();
                        totals.cannot_schedule += u64::from(by_core);
                    }
                }
            }
        }
    }

    /// The works that are queued on the task run.
    pub fn run_work(&mut self, task: &Task) {
        for key in task.work.take() {
            let group = self.profilers.groups[1].as_ref().expect("its event is open");
            let event = group.events.iter().find(|event| event.key == key);
            let Some(Opened { receiver: Receiver::Task(event), .. }) = event else {
                unreachable!("work of an event that is gone");
            };
            let ran = event.run(
                &self.profilers.hold,
                |_| Ok::<_, ()>(()),
                |cookie, ()| {
                    assert_eq!(task.cookie.get(), Some(cookie.get()));
                    Ok::<_, ()>(())
                },
            );
            assert_eq!(ran, TaskRun::Written);
            self.totals.work_written += 1;
        }
    }
}
