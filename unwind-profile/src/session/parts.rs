//! A recording in parts. Each has a stream of its own that begins with the processes which are
//! there by then, so that its file is read without the others.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime};

use unwind_perf::record::{Attr, Lifecycle, Record, RecordType};

use crate::engine::drained::Drained;
use crate::engine::existing::{Existing, all_processes, threads_of};
use crate::engine::priority::go_as_others;
use crate::engine::subject::Subject;
use crate::recording::stream::{StreamReader, StreamWriter, stream};

/// A part, while it is recorded.
#[derive(Debug)]
pub struct Part {
    pub begun: SystemTime,
    pub reader: StreamReader,
    pub(crate) end: PartEnd,
}

/// The thread that empties the rings has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reader of the rings has failed")]
pub struct DrainFailed;

/// Where the end of a part is told.
#[derive(Debug)]
pub(crate) struct PartEnd(Receiver<Drained>);

impl PartEnd {
    /// What came out of the rings, once the stream was read to its end.
    ///
    /// # Errors
    ///
    /// [`DrainFailed`] if the thread that empties the rings has.
    pub(crate) fn wait(self) -> Result<Drained, DrainFailed> {
        self.0.recv().map_err(|_| DrainFailed)
    }
}

/// Begins parts and ends them.
#[derive(Debug)]
pub(crate) struct Parts {
    /// How long a part is; without it there is one.
    every: Option<Duration>,
    due: Option<Instant>,
    attr: Attr,
    /// How each stream begins: with the events, and where the kernel is.
    start: Vec<u8>,
    processes: Processes,
    /// How much waits in all streams.
    waiting: Arc<AtomicUsize>,
    parts: Sender<Part>,
    end: Option<Sender<Drained>>,
    /// What had come out of the rings before this part.
    before: Drained,
}

/// The processes that are recorded.
#[derive(Clone, Debug)]
enum Processes {
    All,
    These(BTreeSet<i32>),
}

impl Processes {
    fn there(&mut self) -> Vec<i32> {
        match self {
            Self::All => all_processes(),
            Self::These(processes) => {
                processes.retain(|&process| !threads_of(process).is_empty());
                processes.iter().copied().collect()
            }
        }
    }

    fn learn(&mut self, record: &Record<'_>, attr: &Attr) {
        let Self::These(processes) = self else { return };
        let Ok(Lifecycle { exit, task, .. }) = Lifecycle::decode(record, attr.format) else {
            return;
        };
        let Ok(process) = i32::try_from(task.pid) else { return };
        match exit {
            false => _ = processes.insert(process),
            // Other threads may live on.
            true if task.pid == task.tid && !has_others(process) => _ = processes.remove(&process),
            true => {}
        }
    }
}

/// Whether a process has threads beside its first one.
fn has_others(process: i32) -> bool {
    threads_of(process).into_iter().any(|thread| thread != process)
}

impl Parts {
    /// Parts of `every`, each of which begins with `start`. Returns also where they come out.
    pub(crate) fn new(
        subject: &Subject,
        every: Option<Duration>,
        attr: Attr,
        start: Vec<u8>,
    ) -> (Self, Receiver<Part>) {
        let processes = match subject {
            Subject::All => Processes::All,
            Subject::Processes(processes) => Processes::These(processes.iter().copied().collect()),
        };
        let (parts, receiver) = channel();
        let parts = Self {
            every,
            due: None,
            attr,
            start,
            processes,
            waiting: Arc::default(),
            parts,
            end: None,
            before: Drained::default(),
        };
        (parts, receiver)
    }

    /// Begins the first part. `existing` are the processes that are there.
    pub(crate) fn begin(&mut self, existing: Vec<i32>) -> StreamWriter {
        let (writer, reader) = stream(&self.waiting);
        let (first, before) = stream(&self.waiting);
        first.write(self.start.clone());
        self.tell_existing(&first, existing);
        let reader = reader.after(before);
        let (end, ended) = channel();
        self.end = Some(end);
        self.due = self.every.and_then(|every| Instant::now().checked_add(every));
        // Nobody may want it any more; then it is not missed.
        let _ = self.parts.send(Part { begun: SystemTime::now(), reader, end: PartEnd(ended) });
        writer
    }

    /// Has records of processes written by a thread of its own: the rings have to be emptied meanwhile.
    fn tell_existing(&self, first: &StreamWriter, processes: Vec<i32>) {
        if processes.is_empty() {
            return;
        }
        let (attr, processes) = (self.attr, Arc::<[i32]>::from(processes));
        let tell =
            move |first: &StreamWriter, processes: &[i32]| first.write(records_of(processes, attr));
        let (own_first, own_processes) = (first.clone(), Arc::clone(&processes));
        let thread = Builder::new().name("unwind-existing".into());
        let in_thread = move || {
            go_as_others();
            tell(&own_first, &own_processes);
        };
        if thread.spawn(in_thread).is_err() {
            tell(first, &processes);
        }
    }

