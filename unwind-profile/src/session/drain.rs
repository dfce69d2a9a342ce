//! The thread that empties the rings.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::ClockId;
use unwind_perf::record::{Attr, Endian, Record, RecordType};
use unwind_target::clock::nanoseconds;

use crate::engine::copy_size::CopySize;
use crate::engine::drained::{Drained, OfEvent, SoFar};
use crate::engine::subject::Subject;
use crate::engine::trim::{push, push_trimmed};
use crate::engine::{Engine, StoredRecord};
use crate::recording::stream::StreamWriter;
use crate::session::parts::Parts;
use crate::session::stream::round;

/// How long to wait between two looks at the rings.
///
/// Each look may take a CPU from the programs, and what they have in its caches. But a ring that is
/// filled to its mark interrupts the program that fills it, which takes longer than a sample. So
/// the next look is when rings should be a quarter full.
#[derive(Debug)]
struct Pace {
    begun: Instant,
    last: Instant,
    wait: Duration,
}

impl Pace {
    const LEAST: Duration = Duration::from_millis(5);
    const MOST: Duration = Duration::from_millis(200);
    /// The most at first, when programs show how deep their stacks are.
    const MOST_AT_FIRST: [(Duration, Duration); 2] = [
        (Duration::from_millis(250), Duration::from_millis(5)),
        (Duration::from_secs(1), Duration::from_millis(20)),
    ];

    fn new(now: Instant) -> Self {
        Self { begun: now, last: now, wait: Self::LEAST }
    }

    /// Takes note of a look that has found rings this full, in percent.
    fn learn(&mut self, percent: u64, now: Instant) {
        let since = now.saturating_duration_since(self.last);
        self.last = now;
        let age = now.saturating_duration_since(self.begun);
        let at_first = Self::MOST_AT_FIRST.into_iter().find(|&(until, _)| age < until);
        let most = at_first.map_or(Self::MOST, |(_, most)| most);
        let percent = u32::try_from(percent).unwrap_or(u32::MAX).max(1);
        let wait = since.saturating_mul(25).checked_div(percent).unwrap_or(most);
        // One look with little to find says nothing of the next.
        let doubled = self.wait.saturating_mul(2);
        self.wait = wait.min(doubled).clamp(Self::LEAST, most);
    }
}

/// What empties the rings.
#[derive(Debug)]
pub(crate) struct Drain {
    pub(crate) attr: Attr,
    /// How much of a stack is to be copied.
    pub(crate) copy_size: CopySize,
    pub(crate) writer: StreamWriter,
    pub(crate) parts: Parts,
    pub(crate) so_far: SoFar,
    /// How many bytes were handed on last.
    pub(crate) chunk_len: usize,
    /// The places of events by the ids of their copies, where there are several.
    pub(crate) places: HashMap<u64, usize>,
}

impl Drain {
    /// Empties the rings until the subject has ended, `ends` is set or the time has come.
    pub(crate) fn run(
        mut self,
        engine: &mut dyn Engine,
        subject: &Subject,
        ends: &AtomicBool,
        until: Option<Instant>,
    ) -> Drained {
        let mut drained = Drained::default();
        let mut pace = Pace::new(Instant::now());
        let watched = subject.watch();
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            engine.wait(left.map_or(pace.wait, |left| left.min(pace.wait)));
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            let is_last = is_over || ends.load(Ordering::Relaxed) || !watched.runs();
            if is_last {
                engine.stop();
            }
            if let Some(size) = self.copy_size.change()
                && engine.copy(size)
            {
                // By the clock of samples.
                let now = nanoseconds(ClockId::Monotonic).unwrap_or(0);
                self.copy_size.is_in_force(size, now);
            }
            // What came before its end is in the rings afterwards.
            let percent = self.drain(engine, &mut drained);
            pace.learn(percent, Instant::now());
            if is_last {
                drained.count(engine);
                self.parts.finish(drained);
                return drained;
            }
            if self.parts.is_due() {
                drained.count(engine);
                self.parts.next(&mut self.writer, drained);
            }
        }
    }

    /// Hands on what is in the rings. Returns how full they were, in percent.
    fn drain(&mut self, engine: &mut dyn Engine, drained: &mut Drained) -> u64 {
        /// Bytes that are handed on at a time.
        const CHUNK: usize = 1 << 20;
        // Room for what came last time, so that bytes are not moved where more come.
        let mut chunk = Vec::with_capacity(self.chunk_len);
        let Self { attr, writer, parts, so_far, places, .. } = self;
        let found = engine.drain(&mut |record| {
            let start = chunk.len();
            if record.header().kind == RecordType::SAMPLE {
                drained.written = drained.written.saturating_add(1);
                let of_event = match places.is_empty() {
                    true => None,
                    false => place_of(record, places).and_then(|at| drained.events.get_mut(at)),
                };
                let mut unused = OfEvent::default();
                let of_event = of_event.unwrap_or(&mut unused);
                of_event.written = of_event.written.saturating_add(1);
                if writer.is_full() {
                    drained.dropped = drained.dropped.saturating_add(1);
                    of_event.dropped = of_event.dropped.saturating_add(1);
                    return;
                }
                push_trimmed(&mut chunk, record, attr);
            } else {
                push(&mut chunk, record, 0..record.header().size.into());
                let copied = chunk.get(start..).unwrap_or_default();
                if let Ok(record) = Record::parse(copied, Endian::NATIVE) {
                    parts.learn(&record);
                }
            }
            if chunk.len() >= CHUNK {
                so_far.set(*drained);
                let next = Vec::with_capacity(chunk.capacity());
                writer.write(std::mem::replace(&mut chunk, next));
            }
        });
        drained.skipped_bytes = drained.skipped_bytes.saturating_add(found.skipped);
        so_far.set(*drained);
        chunk.extend(round());
        self.chunk_len = chunk.len();
        writer.write(chunk);
        found.percent
    }
}

/// The place of the event of a sample, which begins with the id.
fn place_of(record: &dyn StoredRecord, places: &HashMap<u64, usize>) -> Option<usize> {
    const AFTER_HEADER: usize = 8;
    let mut id = [0; 8];
    record.copy(AFTER_HEADER, &mut id);
    places.get(&u64::from_ne_bytes(id)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_rings_are_looked_at_when_they_are_a_quarter_full() {
        let begun = Instant::now();
        let mut pace = Pace::new(begun);
        let mut now = begun.checked_add(Duration::from_secs(2)).unwrap();
        pace.last = now;
        // In percent of a ring in a millisecond.
        for (filled, ms) in [(1, 25), (5, 5), (1, 25), (100, 5)] {
            for _ in 0..100 {
                now = now.checked_add(pace.wait).unwrap();
                let waited = u64::try_from(pace.wait.as_millis()).unwrap();
                pace.learn(waited.saturating_mul(filled), now);
            }
            assert_eq!(pace.wait.as_millis(), ms, "{filled}");
        }
        for _ in 0..100 {
            now = now.checked_add(pace.wait).unwrap();
            pace.learn(0, now);
        }
        assert_eq!(pace.wait, Pace::MOST);
    }
}
