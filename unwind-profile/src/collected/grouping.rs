//! What the stacks of a report stand under.

use std::collections::HashMap;

use unwind_perf::record::{RecordType, SampleType};
use unwind_target::Untrusted;

use crate::collected::call_tree::Frame;
use crate::recording::held::Held;
use crate::walks::shown::Shown;

/// By what stacks are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[non_exhaustive]
pub enum By {
    /// The names of threads
    Name,
    /// Processes
    Process,
    /// Threads
    Thread,
    /// Control groups, if the recording has them (`perf record --all-cgroups`)
    Cgroup,
    /// The file of the innermost frame
    Module,
}

/// Names are kept for this many control groups.
const MAX_GROUPS: usize = 1 << 14;

/// The longest name of a group, in bytes.
const MAX_NAME: usize = 256;

/// The control groups that a recording has named.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cgroups {
    paths: HashMap<u64, Untrusted>,
}

/// `PERF_RECORD_CGROUP`.
const CGROUP: RecordType = RecordType(19);

/// Fields at the end of a sample (`PERF_SAMPLE_…`): those of fixed size, and the one of which
/// only the sample knows how long it is.
const SAMPLE_CGROUP: u64 = 1 << 21;
const SAMPLE_PAGE_SIZES: [u64; 2] = [1 << 22, 1 << 23];
const SAMPLE_AUX: u64 = 1 << 20;

impl Cgroups {
    /// Learns from a record that names a group.
    pub(crate) fn take(&mut self, held: &Held) {
        let Some(record) = held.record().filter(|record| record.kind() == CGROUP) else { return };
        // A header, the id, the path and a zero.
        let Some((id, path)) = record.bytes().get(8..).and_then(<[u8]>::split_first_chunk) else {
            return;
        };
        let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
        let path = path.get(..MAX_NAME).unwrap_or(path);
        let id = record.endian().u64(*id);
        if self.paths.len() < MAX_GROUPS || self.paths.contains_key(&id) {
            self.paths.insert(id, Untrusted::from(path));
        }
    }

    fn name(&self, held: &Held) -> String {
        match group_of(held) {
            None => "[no cgroup in the recording]".to_owned(),
            Some(id) => match self.paths.get(&id) {
                Some(path) => path.escaped().to_string(),
                None => format!("[cgroup {id}]"),
            },
        }
    }
}

/// The control group of a sample, which is near its end.
fn group_of(held: &Held) -> Option<u64> {
    let fields = held.format.sample_type;
    let has = |bit| fields.contains(SampleType::from_bits_retain(bit));
    let record = held.record()?;
    if !has(SAMPLE_CGROUP) || has(SAMPLE_AUX) {
        return None;
    }
    let mut bytes = record.bytes();
    for _ in SAMPLE_PAGE_SIZES.into_iter().filter(|&bit| has(bit)) {
        bytes = bytes.split_last_chunk::<8>()?.0;
    }
    bytes.split_last_chunk().map(|(_, id)| record.endian().u64(*id))
}

impl By {
    /// What a sample stands under. `innermost` is its innermost frame.
    pub(crate) fn root(self, shown: &Shown, cgroups: &Cgroups, innermost: Option<&Frame>) -> Frame {
        let task = shown.held.task;
        let text = match self {
            Self::Name => shown.comm.escaped().to_string(),
            Self::Process => format!("{} (process {})", shown.process, task.pid),
            Self::Thread => format!("{} (thread {})", shown.comm, task.tid),
            Self::Cgroup => cgroups.name(&shown.held),
            Self::Module => match innermost.and_then(|frame| frame.file.as_deref()) {
                Some(file) => file.to_owned(),
                None => "[no file]".to_owned(),
            },
        };
        Frame::note(&text)
    }
}