    /// Takes note of a record.
    pub(crate) fn learn(&mut self, record: &Record<'_>) {
        // The processes are told again at the begin of each part but the first.
        if self.every.is_some() && matches!(record.kind(), RecordType::FORK | RecordType::EXIT) {
            self.processes.learn(record, &self.attr);
        }
    }

    /// Whether it is time for the next part.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| Instant::now() >= due)
    }

    /// Ends a part, all of whose records are in its stream, and begins the next one.
    pub(crate) fn next(&mut self, writer: &mut StreamWriter, drained: Drained) {
        let existing = self.processes.there();
        let ended = self.end.take();
        *writer = self.begin(existing);
        self.tell(ended, drained);
    }

    /// Ends the last part.
    pub(crate) fn finish(&mut self, drained: Drained) {
        let ended = self.end.take();
        self.tell(ended, drained);
    }

    fn tell(&mut self, ended: Option<Sender<Drained>>, drained: Drained) {
        let of_part = drained.since(&self.before);
        self.before = drained;
        ended.into_iter().for_each(|ended| _ = ended.send(of_part));
    }
}

/// What there is to say of processes that are there.
fn records_of(processes: &[i32], attr: Attr) -> Vec<u8> {
    let mut bytes = Vec::new();
    let build_ids = HashMap::new();
    let mut existing = Existing { format: attr.format, out: &mut bytes, build_ids };
    processes.iter().for_each(|&process| existing.process(process));
    bytes
}

/// Where the kernel is.
pub(crate) fn record_of_kernel(attr: Attr) -> Vec<u8> {
    let mut bytes = Vec::new();
    Existing { format: attr.format, out: &mut bytes, build_ids: HashMap::new() }.kernel();
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Command;

    use unwind_perf::event_attr::EventAttr;
    use unwind_perf::record::{Encode as _, Endian, EventFormat, SampleId, Task};

    use super::*;
    use crate::engine::SampledEvent;
    use crate::session::stream::layout;

    fn attr() -> Attr {
        let mut attr = EventAttr::default();
        attr.size = 112;
        layout(&[SampledEvent { attr, ids: Vec::new(), name: None }]).unwrap()
    }

    #[test]
    fn d14_parts_share_the_samples_and_each_begins_alike() {
        let subject = Subject::Processes(vec![1]);
        let start = b"start".to_vec();
        let (mut parts, received) = Parts::new(&subject, Some(Duration::ZERO), attr(), start);
        let mut writer = parts.begin(Vec::new());
        writer.write(b"one".to_vec());
        assert!(parts.is_due());
        let drained = |written, lost| Drained { written, lost, ..Drained::default() };
        parts.next(&mut writer, drained(10, Some(3)));
        writer.write(b"two".to_vec());
        parts.finish(drained(25, Some(4)));
        drop((writer, parts));
        let parts: Vec<Part> = received.into_iter().collect();
        let [first, second] = <[_; 2]>::try_from(parts).unwrap();
        let text = |mut reader: StreamReader| {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            bytes
        };
        assert_eq!(text(first.reader), b"startone");
        let text = text(second.reader);
        assert!(text.starts_with(b"start") && text.ends_with(b"two"));
        let end = first.end.wait().unwrap();
        assert_eq!((end.written, end.lost), (10, Some(3)));
        let end = second.end.wait().unwrap();
        assert_eq!((end.written, end.lost), (15, Some(1)));
    }

    #[test]
    fn d14_processes_that_were_started_are_in_later_parts_until_they_end() {
        let own = std::process::id();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let started = child.id();
        let number = |process: u32| i32::try_from(process).unwrap();
        let mut processes = Processes::These([number(own)].into());
        let mut learn = |exit, pid, tid| {
            let task = Task { pid, tid };
            let lifecycle =
                Lifecycle { exit, task, parent: task, time: 0, id: SampleId::default() };
            let mut bytes = Vec::new();
            lifecycle.encode(EventFormat::default(), Endian::Little, &mut bytes).unwrap();
            let record = Record::parse(&bytes, Endian::Little).unwrap();
            processes.learn(&record, &attr());
            processes.there()
        };
        let both: Vec<i32> = BTreeSet::from([number(own), number(started)]).into_iter().collect();
        assert_eq!(learn(false, started, started), both);
        assert_eq!(learn(false, started, 3), both);
        assert_eq!(learn(true, started, 3), both);
        // The threads of this test are there.
        assert_eq!(learn(true, own, own), both);
        assert_eq!(learn(true, started, started), [number(own)]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(learn(false, started, started), [number(own)], "it has ended");
    }
}
