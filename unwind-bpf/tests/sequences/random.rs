//! Sequences by chance, of what can happen.

use crate::event::{CODE, Code, EXECVE, Event, IO_WORKER, KERNEL_THREAD, Within};

const SLOTS: usize = 6;
const SIGRETURN: u64 = 15;

/// Numbers by chance, the same for the same seed.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    User,
    /// In the kernel, by an interrupt or with nothing more to come of its call.
    Interrupt,
    Call(u64),
    /// Its memory is another program's, its registers are not yet.
    Replaced,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    number: u32,
    /// The slot of its leader; `None` if that has ended.
    leader: Option<usize>,
    phase: Phase,
    is_interrupted: bool,
    has_user: bool,
}

#[derive(Debug)]
struct Machine {
    dice: Dice,
    tasks: [Option<Task>; SLOTS],
    current: usize,
    made: u32,
    codes: u64,
    free: Vec<u32>,
    is_within: bool,
    events: Vec<Event>,
}

/// A sequence of this many steps, which ends with all tasks back in user code.
pub fn sequence(seed: u64, steps: u32) -> Vec<Event> {
    let mut machine = Machine {
        dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
        tasks: [None; SLOTS],
        current: 0,
        made: 0,
        codes: 0,
        free: Vec::new(),
        is_within: false,
        events: Vec::new(),
    };
    if machine.dice.roll(12) == 0 {
        machine.events.push(Event::Old);
    }
    for _ in 0..steps {
        machine.step();
    }
    machine.finish();
    machine.events
}

impl Machine {
    fn code(&mut self) -> Code {
        self.codes += 1;
        let code = if self.dice.roll(8) == 0 { 0x70_0000 } else { CODE };
        let depth = match self.dice.roll(40) {
            0 => 2100,
            1..=3 => 200,
            _ => 2 + self.dice.roll(8),
        };
        Code { pc: code + self.codes % 0x700, depth: u32::try_from(depth).unwrap() }
    }

    fn step(&mut self) {
        let Some(task) = self.tasks[self.current] else { return self.begin() };
        match self.dice.roll(16) {
            0 | 1 => self.run(),
            2 => self.set(),
            _ if task.is_interrupted || !task.has_user => self.events.push(Event::Kernel),
            _ => match task.phase {
                Phase::User => self.enter(),
                Phase::Replaced if self.dice.roll(2) == 0 => self.start_program(),
                Phase::Replaced => self.in_kernel(None),
                Phase::Interrupt => self.in_kernel(None),
                Phase::Call(number) => self.in_kernel(Some(number)),
            },
        }
    }

    fn task(&mut self) -> &mut Task {
        self.tasks[self.current].as_mut().unwrap()
    }

    /// A task begins in the current slot.
    fn begin(&mut self) {
        self.made += 1;
        let free = if self.dice.roll(3) == 0 { None } else { self.free.pop() };
        let number = free.unwrap_or(100 + self.made);
        let slot = self.current;
        let is_leader =
            |it: usize| self.tasks[it].is_some_and(|task| task.leader == Some(it) && task.has_user);
        let leader = (0..SLOTS).rfind(|&it| is_leader(it));
        let leader = leader.filter(|_| self.dice.roll(2) == 0).unwrap_or(slot);
        let flags = match self.dice.roll(20) {
            0 if leader == slot => KERNEL_THREAD,
            1 => IO_WORKER,
            _ => 0,
        };
        let started = u64::from(self.made);
        self.events.push(Event::Task { slot, number, started, leader, flags });
        self.events.push(Event::Run(slot));
        let (phase, leader) = (Phase::User, Some(leader));
        let has_user = flags == 0;
        self.tasks[slot] = Some(Task { number, leader, phase, is_interrupted: false, has_user });
    }

    fn run(&mut self) {
        self.current = usize::try_from(self.dice.roll(6)).unwrap();
        if self.tasks[self.current].is_none() {
            return self.begin();
        }
        self.events.push(Event::Run(self.current));
        let cpu = u32::try_from(self.dice.roll(2)).unwrap();
        self.events.push(Event::Cpu(cpu));
    }

    fn set(&mut self) {
        let is_set = self.dice.roll(2) == 0;
        let event = match self.dice.roll(4) {
            0 | 1 => Event::Refuse(u32::try_from(self.dice.roll(3)).unwrap()),
            2 => Event::Full { samples: is_set, stacks: self.dice.roll(2) == 0 },
            _ => Event::Absent(is_set),
        };
        self.events.push(event);
    }

