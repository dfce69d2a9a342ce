//! What records tell of samples that the kernel did not take, or had no room for.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use unwind_perf::record::{Lost, RecordType, Throttle};

use crate::recording::held::Held;

/// Spans in which the kernel took no samples, since there were too many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttled {
    /// How many there were.
    pub spans: u64,
    /// How long they were together.
    pub nanoseconds: u64,
    /// About how many samples would have been taken.
    pub samples_estimated: u64,
}

impl Throttled {
    /// The sum of two.
    pub(crate) const fn with(self, other: Self) -> Self {
        Self {
            spans: self.spans.saturating_add(other.spans),
            nanoseconds: self.nanoseconds.saturating_add(other.nanoseconds),
            samples_estimated: self.samples_estimated.saturating_add(other.samples_estimated),
        }
    }
}

/// What was told so far.
#[derive(Clone, Debug)]
pub struct Told {
    /// Records of any kind for which a ring had no room.
    pub(crate) lost: u64,
    pub(crate) throttled: Throttled,
    /// Since when each copy of the event takes no samples.
    stopped: HashMap<u64, u64>,
    /// Samples a second.
    rate: u32,
}

impl Told {
    /// Of events that take `rate` samples a second.
    #[must_use]
    pub fn new(rate: u32) -> Self {
        Self { lost: 0, throttled: Throttled::default(), stopped: HashMap::new(), rate }
    }

    /// Learns from a record that is no sample.
    pub fn take(&mut self, held: &Held) {
        let Some(record) = held.record() else { return };
        match record.kind() {
            RecordType::LOST => {
                let count = Lost::decode(&record, held.format).map_or(0, |lost| lost.count);
                self.lost = self.lost.saturating_add(count);
            }
            RecordType::THROTTLE | RecordType::UNTHROTTLE => {
                if let Ok(throttle) = Throttle::decode(&record, held.format) {
                    self.take_throttle(&throttle);
                }
            }
            _ => {}
        }
    }

    fn take_throttle(&mut self, throttle: &Throttle) {
        if throttle.stops {
            self.stopped.insert(throttle.stream, throttle.time);
            return;
        }
        let Some(start) = self.stopped.remove(&throttle.stream) else { return };
        let span = throttle.time.saturating_sub(start);
        let all = &mut self.throttled;
        all.spans = all.spans.saturating_add(1);
        all.nanoseconds = all.nanoseconds.saturating_add(span);
        let samples = u128::from(all.nanoseconds).saturating_mul(self.rate.into()) / 1_000_000_000;
        all.samples_estimated = u64::try_from(samples).unwrap_or(u64::MAX);
    }
}
