//! Pauses and resumes of an AUX event.

use core::fmt::Write as _;

use unwind_perf::aux_trace::{
    AuxAction, AuxAttr, AuxBuffer, AuxEvent, AuxGate, Creator, PmuCapabilities, SeveralCpus,
    Trigger,
};

use crate::{Text, seen};

unsafe extern "C" {
    /// Switches tracing.
    fn host_trace(on: bool);
}

/// An AUX event.
pub struct Event {
    gate: AuxGate<SeveralCpus>,
    buffer: Option<&'static AuxBuffer<SeveralCpus>>,
}

impl AuxEvent for Event {
    type Reach = SeveralCpus;
    type Buffer = &'static AuxBuffer<SeveralCpus>;
    type InterruptsOff = ();

    fn gate(&self) -> &AuxGate<SeveralCpus> {
        &self.gate
    }

    fn buffer(&self) -> Option<Self::Buffer> {
        self.buffer
    }

    fn interrupts_off(&self) {}

    fn trace(&self, on: bool) {
        // SAFETY: promised by the function that links this.
        unsafe { host_trace(on) }
    }
}

/// An event is opened, started, triggered and stopped.
#[unsafe(no_mangle)]
pub fn trace_gate(event: &Event, trigger: &Trigger, bits: (u32, u32, u32)) {
    let action = AuxAction::from_field(bits.0).unwrap_or(AuxAction::NONE);
    let attr = AuxAttr { action, output: bits.1 & 1 == 1, sample_size: bits.2 };
    let pmu = PmuCapabilities::from_bits_retain(bits.1);
    for creator in [Creator::User, Creator::Kernel] {
        if let Err(error) = attr.check(pmu, creator, Some(pmu)) {
            let _ = write!(Text(0), "{error} {}", error.errno().name());
        }
    }
    event.gate.start(|on| event.trace(on));
    trigger.overflow(Some(event), || event.gate.is_tracing());
    event.gate.stop(|on| event.trace(on));
    seen((trigger.counters(), event.gate.is_paused(), attr.allows_sample_batching()));
}
