//! A CPU of the machine: the task that runs, the branch record, the tracing
//! hardware.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use test_support::{LbrHardware, LbrKind};
use unwind_perf::aux_trace::{AuxBuffer, AuxEvent, AuxGate, OneCpu, Trigger};
use unwind_perf::task_data::SwitchHook;
use unwind_x86::lbr::{Lbr, LbrCpu, LbrSample, Msrs};

use crate::host::{System, Task};

#[derive(Debug)]
pub struct Registers(LbrHardware);

impl Msrs for Registers {
    fn read(&mut self, msr: u32) -> u64 {
        self.0.read(msr)
    }

    fn write(&mut self, msr: u32, value: u64) {
        self.0.write(msr, value);
    }
}

#[derive(Debug)]
pub struct Cpu {
    pub current: Option<Rc<Task>>,
    /// The task that ran before this one.
    pub before: Weak<Task>,
    pub lbr: LbrCpu,
    registers: Registers,
    pub hook: SwitchHook,
    pub tracer: Tracer,
}

impl Cpu {
    pub fn new() -> Self {
        Self {
            current: None,
            before: Weak::new(),
            lbr: LbrCpu::new(Lbr::skylake()),
            registers: Registers(LbrHardware::new(LbrKind::Skylake)),
            hook: SwitchHook::new(),
            tracer: Tracer::default(),
        }
    }

    /// Switches to another task, or to the idle one.
    pub fn switch(&mut self, system: &System, number: usize, next: Option<Rc<Task>>) {
        if let Some(task) = &self.current {
            // A record that no event uses, or that has no place, is gone.
            task.saved.set(task.data.handle().filter(|_| self.is_used(system)));
        }
        let from = self.current.take();
        let (lbr, registers, hook) = (&mut self.lbr, &mut self.registers, &self.hook);
        system.read_section(|| {
            let blocks = [&from, &next].map(|task| task.as_ref().map(|task| &task.data));
            let Some(switch) = hook.switch(blocks[0], blocks[1]) else { return };
            if let Some(handle) = switch.from {
                system.with_state(handle, |task| lbr.switch_out(registers, Some(task)));
            }
            // The idle task runs no user code.
            if next.is_none() {
                return;
            }
            match switch.to {
                Some(handle) => {
                    system.with_state(handle, |task| lbr.switch_in(registers, Some(task)));
                }
                None => {
                    lbr.switch_in(registers, None);
                }
            }
        });
        if let Some(task) = from {
            task.on.set(None);
            self.before = Rc::downgrade(&task);
        }
        if let Some(task) = &next {
            task.on.set(Some(number));
        }
        self.current = next;
        self.update_recording(system);
        if let Some(task) = &self.current {
            let restored = task.saved.take().is_some_and(|at| task.data.handle() == Some(at));
            if !restored || !self.is_used(system) {
                task.recorded.set(0);
            }
        }
    }

    /// Records while an event uses the hardware.
    pub fn update_recording(&mut self, system: &System) {
        let used = self.is_used(system);
        self.registers.0.record(used);
    }

    pub fn is_used(&self, system: &System) -> bool {
        let Some(task) = &self.current else { return false };
        match task.data.handle() {
            Some(handle) => system.with_state(handle, |task| self.lbr.is_used(Some(task.state))),
            None => self.lbr.is_used(None),
        }
    }

    /// An event of the task that runs, or of the CPU, starts to use the record.
    pub fn start(&mut self, system: &System, wide: bool) {
        if let Some(task) = self.current.as_ref().filter(|_| !self.is_used(system)) {
            task.recorded.set(0);
        }
        let (lbr, registers) = (&mut self.lbr, &mut self.registers);
        let handle = self.current.as_ref().and_then(|task| task.data.handle());
        match handle {
            Some(handle) => system.with_state(handle, |task| {
                if wide {
                    lbr.start_wide(registers, Some(task.state));
                } else {
                    lbr.start(registers, task.state);
                }
            }),
            None => {
                assert!(wide);
                lbr.start_wide(registers, None);
            }
        }
        self.update_recording(system);
    }

    pub fn call(&mut self, task: &Task, from: u64, to: u64) {
        self.registers.0.tick(50);
        self.registers.0.call(from, to);
        task.recorded.set((task.recorded.get() + 1).min(32));
    }

    pub fn ret(&mut self, task: &Task) {
        self.registers.0.ret();
        task.recorded.set(task.recorded.get().saturating_sub(1));
    }

    pub fn deep_idle(&mut self) {
        assert!(self.current.is_none());
        self.registers.0.deep_idle();
    }

    pub fn sample(&mut self) -> LbrSample {
        self.lbr.read(&mut self.registers)
    }
}

/// The AUX event of a CPU, on its hardware.
#[derive(Debug)]
pub struct Tracer {
    pub gate: AuxGate<OneCpu>,
    buffer: Rc<AuxBuffer<OneCpu>>,
    pub traces: Cell<bool>,
    /// An NMI arrives at the next access to the hardware: the trigger that
    /// overflows in it.
    pub nmi: RefCell<Option<Rc<Trigger>>>,
    acting: Cell<bool>,
    /// Actions that an NMI in an action gave up.
    pub missed: Cell<u64>,
    /// What the flags have to be.
    pub paused: Cell<bool>,
    pub started: Cell<bool>,
}

impl Default for Tracer {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Tracer {
    pub fn new(start_paused: bool) -> Self {
        Self {
            gate: AuxGate::new(start_paused),
            buffer: Rc::default(),
            traces: Cell::default(),
            nmi: RefCell::default(),
            acting: Cell::default(),
            missed: Cell::default(),
            paused: Cell::new(start_paused),
            started: Cell::default(),
        }
    }

    /// The scheduler starts or stops it.
    pub fn set_started(&self, on: bool) {
        self.started.set(on);
        let access = |on| self.access(on, false);
        if on {
            self.gate.start(access)
        } else {
            self.gate.stop(access)
        }
        self.nmi.take();
    }

    /// A trigger overflows, outside of everything else.
    pub fn overflow(&self, trigger: &Trigger) {
        self.act(trigger);
        self.nmi.take();
    }

    fn act(&self, trigger: &Trigger) {
        if self.acting.get() {
            self.missed.set(self.missed.get() + 1);
        } else {
            self.paused.set(trigger.action() == unwind_perf::aux_trace::TriggerAction::Pause);
        }
        trigger.overflow(Some(self), || ());
    }

    fn access(&self, on: bool, action: bool) {
        let before = self.acting.replace(action);
        let nmi = self.nmi.take();
        if let Some(trigger) = nmi {
            self.act(&trigger);
        }
        self.acting.set(before);
        self.traces.set(on);
    }

    /// The hardware and the flags are as they have to be.
    pub fn check(&self) {
        assert_eq!(self.gate.is_paused(), self.paused.get());
        assert_eq!(self.gate.is_started(), self.started.get());
        assert_eq!(self.traces.get(), self.started.get() && !self.paused.get());
    }
}

impl AuxEvent for Tracer {
    type Reach = OneCpu;
    type Buffer = Rc<AuxBuffer<OneCpu>>;
    type InterruptsOff = ();

    fn gate(&self) -> &AuxGate<OneCpu> {
        &self.gate
    }

    fn buffer(&self) -> Option<Self::Buffer> {
        Some(Rc::clone(&self.buffer))
    }

    fn interrupts_off(&self) {}

    fn trace(&self, on: bool) {
        self.access(on, true);
    }
}
