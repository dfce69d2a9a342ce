//! The names of threads, as the records so far give them.

use std::borrow::Cow;
use std::collections::HashMap;

use unwind_perf::record::{Comm, Lifecycle, RecordType, Task};

use crate::perf_cmd::pipeline::Held;
use crate::untrusted::escaped;

/// Names are kept for this many threads; more do not live at once.
const MAX_THREADS: usize = 1 << 20;

/// Bytes kept of a name; the kernel's have at most 15.
const MAX_NAME: usize = 64;

/// The threads that live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Threads {
    names: HashMap<u32, Box<str>>,
}

impl Threads {
    /// Learns from a record that names, starts or ends a thread.
    pub(crate) fn take(&mut self, held: &Held) {
        let Some(record) = held.record() else {
            return;
        };
        match record.kind() {
            RecordType::COMM => {
                if let Ok(comm) = Comm::decode(&record, held.format) {
                    let name = comm.name.get(..MAX_NAME).unwrap_or(comm.name);
                    self.set(comm.task.tid, escaped(name).to_string().into());
                }
            }
            RecordType::FORK | RecordType::EXIT => {
                if let Ok(event) = Lifecycle::decode(&record, held.format) {
                    self.start_or_end(&event);
                }
            }
            _ => {}
        }
    }

    /// A thread starts with the name of the thread that started it.
    fn start_or_end(&mut self, event: &Lifecycle) {
        self.names.remove(&event.task.tid);
        if let Some(name) = self.names.get(&event.parent.tid).filter(|_| !event.exit).cloned() {
            self.set(event.task.tid, name);
        }
    }

    /// The name of a thread, or its id behind a colon.
    pub(crate) fn name(&self, task: Task) -> Cow<'_, str> {
        match self.names.get(&task.tid) {
            Some(name) => Cow::Borrowed(name),
            None if task.tid == 0 => Cow::Borrowed("swapper"),
            None => Cow::Owned(format!(":{}", task.tid.cast_signed())),
        }
    }

    fn set(&mut self, tid: u32, name: Box<str>) {
        if self.names.len() < MAX_THREADS || self.names.contains_key(&tid) {
            self.names.insert(tid, name);
        }
    }
}
