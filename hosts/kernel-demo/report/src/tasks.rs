//! Which program a task runs at which time.

use std::collections::BTreeMap;

/// What the records say of tasks.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    /// By task, names with the time from which they hold, ascending.
    names: BTreeMap<u32, Vec<(u64, String)>>,
    /// When a loss of records was last told.
    last_loss: Option<u64>,
}

impl Tasks {
    /// A task has a name from now on.
    pub(crate) fn name(&mut self, tid: u32, time: u64, name: &str) {
        self.names.entry(tid).or_default().push((time, name.to_owned()));
    }

    /// A task starts, with the name of its parent.
    pub(crate) fn start(&mut self, tid: u32, parent: u32, time: u64) {
        if let Some(name) = self.at(parent, time).map(str::to_owned) {
            self.name(tid, time, &name);
        }
    }

    /// Records were lost before this time, names perhaps among them.
    pub(crate) fn loss(&mut self, time: u64) {
        self.last_loss = self.last_loss.max(Some(time));
    }

    /// Whether the record of the name that a task has at a time may be lost.
    pub(crate) fn is_in_doubt(&self, tid: u32, time: u64) -> bool {
        let since = self.known_at(tid, time).map(|(since, _)| *since);
        self.last_loss > since
    }

    /// The name that a task has at a time; `None` for a kernel thread.
    pub(crate) fn at(&self, tid: u32, time: u64) -> Option<&str> {
        self.known_at(tid, time).map(|(_, name)| name.as_str())
    }

    fn known_at(&self, tid: u32, time: u64) -> Option<&(u64, String)> {
        let names = self.names.get(&tid)?;
        let known = names.partition_point(|(from, _)| *from <= time);
        names.get(known.checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_in_doubt_if_records_were_lost_since() {
        let mut tasks = Tasks::default();
        tasks.name(7, 10, "first");
        assert!(!tasks.is_in_doubt(7, 15));
        assert!(!tasks.is_in_doubt(8, 15), "without a loss it has no name");
        tasks.loss(20);
        assert!(tasks.is_in_doubt(7, 15), "it was lost before it was told");
        assert!(tasks.is_in_doubt(8, 15));
        tasks.name(7, 30, "second");
        assert!(tasks.is_in_doubt(7, 29));
        assert!(!tasks.is_in_doubt(7, 30));
    }
}