    fn enter(&mut self) {
        let code = self.code();
        if self.dice.roll(2) == 0 {
            self.events.push(Event::User(code));
            self.task().phase = Phase::Interrupt;
            return;
        }
        let numbers = [1, 1, SIGRETURN, EXECVE, EXECVE];
        let number = numbers[usize::try_from(self.dice.roll(5)).unwrap()];
        self.events.push(Event::Call { code, number });
        self.task().phase = Phase::Call(number);
    }

    fn in_kernel(&mut self, call: Option<u64>) {
        let is_replaced = self.task().phase == Phase::Replaced;
        match self.dice.roll(16) {
            0..=4 => self.events.push(Event::Kernel),
            5 => self.events.push(Event::Wait),
            6 => self.exit(),
            7..=10 if call == Some(EXECVE) => self.execute(),
            7..=10 if call == Some(SIGRETURN) => {
                let pc = self.code().pc;
                self.events.push(Event::Registers(pc));
            }
            _ if is_replaced => self.start_program(),
            _ => self.user_return(),
        }
    }

    fn start_program(&mut self) {
        let pc = self.code().pc;
        self.events.push(Event::Registers(pc));
        self.task().phase = Phase::Interrupt;
    }

    fn user_return(&mut self) {
        let busy = u32::try_from(self.dice.roll(8).saturating_sub(5)).unwrap();
        let late = u32::try_from(self.dice.roll(10).saturating_sub(8)).unwrap();
        let within = self.within();
        self.events.push(Event::Return { within, busy, late });
        self.task().phase = Phase::User;
    }

    /// What comes within an event of the current task.
    fn within(&mut self) -> Option<Within> {
        if self.is_within || self.dice.roll(3) == 0 {
            return None;
        }
        self.is_within = true;
        self.task().is_interrupted = true;
        let (slot, before) = (self.current, core::mem::take(&mut self.events));
        for _ in 0..=self.dice.roll(6) {
            self.step();
        }
        self.current = slot;
        self.task().is_interrupted = false;
        self.is_within = false;
        let point = 1 + u32::try_from(self.dice.roll(80)).unwrap();
        let events = core::mem::replace(&mut self.events, before);
        Some(Within { point, events })
    }

    fn exit(&mut self) {
        let within = self.within();
        self.events.push(Event::Exit { within });
        self.gone(self.current);
        let number = self.tasks[self.current].take().unwrap().number;
        self.free.push(number);
    }

    /// Threads of a leader that has ended have none any more.
    fn gone(&mut self, leader: usize) {
        for task in self.tasks.iter_mut().flatten() {
            task.leader = task.leader.filter(|&it| it != leader);
        }
    }

    /// All other threads of the process end; one that is not the leader becomes it.
    fn execute(&mut self) {
        let (slot, task) = (self.current, *self.task());
        let Some(leader) = task.leader else { return self.events.push(Event::Kernel) };
        let others = (0..SLOTS).filter(|&it| it != slot);
        let others: Vec<usize> = others
            .filter(|&it| self.tasks[it].is_some_and(|task| task.leader == Some(leader)))
            .collect();
        let is_interrupted = |&it: &usize| self.tasks[it].is_some_and(|task| task.is_interrupted);
        if others.iter().any(is_interrupted) {
            return self.events.push(Event::Kernel);
        }
        let mut number = task.number;
        for other in others {
            self.events.extend([Event::Run(other), Event::EXIT]);
            let ended = self.tasks[other].take().unwrap().number;
            if other == leader {
                self.free.push(core::mem::replace(&mut number, ended));
            } else {
                self.free.push(ended);
            }
        }
        self.events.push(Event::Run(slot));
        if leader != slot {
            self.events.push(Event::Number(number));
        }
        let is_same = self.dice.roll(3) == 0;
        self.events.push(Event::Memory { is_same });
        let task = self.task();
        (task.number, task.leader, task.phase) = (number, Some(slot), Phase::Replaced);
    }

    fn finish(&mut self) {
        for slot in 0..SLOTS {
            let Some(task) = self.tasks[slot] else { continue };
            self.current = slot;
            self.events.push(Event::Run(slot));
            if task.phase == Phase::Replaced {
                self.start_program();
            }
            self.events.push(Event::RETURN);
        }
    }
}
