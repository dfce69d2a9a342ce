//! Any sequence of starts, stops, pauses and resumes, some of them within
//! another: the hardware traces if and only if the event is started and not
//! paused, and what gave up is counted.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use unwind_perf::aux_trace::{
    AuxBuffer, AuxEvent, AuxGate, OneCpu, Trigger, TriggerAction, TriggerCounters,
};

use crate::input::Input;

/// An AUX event whose hardware can take NMIs while it is told something.
struct Tracer {
    gate: AuxGate<OneCpu>,
    buffer: RefCell<Option<Rc<AuxBuffer<OneCpu>>>>,
    traces: Cell<bool>,
    triggers: [Trigger; 2],
    /// Which triggers overflow at the next words to the hardware.
    nmis: RefCell<Vec<usize>>,
}

impl AuxEvent for Tracer {
    type Reach = OneCpu;
    type Buffer = Rc<AuxBuffer<OneCpu>>;
    type InterruptsOff = ();

    fn gate(&self) -> &AuxGate<OneCpu> {
        &self.gate
    }

    fn buffer(&self) -> Option<Self::Buffer> {
        self.buffer.borrow().clone()
    }

    fn interrupts_off(&self) {}

    fn trace(&self, on: bool) {
        self.word(on);
    }
}

impl Tracer {
    /// The hardware is told something; an NMI may come before or after.
    fn word(&self, on: bool) {
        let nmi = self.nmis.borrow_mut().pop();
        if let Some(trigger) = nmi
            && trigger < 2
        {
            self.overflow(trigger);
        }
        self.traces.set(on);
        if let Some(trigger) = nmi
            && trigger >= 2
        {
            self.overflow(trigger - 2);
        }
    }

    fn overflow(&self, trigger: usize) {
        self.triggers[trigger].overflow(Some(self), || ());
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let start_paused = input.bool();
    let tracer = Tracer {
        gate: AuxGate::new(start_paused),
        buffer: RefCell::new(Some(Rc::default())),
        traces: Cell::new(false),
        triggers: [Trigger::new(TriggerAction::Pause), Trigger::new(TriggerAction::Resume)],
        nmis: RefCell::default(),
    };
    let (mut started, mut paused) = (false, start_paused);
    let (mut unbound, mut without_buffer) = ([0; 2], [0; 2]);
    while !input.is_empty() {
        let step = input.u8();
        // What comes meanwhile: NMIs in the scheduler's part, or in an action.
        let nmis: Vec<usize> = (0..step >> 6).map(|_| input.below(4)).collect();
        let nested = !nmis.is_empty();
        tracer.nmis.replace(nmis);
        match step % 8 {
            0 | 1 => {
                tracer.gate.start(|on| tracer.word(on));
                started = true;
            }
            2 => {
                tracer.gate.stop(|on| tracer.word(on));
                started = false;
            }
            action @ 3..=6 => {
                let trigger = usize::from(action % 2);
                tracer.overflow(trigger);
                match (tracer.buffer.borrow().is_some(), trigger) {
                    (false, _) => without_buffer[trigger] += 1,
                    (true, 0) => paused = true,
                    (true, _) => paused = false,
                }
            }
            _ if step & 0x20 != 0 => {
                let trigger = usize::from(step >> 4 & 1);
                tracer.triggers[trigger].overflow(None::<&Tracer>, || ());
                unbound[trigger] += 1;
            }
            _ => {
                let buffer = (step & 0x10 == 0).then(Rc::default);
                tracer.buffer.replace(buffer);
            }
        }
        tracer.nmis.borrow_mut().clear();
        assert_eq!(tracer.gate.is_started(), started);
        if nested && step % 8 < 3 {
            // An NMI that interrupts the scheduler's part has its effect.
            paused = tracer.gate.is_paused();
        }
        // One within an action gives up, so the outer one's word holds.
        assert_eq!(tracer.gate.is_paused(), paused, "step {step:#x}");
        assert_eq!(tracer.gate.is_tracing(), started && !paused);
        assert_eq!(tracer.traces.get(), started && !paused, "step {step:#x}");
    }
    for (trigger, index) in tracer.triggers.iter().zip(0..) {
        let TriggerCounters { unbound: found, .. } = trigger.counters();
        assert_eq!(found, unbound[index]);
        assert!(trigger.counters().without_buffer >= without_buffer[index]);
    }
}
