//! The thread that empties the rings.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use rustix::time::{ClockId, Timespec, clock_gettime};
use unwind_perf::record::{Attr, RecordType};

use crate::commands::record::copy_size::CopySize;
use crate::commands::record::drained::{Drained, SoFar};
use crate::commands::record::engine::Engine;
use crate::commands::record::parts::Parts;
use crate::commands::record::stream::{StreamWriter, round};
use crate::commands::record::subject::Subject;
use crate::commands::record::trim::push_trimmed;

/// How long to wait for records, if no ring is filled to its mark before: each look at the rings
/// may take a CPU from the programs, and what they have in its caches.
const WAIT: Duration = Duration::from_millis(200);

/// The same during the first second, in which most programs show how deep their stacks are.
const WAIT_AT_FIRST: Duration = Duration::from_millis(50);

/// Has this thread run before others where that is allowed: while it waits for a CPU the
/// rings run over.
pub(crate) fn go_first() {
    // Without the right for it the recording is as good on a machine that has time.
    let _ = setpriority_process(None, -20);
}

/// The time by the clock of samples.
fn now() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    let nanos = u64::try_from(tv_nsec).unwrap_or(0);
    u64::try_from(tv_sec).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos)
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
}

impl Drain {
    /// Empties the rings until the subject has ended, `ends` is set or the time has come.
    pub(crate) fn run(
        mut self,
        engine: &mut impl Engine,
        subject: &Subject,
        ends: &AtomicBool,
        until: Option<Instant>,
    ) -> Drained {
        let mut drained = Drained::default();
        let begun = Instant::now();
        loop {
            let is_first = begun.elapsed() < Duration::from_secs(1);
            let wait = if is_first { WAIT_AT_FIRST } else { WAIT };
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            engine.wait(left.map_or(wait, |left| left.min(wait)));
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            let is_last = is_over || ends.load(Ordering::Relaxed) || !subject.runs();
            if is_last {
                engine.stop();
            }
            if let Some(size) = self.copy_size.change()
                && engine.copy(size)
            {
                self.copy_size.is_in_force(size, now());
            }
            // What came before its end is in the rings afterwards.
            self.drain(engine, &mut drained);
            if is_last {
                (drained.lost, drained.cpu_time) = (engine.lost(), engine.cpu_time());
                self.parts.finish(drained);
                return drained;
            }
            if self.parts.is_due() {
                (drained.lost, drained.cpu_time) = (engine.lost(), engine.cpu_time());
                self.parts.next(&mut self.writer, drained);
            }
        }
    }

    fn drain(&mut self, engine: &mut impl Engine, drained: &mut Drained) {
        /// Bytes that are handed on at a time.
        const CHUNK: usize = 1 << 20;
        let mut chunk = Vec::new();
        let Self { attr, writer, parts, so_far, .. } = self;
        let skipped = engine.drain(&mut |record| {
            if record.kind() == RecordType::SAMPLE {
                drained.written = drained.written.saturating_add(1);
                if writer.is_full() {
                    drained.dropped = drained.dropped.saturating_add(1);
                    return;
                }
                push_trimmed(&mut chunk, record, attr);
            } else {
                parts.learn(record);
                chunk.extend(record.bytes());
            }
            if chunk.len() >= CHUNK {
                so_far.set(*drained);
                writer.write(std::mem::take(&mut chunk));
            }
        });
        drained.skipped_bytes = drained.skipped_bytes.saturating_add(skipped);
        so_far.set(*drained);
        chunk.extend(round());
        writer.write(chunk);
    }
}
