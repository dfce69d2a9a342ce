//! The names of threads, as the records so far give them.

use std::collections::HashMap;
use std::rc::Rc;

use unwind_perf::record::{Comm, Lifecycle, RecordType, Task};
use unwind_target::Untrusted;

use crate::recording::held::Held;

/// Names are kept for this many threads: a kernel has no more ids.
const MAX_THREADS: usize = 1 << 22;

/// Bytes kept of a name; the kernel's have at most 15.
const MAX_NAME: usize = 64;

/// The threads that there are or were. One that has ended keeps its name until its id is
/// given to another: it is sampled on its way out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Threads {
    names: HashMap<u32, Rc<Untrusted>>,
}

impl Threads {
    /// Learns from a record that names or starts a thread.
    pub(crate) fn take(&mut self, held: &Held) {
        let Some(record) = held.record() else {
            return;
        };
        match record.kind() {
            RecordType::COMM => {
                if let Ok(comm) = Comm::decode(&record, held.format) {
                    let name = comm.name.get(..MAX_NAME).unwrap_or(comm.name);
                    self.set(comm.task.tid, Rc::new(Untrusted::from(name)));
                }
            }
            RecordType::FORK => {
                if let Ok(event) = Lifecycle::decode(&record, held.format) {
                    self.start(&event);
                }
            }
            _ => {}
        }
    }

    /// A thread starts with the name of the thread that started it.
    fn start(&mut self, event: &Lifecycle) {
        self.names.remove(&event.task.tid);
        if let Some(name) = self.names.get(&event.parent.tid).cloned() {
            self.set(event.task.tid, name);
        }
    }

    /// The name of a thread, or its id after a colon.
    pub(crate) fn name(&self, task: Task) -> Rc<Untrusted> {
        match self.names.get(&task.tid) {
            Some(name) => Rc::clone(name),
            None if task.tid == 0 => Rc::new(Untrusted::from("swapper")),
            None => Rc::new(Untrusted::from(format!(":{}", task.tid.cast_signed()))),
        }
    }

    fn set(&mut self, tid: u32, name: Rc<Untrusted>) {
        if self.names.len() < MAX_THREADS || self.names.contains_key(&tid) {
            self.names.insert(tid, name);
        }
    }
}
