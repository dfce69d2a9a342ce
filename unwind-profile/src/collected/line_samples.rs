//! At which addresses functions were sampled themselves, by file.

use std::collections::HashMap;
use std::sync::Arc;

use crate::mapped::recorded_file::RecordedFile;

/// How many addresses are kept apart.
const MAX_ADDRS: usize = 1 << 16;

/// The samples of functions by address, in bounded memory.
#[derive(Debug, Default)]
pub(crate) struct LineSamples {
    files: HashMap<usize, FileSamples>,
    addrs: usize,
    /// Samples for whose address there was no room.
    pub(crate) left_out: u64,
}

/// The samples of one file.
#[derive(Debug)]
pub(crate) struct FileSamples {
    pub(crate) file: Arc<RecordedFile>,
    /// By link-time address and the place of the function's frame.
    pub(crate) counts: HashMap<(u64, usize), u64>,
}

impl FileSamples {
    /// All of them.
    pub(crate) fn samples(&self) -> u64 {
        self.counts.values().fold(0, |sum, &count| sum.saturating_add(count))
    }
}

impl LineSamples {
    /// Adds samples of the function of this frame, at a link-time address of a file.
    pub(crate) fn add(&mut self, file: &Arc<RecordedFile>, addr: u64, frame: usize, count: u64) {
        let key = Arc::as_ptr(file).addr();
        let samples = self
            .files
            .entry(key)
            .or_insert_with(|| FileSamples { file: Arc::clone(file), counts: HashMap::new() });
        let sum = match samples.counts.get_mut(&(addr, frame)) {
            Some(sum) => sum,
            None if self.addrs < MAX_ADDRS => {
                self.addrs = self.addrs.saturating_add(1);
                samples.counts.entry((addr, frame)).or_default()
            }
            None => &mut self.left_out,
        };
        *sum = sum.saturating_add(count);
    }

    /// Gives samples to other frames, by frame.
    pub(crate) fn move_to(&mut self, frames: &[Option<usize>]) {
        for of_file in self.files.values_mut() {
            for ((addr, frame), count) in std::mem::take(&mut of_file.counts) {
                let sum = match frames.get(frame).copied().flatten() {
                    Some(frame) => of_file.counts.entry((addr, frame)).or_default(),
                    None => &mut self.left_out,
                };
                *sum = sum.saturating_add(count);
            }
        }
    }

    /// The files, that with most samples first.
    pub(crate) fn into_files(self) -> Vec<FileSamples> {
        let mut files: Vec<FileSamples> = self.files.into_values().collect();
        files.sort_by(|a, b| {
            let by_samples = b.samples().cmp(&a.samples());
            by_samples.then_with(|| a.file.name.as_bytes().cmp(b.file.name.as_bytes()))
        });
        files
    }
}
